"""What a run says of gradient norms, the loss scale and NaN, on a CPU."""

import math
import re
from typing import Any

import pytest

from amptui.base.errors import ExperimentError
from amptui.monitor.divergence_guard import MIN_LOSS_SCALE
from amptui.records.control import StopRequest
from amptui.records.run import LossScaleChanged, NonFinite, StepSkipped
from tests.builders import StepRow
from tests.tiny import Exploding, Log, Spoiled, Tiny, log_of, prepare, train


@pytest.mark.parametrize("clip_norm", [None, 1e6])
def test_the_norm_in_fp16_is_unscaled(clip_norm: float | None) -> None:
    full = log_of(prepare(Tiny(), steps=1))
    half = log_of(prepare(Tiny(), steps=1, precision="fp16", clip_norm=clip_norm))
    norms = [log.of(StepRow)[0].grad_norm for log in (full, half)]
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def test_fp16_tells_of_each_skip_and_its_backoff_and_names_a_gradient_that_overflowed() -> None:
    prepared = prepare(Exploding(epochs=8), precision="fp16")
    log = log_of(prepared)
    skips = log.of(StepSkipped)
    assert skips[0].names[0] in dict(prepared.model.named_parameters())
    backoffs = [change for change in log.of(LossScaleChanged) if change.reason == "backoff"]
    assert [change.step for change in backoffs] == [skip.step for skip in skips]
    assert log.of(NonFinite) == []


@pytest.mark.parametrize(
    ("at", "options", "least"),
    [(1, {}, MIN_LOSS_SCALE / 4), (30, {"look_interval_seconds": 1000}, 2.0**-126)],
    ids=["often looked at", "seldom"],
)
def test_a_collapsed_scale_ends_an_unattended_run_before_it_reaches_zero(
    at: int, options: dict[str, Any], least: float
) -> None:
    """Below 2^-126 it would be denormal."""
    prepared = prepare(Spoiled(at=at, steps=1000, value=math.inf, epochs=20), precision="fp16")
    with pytest.raises(ExperimentError) as failed:
        train(prepared, Log(), **options)
    assert re.fullmatch(
        r"the loss scale fell to \S+ after \d+ skipped steps in a row; use --precision bf16 or fp32",
        str(failed.value),
    )
    assert least < prepared.scaler.get_scale() < MIN_LOSS_SCALE


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gradients_too_dear_to_measure_are_measured_where_trouble_is(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amptui.probes.gradients.GRADIENTS_BUDGET", 0.0)
    prepared = prepare(Spoiled(at=4), precision=precision)
    log = log_of(prepared, at={5: StopRequest("the test")})
    norms = [record.grad_norm for record in log.of(StepRow)]
    first = log.of(NonFinite)[0]
    assert (first.step, first.what, first.kind) == (4, "loss", "nan")
    assert norms[0] is not None  # the first two tell what one costs
    assert norms[2] is None
    skipped_or_found: list[StepSkipped | NonFinite] = [*log.of(StepSkipped)]
    skipped_or_found += [record for record in log.of(NonFinite) if record.what == "gradient"]
    # A skipped step has its own gradients left to look at; else the loss tells that the next one's matter.
    at = 4 if precision == "fp16" else 5
    assert skipped_or_found[0].step == at
    assert skipped_or_found[0].count == len(list(prepared.model.parameters()))
    assert set(skipped_or_found[0].names) <= set(dict(prepared.model.named_parameters()))
    assert math.isnan(norms[at - 1] or 0.0)
