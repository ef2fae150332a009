"""What the answer on AMP is made of: what ages, what counts, and beside what FP8 stands."""

import math
from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.amp_answer import AmpAnswer, amp_answer
from amptui.diagnosis.amp_finding import Subject
from amptui.diagnosis.answer_words import answer_line, finding_words, safe_words
from amptui.records.findings import OLD_STEPS
from amptui.records.run import Record
from tests.builders import fold
from tests.builders import view_of as view_after
from tests.diagnosis import amp_situations as runs
from tests.diagnosis.amp_situations import both, in_float8, in_float16, made, switched, view_of
from tests.telemetry import record_samples as samples


def answer_after(*records: Record) -> AmpAnswer:
    return amp_answer(view_after(*records))


# ------------------------------------------------------------------------------------------- age


@pytest.mark.parametrize(
    ("step", "now", "changes", "is_old"),
    [
        (1, 1 + OLD_STEPS, {}, False),
        (1, 2 + OLD_STEPS, {}, True),
        (590, 1180, {}, False),
        (590, 1181, {}, True),
        (590, 600, {"loss_scale": 1024.0}, True),
    ],
)
def test_a_measurement_is_old_once_as_many_steps_were_made_since_or_at_another_scale(
    step: int, now: int, changes: dict[str, Any], *, is_old: bool
) -> None:
    view = replace(view_of("fp16_agrees"), step=now)
    view = replace(view, numerics=replace(view.numerics, xray=samples.xray(step, **changes)))
    agreement = amp_answer(view).of("agreement")
    assert (agreement.freshness, agreement.age_steps) == ("old" if is_old else "fresh", now - step)
    assert agreement.grade == ("neutral" if is_old else "good")


@pytest.mark.parametrize(
    ("precision", "changes"),
    [
        ("fp16", {"loss_amp": math.nan}),
        ("fp16", {"layers": (samples.layer("a", 0.1),)}),
        ("bf16", {"layers": (samples.layer("a", math.nan),), "loss_scale": None}),
    ],
)
def test_age_makes_no_trouble_safe(precision: str, changes: dict[str, Any]) -> None:
    view = view_after(*both(precision), samples.xray(20, precision=precision, **changes), runs.survives(590))
    answer = amp_answer(view)
    assert (answer.safety, answer.cause) == ("unknown", None)
    assert answer.doubt == answer.of("agreement")
    assert safe_words(answer).endswith(", 580 steps ago")
    assert amp_answer(replace(view, step=30)).safety == "error"


@pytest.mark.parametrize(("scale", "safety"), [(8192.0, "warning"), (2.0**20, "unknown")])
def test_underflow_stays_an_alarm_where_the_scale_has_fallen(scale: float, safety: str) -> None:
    answer = answer_after(*both(), in_float16(0.5, 600), *made(601, 601, "fp16", loss_scale=scale))
    assert answer.safety == safety
    assert (answer.cause or answer.doubt) == answer.of("float16")
    assert ("1 step ago" in safe_words(answer)) == (safety == "unknown")


# ---------------------------------------------------------------------- whose precision's trouble it is

IN_FP32 = [*runs.started(amp_precision="bf16"), *made(1, 50), *made(51, 60, loss=math.nan)]
LOST = samples.traced(60, precision="fp32", loss_scale=None, lost=("head.weight",), lost_count=1)
BUFFERS = samples.nonfinite(590, what="buffer", names=("bn.running_var",))
BEYOND = samples.traced(590, precision="bf16", loss_scale=None, nearest=(samples.module(largest=1e6),))
TRAINS = [*switched(83, "fp16", "bf16"), *made(83, 150, "bf16")]


