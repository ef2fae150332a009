"""What is said of skips and of NaN: calm about what is normal, plain about what is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.health import Verdict, judge_nonfinite, judge_skip, named, what_is_not_finite
from tests.telemetry.record_samples import nonfinite, skip


def judged(
    *,
    scale_after: float | None = 65536.0,
    skips_before: int = 10,
    scale_has_grown: bool = True,
    **changes: object,
) -> Verdict:
    return judge_skip(
        skip(600, **changes),
        scale_after=scale_after,
        skips_before=skips_before,
        scale_has_grown=scale_has_grown,
    )


@pytest.mark.parametrize("skips_before", [0, 1, 3])
def test_the_first_skips_from_the_initial_scale_are_calibration(skips_before: int) -> None:
    verdict = judged(skips_before=skips_before, consecutive=skips_before + 1, scale_has_grown=False)
    assert verdict == Verdict("info", "calibration, normal")


def test_a_skip_after_the_scale_has_grown_is_no_calibration_but_normal() -> None:
    assert judged(skips_before=0) == Verdict("info", "normal")
    assert judged(skips_before=4, scale_has_grown=False) == Verdict("info", "normal")


@pytest.mark.parametrize("scale_has_grown", [True, False])
def test_five_skips_in_a_row_are_a_warning_that_names_the_layer(scale_has_grown: bool) -> None:
    assert judged(consecutive=4).severity == "info"
    verdict = judged(consecutive=5, scale_has_grown=scale_has_grown)
    assert verdict.severity == "warning"
    assert verdict.text.endswith("switch to bf16 or FP32; look at features.13.conv")


def test_a_scale_below_one_is_an_error() -> None:
    assert judged(scale_after=1.0).severity == "info"
    verdict = judged(scale_after=0.5)
    assert verdict.severity == "error"
    assert "switch to bf16 or FP32; look at features.13.conv" in verdict.text
    assert judged(scale_after=None, loss_scale=0.0).severity == "error"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_skip_with_a_non_finite_loss_is_beyond_scaling(loss: float) -> None:
    verdict = judged(loss=loss, skips_before=0, scale_has_grown=False)
    assert verdict == Verdict("warning", "the forward pass overflowed: scaling cannot help; use bf16 or FP32")
    assert judged(loss=loss, consecutive=5).severity == "error"


@given(
    consecutive=st.integers(1, 10),
    scale=st.floats(0, 65536),
    skips_before=st.integers(0, 10),
    loss=st.none() | st.floats(),
)
def test_a_longer_row_or_a_lower_scale_is_never_less_severe(
    consecutive: int, scale: float, skips_before: int, loss: float | None
) -> None:
    ranks = ["info", "warning", "error"]

    def rank(row: int, scale_after: float) -> int:
        verdict = judged(consecutive=row, scale_after=scale_after, skips_before=skips_before, loss=loss)
        return ranks.index(verdict.severity)

    assert rank(consecutive + 1, scale) >= rank(consecutive, scale)
    assert rank(consecutive, scale / 2) >= rank(consecutive, scale)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", None])
def test_a_poisoned_buffer_is_an_error_in_every_precision(precision: str | None) -> None:
    assert judge_nonfinite(nonfinite(1, what="buffer"), precision).severity == "error"


@pytest.mark.parametrize("what", ["loss", "gradient", "activation"])
def test_what_the_scaler_guards_is_a_warning_and_an_error_elsewhere(what: str) -> None:
    assert judge_nonfinite(nonfinite(1, what=what), "fp16").severity == "warning"
    for precision in ("fp32", "ieee", "tf32", "bf16", None):
        assert judge_nonfinite(nonfinite(1, what=what), precision).severity == "error"


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
    assert "look at" not in judged(consecutive=5, names=()).text
    assert judged(consecutive=5, names=("weight",)).text.endswith("look at weight")
