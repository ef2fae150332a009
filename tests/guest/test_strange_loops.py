"""Loops that are written in unusual ways: what is shown of their steps is what happened, or nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

import amptui
from amptui.records.control import PrecisionRequest
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.run import RunFailed
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.guest.strange_loops import LOOPS, SGD, SPECIAL, Loop, Optimizer, Training, small_net
from tests.own_loops import ask


@pytest.mark.torch
@pytest.mark.parametrize(
    ("loop", "optimizer", "model"),
    [*((loop, SGD, small_net) for loop in LOOPS), *SPECIAL],
    ids=lambda value: value.__name__,
)
def test_what_is_shown_is_what_happened(
    loop: Loop, optimizer: Optimizer, model: Callable[[], nn.Module], runs: Path
) -> None:
    training = Training(optimizer, model)
    with training.monitor:
        rows = [*loop(training)]
    found = records(runs)
    assert not of(GradientsDropped, found)
    for name in {row.get("optimizer", "") for row in rows}:
        steps = [step for step in of(StepRow, found) if step.optimizer == name]
        for step, row in zip(steps, [row for row in rows if row.get("optimizer", "") == name], strict=True):
            seen = {field: getattr(step, field) for field in row}
            if step.step > 1 and seen.get("grad_norm", 0) is None:
                row["grad_norm"] = None  # not each step's is measured
            assert seen == {
                field: value if value is None or isinstance(value, str) else pytest.approx(value, rel=1e-5)
                for field, value in row.items()
            }


# ------------------------------------------------------------------- what is told beside the steps


def test_what_is_unscaled_without_a_step_has_no_part_in_the_next_one(runs: Path) -> None:
    training, scaler = Training(), GradScaler("cpu", init_scale=4.0)
    with training.monitor:
        for number, batch in enumerate(training.batches(4)):
            if number % 2:
                training.loss(batch).backward()
                training.optimizer.step()
            else:
                scaler.scale(training.loss(batch)).backward()
                scaler.unscale_(training.optimizer)
                scaler.update()
    assert [(step.loss_scale, step.loss_form) for step in of(StepRow, records(runs))] == [(None, "")] * 2


@pytest.mark.parametrize("same_model", [True, False])
def test_an_optimizer_in_the_place_of_another_continues_its_steps(same_model: bool, runs: Path) -> None:
    training, truth = Training(), []
    with training.monitor:
        for phase in range(3):
            if phase:
                training.model = training.model if same_model else small_net()
                training.optimizer = torch.optim.Adam(training.parameters)
            for batch in training.batches():
                loss = training.loss(batch)
                loss.backward()
                training.optimizer.step()
                truth.append(loss.item())
    found = records(runs)
    assert [step.loss for step in of(StepRow, found)] == pytest.approx(truth)
    assert [(r.optimizer, r.step, r.kind, r.replaces) for r in of(OptimizerFollowed, found)] == [
        ("", 3, "Adam", "SGD"),
        ("", 6, "Adam", "Adam"),
    ]


def test_a_pass_that_the_script_dies_of_is_told(runs: Path) -> None:
    training = Training()

    def train() -> None:
        for number, batch in enumerate(training.batches()):
            loss = training.loss(batch) * (1.0 if number < 2 else torch.nan)
            loss.backward()
            if not loss.isfinite():
                raise FloatingPointError
            training.optimizer.step()

    with pytest.raises(FloatingPointError), training.monitor:
        train()
    (dropped,) = of(GradientsDropped, records(runs))
    assert (dropped.step, dropped.passes, str(dropped.loss)) == (2, 1, "nan")


def test_a_step_that_fails_right_after_a_switch_says_so(runs: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    monitor = amptui.watch(model, torch.optim.SGD(model.parameters(), lr=0.01), precision="bf16")

    def train() -> None:
        state = torch.zeros(4, 4, dtype=torch.bfloat16)
        while True:
            with monitor.autocast():
                output = model(torch.ones(4, 4))
            loss = (state @ output).square().mean()
            state = output.detach()  # in the precision of this step
            monitor.backward(loss)
            monitor.step()
            ask(monitor, PrecisionRequest("fp32"))

    with pytest.raises(RuntimeError, match="dtype"), monitor:
        train()
    (failed,) = of(RunFailed, records(runs))
    assert "the first step after the switch to fp32: cast or reset what the loop carries" in failed.error
