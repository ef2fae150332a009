"""What a run says of gradient norms, the loss scale, NaN and losses that it cannot use, on a CPU."""

import math
import re
from typing import Any

import pytest
from torch import nn

from amptui.base.errors import ExperimentError
from amptui.engine.divergence_guard import MIN_LOSS_SCALE
from amptui.records.control import Control, PauseRequest, PrecisionRequest
from amptui.records.run import (
    LossScaleChanged,
    NonFinite,
    PauseChanged,
    PrecisionChanged,
    Record,
    StepSkipped,
)
from amptui.records.steps import StepRecord
from tests.tiny import Exploding, Log, Spoiled, Tiny, log_of, prepare, stopping, train


@pytest.mark.parametrize("clip_norm", [None, 1e6])
def test_the_norm_in_fp16_is_unscaled(clip_norm: float | None) -> None:
    full, half = Log(), Log()
    train(prepare(Tiny(), steps=1), full)
    train(prepare(Tiny(), steps=1, precision="fp16", clip_norm=clip_norm), half)
    norms = [log.of(StepRecord)[0].grad_norm for log in (full, half)]
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def test_fp16_skips_where_gradients_overflow_and_applies_once_the_scale_fits() -> None:
    prepared = prepare(Exploding(epochs=8), precision="fp16")
    log = log_of(prepared)
    steps, skips = log.of(StepRecord), log.of(StepSkipped)
    assert skips
    assert [skip.consecutive for skip in skips[:3]] == [1, 2, 3][: len(skips)]
    assert steps[0].skipped
    assert steps[0].loss_scale == 65536
    assert not steps[-1].skipped
    assert skips[0].count
    assert skips[0].names[0] in dict(prepared.model.named_parameters())
    backoffs = [change for change in log.of(LossScaleChanged) if change.reason == "backoff"]
    assert [change.step for change in backoffs] == [skip.step for skip in skips]
    assert all(change.current == change.previous / 2 for change in backoffs)
    assert log.of(NonFinite) == []
    assert steps[-1].loss_scale == prepared.scaler.get_scale()


def test_nan_is_told_with_the_names_of_the_gradients() -> None:
    prepared = prepare(Spoiled(at=3, epochs=2), precision="bf16")
    log = Log()
    with pytest.raises(ExperimentError, match=r"nan since step 3\b"):
        train(prepared, log)
    nonfinite = log.of(NonFinite)
    assert (nonfinite[0].step, nonfinite[0].what, nonfinite[0].kind) == (3, "loss", "nan")
    gradients = next(record for record in nonfinite if record.what == "gradient")
    assert gradients.step in (3, 4)  # at once if that step's gradients were measured anyhow
    assert gradients.kind == "nan"
    assert set(gradients.names) <= set(dict(prepared.model.named_parameters()))
    assert gradients.count == len(list(prepared.model.parameters()))


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


def test_a_collapsed_scale_pauses_an_attended_run_which_another_precision_saves() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PauseChanged) and record.paused:
            control.ask(PrecisionRequest("bf16"))
        if isinstance(record, PrecisionChanged):
            control.ask(PauseRequest(False))

    log = Log(watch)
    prepared = prepare(Spoiled(at=1, steps=41, value=math.inf, epochs=20), precision="fp16", steps=60)
    assert train(prepared, log, control, interactive=True) == "done"
    assert log.of(PauseChanged)[0].cause == "loss scale"
    assert log.of(StepRecord)[-1].precision == "bf16"


def returning(value: Any) -> Tiny:
    class Bad(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            return value(model(batch[0]))

    return Bad()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda out: out, r"Bad.loss\(\) returned a tensor of shape 8x4; reduce it to a scalar"),
        (lambda out: out.sum().item(), r"Bad.loss\(\) returned a float; return a scalar tensor"),
        (lambda out: None, r"Bad.loss\(\) returned None; return a scalar tensor"),
        (lambda out: out.sum().detach(), r"Bad.loss\(\) returned a tensor that does not require a gradient"),
        (lambda out: {"loss": out.sum(), "a": out}, r"'a' from Bad.loss\(\) has shape 8x4; reduce it"),
        (lambda out: {"loss": out.sum(), "a": 1.0}, r"'a' from Bad.loss\(\) is a float; make it a scalar"),
        (lambda out: {"a": out.sum()}, r"Bad.loss\(\) returned a dict without 'loss'; name the total"),
    ],
)
def test_a_loss_that_no_step_can_use_is_told_in_one_line(value: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        train(prepare(returning(value)), Log())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gradients_too_dear_to_measure_are_measured_where_trouble_is(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amptui.engine.probes.gradient_norms.GRADIENTS_BUDGET", 0.0)
    log, control = Log(), Control()
    log.watch = stopping(control, 5)
    train(prepare(Spoiled(at=4), precision=precision), log, control)
    norms = [record.grad_norm for record in log.of(StepRecord)]
    assert norms[0] is not None  # the first two tell what one costs
    assert norms[2] is None
    skipped_or_found: list[StepSkipped | NonFinite] = [*log.of(StepSkipped)]
    skipped_or_found += [record for record in log.of(NonFinite) if record.what == "gradient"]
    # A skipped step has its own gradients left to look at; else the loss tells that the next one's matter.
    at = 4 if precision == "fp16" else 5
    assert skipped_or_found[0].step == at
    assert skipped_or_found[0].names
    assert math.isnan(norms[at - 1] or 0.0)


def test_clipping_measures_every_step_whatever_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amptui.engine.probes.gradient_norms.GRADIENTS_BUDGET", 0.0)
    log = log_of(prepare(Tiny(), clip_norm=0.01))
    assert all(record.grad_norm is not None for record in log.of(StepRecord))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda out: {"accuracy": out}, r"'accuracy' from Bad.metrics\(\) has shape 8x4"),
        (lambda out: out.sum(), r"Bad.metrics\(\) returned a Tensor; return a dict of scalar"),
    ],
)
def test_metrics_that_are_no_scalars_are_told_in_one_line(value: Any, message: str) -> None:
    class Bad(Tiny):
        def metrics(self, model: nn.Module, batch: Any) -> Any:
            return value(model(batch[0]))

    with pytest.raises(ExperimentError, match=message):
        train(prepare(Bad(epochs=1)), Log())
