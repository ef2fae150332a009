"""What is recommended in each situation, as a pure function of what was found."""

from collections.abc import Sequence

import pytest

from amptui.diagnosis.answer_words import finding_words
from amptui.diagnosis.speed import less_memory, times_speed
from amptui.reports.advise.advice import Reason, is_safe, recommend
from amptui.reports.advise.advise_words import cautions, headline, table_rows
from amptui.reports.advise.evidence import Candidate, Exclusion
from amptui.telemetry.view import EMPTY_VIEW
from tests.reports.advise.situations import HIGHER_LOSSES, SAME_LOSSES, candidate, finding, pair

NAN_LOSSES = (SAME_LOSSES[0], (1.0, float("nan")))

SKIPPED = finding("overflow", "skipped mostly", "error", about="fp16", value=38, whole=40, precision="fp16")
UNDERFLOW = finding("float16", "loses", "warning", about="fp16", value=0.31, loss_scale=65536.0)
LOST = finding("float8", "loses", "warning", about="fp8", value=0.9, place="input of mlp.fc", precision="fp8")
OUTSIDE = finding("forward", "overflowed", "error", about="fp16", place="features.3", value=float("inf"))


def differing(precision: str, grade: str = "warning") -> object:
    state = "differ" if grade == "warning" else "disagree"
    return finding("agreement", state, grade, value=0.7, place="conv1", about=precision, happened=False)


def slow(precision: str) -> Candidate:
    return candidate(precision, exclusion=Exclusion("slow", value=13.0), losses=None)


SITUATIONS: list[tuple[str, Sequence[Candidate], str | None, Reason]] = [
    ("bf16 is faster and safe", [candidate("bf16", 1.65), candidate("fp16", 1.66)], "bf16", "faster"),
    ("fp16 is clearly faster", [candidate("bf16", 1.2), candidate("fp16", 1.9)], "fp16", "faster"),
    ("only fp16 is faster", [candidate("bf16", 0.9), candidate("fp16", 1.9)], "fp16", "faster"),
    ("fp16 is skipped", [candidate("bf16", 1.2), candidate("fp16", 1.9, SKIPPED)], "bf16", "faster"),
    ("fp16 is all there is, skipped", [candidate("fp16", 1.9, SKIPPED)], "fp32", "unsafe"),
    ("fp16 underflows", [candidate("bf16", 1.5), candidate("fp16", 1.9, UNDERFLOW)], "bf16", "faster"),
    ("fp16 underflows alone", [candidate("fp16", 1.9, UNDERFLOW)], "fp32", "unsafe"),
    ("fp16 overflows forward", [candidate("fp16", 1.9, OUTSIDE)], "fp32", "unsafe"),
    ("all are slower", [candidate("bf16", 0.8), candidate("fp16", 0.7)], "fp32", "slower"),
    ("bf16 slower, fp16 far slower", [candidate("bf16", 0.8), slow("fp16")], "fp32", "slower"),
    ("fp16 is far slower", [slow("fp16")], "fp32", "slower"),
    (
        "launch-bound",
        [candidate("bf16", 1.0, finding("limit", "launch", "neutral"))],
        "fp32",
        "same",
    ),
    ("as fast, less memory", [candidate("bf16", 1.0, memory=0.7)], "bf16", "memory"),
    ("as fast, hardly less memory", [candidate("bf16", 1.0, memory=0.97)], "fp32", "same"),
    ("no clear difference", [candidate("bf16", 1.0, worth="open")], "fp32", "open"),
    ("gradients differ, the loss does not", [candidate("bf16", 1.5, differing("bf16"))], "bf16", "faster"),  # type: ignore[arg-type]
    (
        "gradients differ, no loss",
        [candidate("bf16", 1.5, differing("bf16"), losses=None)],  # type: ignore[arg-type]
        "fp32",
        "unsafe",
    ),
    ("gradients disagree", [candidate("bf16", 1.5, differing("bf16", "error"))], "fp32", "unsafe"),  # type: ignore[arg-type]
    ("the loss is higher", [candidate("bf16", 1.5, losses=HIGHER_LOSSES)], "fp32", "unsafe"),
    ("the loss is lower", [candidate("bf16", 1.5, losses=HIGHER_LOSSES[::-1])], "bf16", "faster"),
    ("the loss is NaN", [candidate("bf16", 1.5, losses=NAN_LOSSES)], "fp32", "unsafe"),
    ("no losses were compared", [candidate("bf16", 1.5, losses=None)], "bf16", "faster"),
    ("TF32 is faster than AMP", [candidate("tf32", 1.5), candidate("bf16", 1.1)], "tf32", "faster"),
    ("TF32 is faster, its loss higher", [candidate("tf32", 1.5, losses=HIGHER_LOSSES)], "fp32", "unsafe"),
    ("FP8 is clearly faster than bf16", [candidate("bf16", 1.6), candidate("fp8", 2.2)], "fp8", "faster"),
    ("FP8 is hardly faster than bf16", [candidate("bf16", 1.6), candidate("fp8", 1.62)], "bf16", "faster"),
    ("FP8 loses, the loss is the same", [candidate("fp8", 2.2, LOST)], "fp8", "faster"),
    ("FP8 loses, no loss", [candidate("fp8", 2.2, LOST, losses=None)], "fp32", "unsafe"),
    (
        "FP8 loses, bf16 is safe",
        [candidate("bf16", 1.6), candidate("fp8", 2.2, LOST, losses=None)],
        "bf16",
        "faster",
    ),
    ("FP8's loss is higher", [candidate("fp8", 2.2, losses=HIGHER_LOSSES)], "fp32", "unsafe"),
    ("FP8 is slower, AMP gains little", [candidate("bf16", 1.0), candidate("fp8", 0.8)], "fp32", "same"),
    (
        "weights became NaN",
        [candidate("bf16", exclusion=Exclusion("weights lost"), losses=None), slow("fp16")],
        "fp32",
        "unsafe",
    ),
    (
        "nothing runs here",
        [candidate("bf16", exclusion=Exclusion("not here", "no kernel"), losses=None)],
        "fp32",
        "nothing to compare",
    ),
    ("ended before the speeds", [candidate("bf16", losses=None)], None, "not compared"),
    (
        "FP32 fails",
        [
            candidate(
                "bf16", 1.5, finding("loss", "not finite", "error", precision="fp32", value=float("nan"))
            )
        ],
        None,
        "fails",
    ),
]


