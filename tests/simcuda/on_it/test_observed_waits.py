"""A hand-written loop on the device waits no more often with a monitor than without."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import amptui
from amptui.records import StepRecord
from amptui.runs.journal import read
from tests.observed import Loop

STEPS = 40


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_observing_adds_no_wait_and_sees_every_step(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    loop = Loop(precision, fused=True, device="cuda")
    loop.train_step(1)  # torch's own first calls may wait
    with amptui.observe(loop.model, loop.optimizer, loop.scaler) as monitor:
        loop.train_step(2)

        def log(loss: Tensor) -> Tensor:
            monitor.log(again=loss)
            return loss

        torch.cuda.set_sync_debug_mode("error")
        try:
            losses = [log(loop.train_step(step)) for step in range(3, STEPS + 2)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    (run,) = (tmp_path / "amptui" / "runs").iterdir()
    steps = [record for record in read(run / "journal.jsonl") if isinstance(record, StepRecord)]
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    assert [record.loss for record in steps[1:]] == pytest.approx([loss.item() for loss in losses])
    assert [record.losses["again"] for record in steps[3:]] == [record.loss for record in steps[3:]]
    assert {record.precision for record in steps} == {precision}
    assert all(record.step_seconds is not None for record in steps[1:])
    assert steps[1].grad_norm is not None
