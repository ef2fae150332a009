"""A run whose weights hold NaN is not trained to its end: within ten steps it fails, or pauses and asks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from amptui.base.errors import ExperimentError
from amptui.engine.checkpoint.file import checkpoints
from amptui.engine.divergence_guard import HOPELESS_STEPS, SUSPECT_STEPS
from amptui.records.control import Control, PauseRequest, StopRequest
from amptui.records.findings import ModulesTraced
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import NonFinite, PauseChanged, Record
from amptui.records.steps import StepRecord
from tests.tiny import Log, Spoiled, Tiny, losses, prepare, resume, train

WITHIN_STEPS = 10


def spoiled_params(prepared: Any) -> int:
    return sum(bool(parameter.isnan().any()) for parameter in prepared.model.parameters())


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["fp32", "ieee", "bf16"])
@settings(max_examples=8)
@given(at=st.integers(2, 40))
def test_a_non_interactive_run_fails_within_ten_steps_and_names_the_checkpoint(
    precision: str, at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    log = Log()
    with pytest.raises(ExperimentError, match=f"the loss has been nan since step {at}, and ") as failed:
        train(prepare(Spoiled(at=at), precision=precision), log, checkpoints=folder)
    assert at < len(losses(log)) <= at + WITHIN_STEPS
    assert next(r.step for r in log.of(NonFinite) if r.what == "loss") == at
    assert log.of(ModulesTraced)
    written = checkpoints(folder)
    if written:
        assert f"{written[0].name}: amptui train --resume" in failed.value.hint
        assert int(written[0].stem.removeprefix("step-")) < at
        # From there another training of it goes on to its end.
        again = Log()
        assert resume(prepare(Spoiled(at=1000), precision=precision), folder, again) == "done"
        assert all(math.isfinite(loss or math.nan) for loss in losses(again))
    else:
        assert at <= 8
        assert "there is no earlier checkpoint" in failed.value.hint


@pytest.mark.parametrize(("answer", "last"), [("stop", "stopped"), ("go on", "done")])
def test_an_interactive_run_pauses_once_and_names_the_checkpoint(
    answer: str, last: str, tmp_path: Path
) -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PauseChanged) and record.paused:
            if answer == "stop":
                control.ask(StopRequest("the person"))
            control.ask(PauseRequest(False))

    log = Log(watch)
    prepared = prepare(Spoiled(), precision="bf16")
    assert train(prepared, log, control, interactive=True, checkpoints=tmp_path) == last
    pauses = [record for record in log.of(PauseChanged) if record.paused]
    assert [record.cause for record in pauses] == ["weights"]
    assert pauses[0].step <= 12 + WITHIN_STEPS
    assert "parameters contain NaN" in pauses[0].reason
    assert len(losses(log)) == (64 if answer == "go on" else pauses[0].step)
    # What came after the NaN did not push out what is good.
    assert [record.name for record in log.of(CheckpointWritten)] == ["step-000000008.pt"]
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000008.pt"]
    told = [change.trouble for change in log.of(KeepingChanged)]
    assert answer == "stop" or "contains NaN (earlier checkpoints are kept)" in told[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("steps", [1, 2 * SUSPECT_STEPS + 1])
def test_nonfinite_losses_alone_do_not_end_a_run(value: float, steps: int) -> None:
    log, prepared = Log(), prepare(Spoiled(value=value, steps=steps, weights_too=False))
    assert train(prepared, log) == "done"
    assert len(losses(log)) == 64
    assert len([record for record in log.of(NonFinite) if record.what == "loss"]) == steps
    assert spoiled_params(prepared) == 0


@pytest.mark.parametrize("interactive", [False, True])
def test_a_run_without_a_finite_loss_fails_with_the_mend_and_asks_nobody(
    interactive: bool,
) -> None:
    log = Log()
    with pytest.raises(ExperimentError, match=r"the loss has been nan since step 1, and 6 of 6 .*--lr"):
        train(prepare(Spoiled(at=1, steps=1000)), log, interactive=interactive)
    assert len(losses(log)) == SUSPECT_STEPS


@pytest.mark.parametrize("after", range(SUSPECT_STEPS))
def test_a_run_that_diverges_at_the_end_fails(after: int) -> None:
    log = Log()
    with pytest.raises(ExperimentError, match="the loss has been nan since step 12, and 6 of 6 parameters"):
        train(prepare(Spoiled(), steps=12 + after), log, interactive=after + 1 < SUSPECT_STEPS)
    assert len(losses(log)) == 12 + after


def test_ten_first_nonfinite_losses_end_a_run_with_finite_weights() -> None:
    log = Log()
    with pytest.raises(ExperimentError, match="the loss has been inf since step 1; check the inputs"):
        train(prepare(Spoiled(at=1, steps=1000, weights_too=False, value=math.inf)), log)
    assert len(losses(log)) == HOPELESS_STEPS


class SpoiledInside(Tiny):
    """A weight becomes NaN after a step that float16's scaler lets pass."""

    epochs: int = 8

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer, weights, calls = super().build_optimizer(model), next(model.parameters()), iter(range(64))

        def spoil(*_: Any) -> None:
            if next(calls) == 11:
                weights.data.fill_(math.nan)

        optimizer.register_step_post_hook(spoil)
        return optimizer


def test_nan_weights_in_fp16_are_not_a_falling_scale() -> None:
    log = Log()
    with pytest.raises(ExperimentError, match="the loss has been nan since step 13, and 1 of 6 parameters"):
        train(prepare(SpoiledInside(), precision="fp16"), log)
    assert 12 < len(log.of(StepRecord)) <= 12 + WITHIN_STEPS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("precision", ["fp32", "ieee", "bf16"])
def test_a_gpu_s_weights_are_checked_in_time_without_waiting(precision: str) -> None:
    log = Log()
    with pytest.raises(ExperimentError, match="the loss has been nan since step 30, and 6 of 6 parameters"):
        train(prepare(Spoiled(at=30), precision=precision, device="cuda"), log)
    assert 30 < len(losses(log)) <= 30 + WITHIN_STEPS