@pytest.mark.parametrize(
    ("records", "line", "subject", "grade", "words"),
    [
        (IN_FP32, "FP32: ✖ the loss is nan in FP32", "loss", "error", "the loss is nan in FP32"),
        (
            [
                *(*IN_FP32, LOST, *switched(61, "fp32", "bf16")),
                *made(61, 90, "bf16", loss=math.nan, nonfinite_gradients=2),
            ],
            "FP32: ✖ weights hold NaN or Inf in head.weight",
            *("loss", "error", "the loss is nan in FP32"),
        ),
        (
            [*both("bf16"), samples.dropped(600)],
            "the speed of FP32; ⚠ the loss of a batch was nan: no step was made of it",
            *("loss", "warning", "the loss of a batch was nan: no step was made of it"),
        ),
        (
            [*runs.never_tried(), samples.dropped(50)],
            "FP32: ⚠ the loss of a batch was nan: no step was made of it",
            *("weights", "good", "finite"),
        ),
        (
            [*both("bf16"), BUFFERS, *made(601, 5000, "bf16")],
            "the speed of FP32; ✖ buffers hold NaN or Inf in bn.running_var",
            *("weights", "error", "buffers hold NaN or Inf in bn.running_var"),
        ),
        (
            [*both("bf16"), BEYOND, samples.xray(591, precision="bf16", loss_scale=None)],
            "the speed of FP32; ✔ safe: gradients agree, no NaN or Inf",
            *("forward", "neutral", "fp16 would overflow in features.12.conv"),
        ),
        (
            [*runs.started("fp16"), *runs.skipped(1, 20), *made(21, 82, "fp16", loss_scale=0.06), *TRAINS],
            "AMP bf16: never compared with FP32; ✔ no trouble in 68 steps",
            *("float16", "neutral", "the loss scale collapsed in fp16: 0.0600"),
        ),
    ],
)
def test_a_trouble_is_of_the_precision_in_which_it_began(
    records: list[Record], line: str, subject: Subject, grade: str, words: str
) -> None:
    answer = answer_after(*records)
    assert answer_line(answer).endswith(line)
    assert line.startswith("the speed") or answer_line(answer) == line
    began_elsewhere = line.startswith("FP32")
    assert ((answer.safety, answer.cause) == ("unknown", None)) == began_elsewhere
    finding = answer.of(subject)
    assert (finding.grade, finding_words(finding)) == (grade, words)


# ------------------------------------------------------------------- what is missing, and what gets it


def test_a_precision_in_its_first_step_has_no_speed_yet_and_no_key_that_tries_it() -> None:
    before = [*runs.started(), *made(1, 300)]
    speed = amp_answer(view_after(*before), "bf16").of("speed")
    assert (speed.state, speed.measured_by) == ("never ran", "precision")
    speed = amp_answer(view_after(*before, *switched(301, "fp32", "bf16")), "bf16").of("speed")
    assert (speed.state, speed.measured_by) == ("no steps", "comparison")


def test_what_runs_is_safe_so_far_and_only_what_does_not_would_be() -> None:
    foretold = amp_answer(view_of("foretold_by_xray"))
    assert safe_words(foretold) == "would be safe: gradients agree"
    assert safe_words(replace(foretold, steps=3)) == "safe so far: gradients agree"


@pytest.mark.parametrize(("baseline", "low"), [("fp32", "bf16"), ("bf16", "fp8")])
def test_a_log_does_not_repeat_the_answer_with_each_block(baseline: str, low: str) -> None:
    session = fold(in_float8("fp8") if low == "fp8" else both("bf16"))
    rows = (samples.measured(baseline), samples.measured(low, speedup=1.3, speedup_low=1.2, speedup_high=1.4))
    test = samples.compared(900, baseline=baseline, rows=rows, over=False, reason="running", chosen=low)
    start = 901 if low == "fp8" else 601
    session.fold([samples.xray(start - 10, precision=low, loss_scale=None), test])
    keys, previous = set(), low
    for block in range(6):
        name, first = (baseline, low)[block % 2], start + 20 * block
        session.fold([*switched(first, previous, name), *made(first, first + 19, name)])
        previous = name
        answer = amp_answer(session.view())
        assert (answer.precision, answer.safety, answer.worth) == (low, "safe", "faster")
        keys.add(answer.headline_key)
    assert len(keys) == 1
