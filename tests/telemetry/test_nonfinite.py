"""What is said of NaN and Inf: what holds them, and plainly what to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records import NonFiniteKind
from amptui.telemetry.nonfinite import by_module, found_line, judge_nonfinite, named, what_is_not_finite
from tests.telemetry.record_samples import nonfinite


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", None])
def test_a_poisoned_buffer_is_an_error_in_every_precision(precision: str | None) -> None:
    judgement = judge_nonfinite(nonfinite(1, what="buffer"), precision)
    assert judgement.verdict.severity == "error"
    assert "the scaler does not check them" in judgement.explanation


@pytest.mark.parametrize("what", ["loss", "gradient", "activation"])
def test_what_the_scaler_guards_is_a_warning_and_an_error_elsewhere(what: str) -> None:
    assert judge_nonfinite(nonfinite(1, what=what), "fp16").verdict.severity == "warning"
    for precision in ("fp32", "ieee", "tf32", "bf16", None):
        assert judge_nonfinite(nonfinite(1, what=what), precision).verdict.severity == "error"


@pytest.mark.parametrize("what", ["loss", "gradient", "activation", "buffer"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_every_trouble_is_explained_in_one_to_three_sentences(what: str, precision: str) -> None:
    explanation = judge_nonfinite(nonfinite(1, what=what), precision).explanation
    assert 1 <= explanation.count(". ") + 1 <= 3
    assert explanation.endswith(".")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "the loss is NaN"),
        ({"kind": "inf"}, "the loss is Inf"),
        (
            {"what": "gradient", "names": ("a.weight", "b"), "count": 3},
            "NaN in the gradient of a.weight (+2)",
        ),
        ({"what": "buffer", "names": ("bn.running_var",)}, "NaN in the buffer bn.running_var"),
        ({"what": "activation", "names": ("a",), "kind": "inf"}, "Inf in the output of a"),
    ],
)
def test_what_is_not_finite_is_named(changes: dict[str, object], text: str) -> None:
    assert what_is_not_finite(nonfinite(1, **changes)) == text


def test_without_names_there_is_still_a_count() -> None:
    assert named((), 1200) == "1,200 tensors"


@pytest.mark.parametrize(
    ("names", "kinds", "count", "text"),
    [
        ((), (), 3, ""),
        (("a.weight",), ("inf",), 1, "Inf in a (weight)"),
        (
            ("a.b.weight", "a.b.bias", "c.weight", "scale"),
            ("nan", "nan", "inf", "inf"),
            7,
            "NaN in a.b (weight, bias); Inf in c (weight), the model (scale); 3 more",
        ),
        (("a.weight", "b.weight"), (), None, "NaN or Inf in a (weight), b (weight)"),
    ],
)
def test_parameters_are_told_by_what_they_hold_and_by_their_module(
    names: tuple[str, ...], kinds: tuple[NonFiniteKind, ...], count: int | None, text: str
) -> None:
    assert by_module(names, kinds, count) == text


NAMES = st.from_regex(r"[a-c](\.[a-c]){0,2}", fullmatch=True)


@given(found=st.lists(st.tuples(NAMES, st.sampled_from(["nan", "inf"]))))
def test_every_name_is_told_once(found: list[tuple[str, NonFiniteKind]]) -> None:
    names, kinds = [name for name, _ in found], [kind for _, kind in found]
    text = by_module(names, kinds, len(found))
    inside = [part.partition(")")[0].split(", ") for part in text.split("(")[1:]]
    assert sorted(name for part in inside for name in part) == sorted(n.rpartition(".")[2] for n in names)
    assert ("NaN in" in text, "Inf in" in text) == ("nan" in kinds, "inf" in kinds)


def test_a_step_is_told_with_what_was_found_in_it() -> None:
    buffers = nonfinite(612, what="buffer", names=("bn.running_mean",), kinds=("nan",))
    assert found_line(buffers) == "step 612: NaN in bn (running_mean)"
    assert found_line(nonfinite(612, what="activation", names=("a.conv", "b"))) == "step 612: a.conv, b"
    assert found_line(nonfinite(612)) == ""
