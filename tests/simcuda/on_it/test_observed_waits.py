"""A hand-written loop on the device waits no more often with a monitor than without."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import amptui
from amptui.records.control import PrecisionRequest
from tests.builders import StepRow, of, recorded
from tests.observed import Loop
from tests.own_loops import FORMS, Form, Own

STEPS = 40

SWITCHES = {12: "bf16", 24: "fp16", 50: "ieee", 60: "fp16"}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_observing_adds_no_wait_and_sees_every_step(precision: str, runs: Path) -> None:
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
    steps = of(StepRow, recorded(runs))
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    assert [record.loss for record in steps[1:]] == pytest.approx([loss.item() for loss in losses])
    assert [record.losses["again"] for record in steps[3:]] == [record.loss for record in steps[3:]]
    assert {record.precision for record in steps} == {precision}
    assert all(record.step_seconds is not None for record in steps[1:])
    assert steps[1].grad_norm is not None


@pytest.mark.parametrize("form", FORMS)
def test_watching_adds_no_wait_in_any_precision(form: Form, runs: Path) -> None:
    asks = {step: PrecisionRequest(name) for step, name in SWITCHES.items()}

    def before(step: int) -> None:
        torch.cuda.set_sync_debug_mode("default")
        # The step after a switch may wait: copies are made to return to, kernels are loaded.
        if step > 2 and not {step, step - 1, step - 2} & set(SWITCHES):
            torch.cuda.set_sync_debug_mode("error")

    own = Own(fused=True, clip_norm=0.5, device="cuda")
    with own.watch() as monitor:
        try:
            own.watched(monitor, form, 80, before, asks)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert monitor.precision == "fp16"
    steps = of(StepRow, recorded(runs))
    assert [record.step for record in steps] == list(range(1, 81))
    assert {record.precision for record in steps} == {"fp32", "bf16", "fp16", "ieee"}
    assert all(record.loss is not None for record in steps)