@pytest.mark.parametrize(
    ("found", "precision", "reason"), [item[1:] for item in SITUATIONS], ids=[item[0] for item in SITUATIONS]
)
def test_each_situation_has_its_recommendation(
    found: Sequence[Candidate], precision: str | None, reason: Reason
) -> None:
    advice = recommend(found)
    assert (advice.precision, advice.reason) == (precision, reason)
    words = headline(advice)
    assert words
    assert not {"{", "}", "None", "  "} & {words, *words.split(" ")}
    assert not words.endswith((" ", ":"))


def test_other_weights_leave_nothing_to_choose() -> None:
    advice = recommend([candidate("bf16", 1.5)], other_weights=True)
    assert (advice.precision, advice.reason) == ("fp32", "weights")


def test_what_is_recommended_though_gradients_differ_says_so() -> None:
    advice = recommend([candidate("bf16", 1.5, differing("bf16"))])  # type: ignore[arg-type]
    assert [item.subject for item in advice.cautions] == ["agreement"]


def test_the_speed_of_fp8_is_that_over_fp32_though_its_answer_is_about_bf16() -> None:
    fp8 = candidate("fp8", 2.2, worth="same")
    advice = recommend([candidate("bf16", 1.6), fp8])
    assert (advice.precision, advice.reason) == ("fp8", "faster")
    assert headline(advice).startswith(f"Use FP8: {times_speed(2.2, 'FP32')} (")


def test_without_a_comparison_fp8_has_no_speed_in_the_table_for_its_answer_is_about_bf16() -> None:
    speed = finding("speed", "slower", value=0.89, about="fp8")
    rows = table_rows(EMPTY_VIEW, [candidate("fp8", None, speed, worth="slower")])
    (cells,) = [row for row in rows if row[0] == "speed"]
    assert cells == ("speed", "baseline", "n/a")


def test_a_faster_fp8_that_is_not_safe_is_told_beside_what_is_recommended() -> None:
    bf16, fp8 = candidate("bf16", 1.6), candidate("fp8", 2.2, LOST, losses=None)
    said = list(cautions(recommend([bf16, fp8]), [bf16, fp8], EMPTY_VIEW))
    assert f"not FP8: {finding_words(LOST)}" in said
    slower = candidate("fp8", 0.9, LOST, losses=None)
    said = list(cautions(recommend([bf16, slower]), [bf16, slower], EMPTY_VIEW))
    assert not any("FP8" in line for line in said)


def test_compiling_is_recommended_only_where_it_was_faster() -> None:
    assert recommend([candidate("bf16", 1.5, compiling=1.2)]).compiles
    assert not recommend([candidate("bf16", 1.5, compiling=0.9)]).compiles
    assert not recommend([candidate("bf16", 1.5, compiling=1.005)]).compiles
    slower = recommend([candidate("bf16", 0.8)], compiling=pair("fp32", 1.3))
    assert (slower.precision, slower.compiles) == ("fp32", True)


def test_an_excluded_precision_is_never_safe() -> None:
    assert is_safe(candidate("bf16", 1.5))
    assert not is_safe(candidate("bf16", 1.5, exclusion=Exclusion("failed", "no kernel")))


def test_the_headline_has_speed_memory_agreement_and_loss() -> None:
    assert headline(recommend([candidate("bf16", 1.65, memory=0.71)])) == (
        f"Use AMP bf16: {times_speed(1.65, 'FP32')} (1.62 to 1.68), {less_memory(0.29)}, gradients agree "
        "(worst 0.998 in features.3), the same loss within noise"
    )
