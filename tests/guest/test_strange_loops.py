"""Loops that are written in unusual ways: what is shown of their steps is what happened, or nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss, relu

import amptui
from amptui.records.control import PrecisionRequest
from amptui.records.own_loop import GradientsDropped
from amptui.records.run import RunFailed
from amptui.records.steps import StepRecord
from tests.builders import of
from tests.builders import recorded as records
from tests.own_loops import ask

Row = dict[str, Any]
"""Fields of a step as the loop itself knows them; None for what cannot be known from outside."""


class Training:
    """A small model with its optimizer, watched from the first loop on."""

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = optimizer(self.parameters, lr=0.01)
        self.monitor = amptui.observe(self.model, self.optimizer)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self.model.parameters()]

    @property
    def norm(self) -> float:
        return float(nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]))

    def batches(self, count: int = 3) -> Iterator[tuple[Tensor, Tensor]]:
        numbers = torch.Generator().manual_seed(1)
        for _ in range(count):
            self.optimizer.zero_grad()
            inputs = torch.randn(4, 16, generator=numbers)
            yield inputs, inputs[:, :1]


def loss_changed_in_place(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        loss = mse_loss(training.model(x), y)
        yield {"loss": loss.item()}
        loss.backward()
        loss *= 4
        training.optimizer.step()


def logged_tensor_changed_in_place(training: Training) -> Iterator[Row]:
    total = torch.zeros(())
    for x, y in training.batches():
        loss = mse_loss(training.model(x), y)
        loss.backward()
        total += loss.detach()
        training.optimizer.step()
        training.monitor.log(total=total)
        yield {"losses": {"total": total.item()}}
        total.zero_()


def gradients_of_two_tasks_added(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        parts = []
        for target in (y, -y):
            training.optimizer.zero_grad()
            mse_loss(training.model(x), target).backward()
            parts.append([p.grad for p in training.parameters])
        for parameter, *gradients in zip(training.parameters, *parts, strict=True):
            parameter.grad = sum(gradients)
        training.optimizer.step()
        yield {"loss": None, "loss_form": "edited", "grad_norm": None}


def scaled_by_hand(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        (mse_loss(training.model(x), y) * 128).backward()
        for parameter in training.parameters:
            assert parameter.grad is not None
            parameter.grad /= 128
        training.optimizer.step()
        yield {"loss": None, "loss_form": "scaled", "grad_norm": None}


def divided_and_clipped(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        loss = mse_loss(training.model(x), y)
        loss.backward()
        for parameter in training.parameters:
            assert parameter.grad is not None
            parameter.grad /= 8
        nn.utils.clip_grad_norm_(training.parameters, 1.0)
        training.optimizer.step()
        yield {"loss": loss.item(), "grad_norm": None}


def clipped_by_torch(training: Training) -> Iterator[Row]:
    for number, (x, y) in enumerate(training.batches()):
        loss = mse_loss(training.model(x), y)
        loss.backward()
        norm = training.norm
        nn.utils.clip_grad_norm_(training.parameters, norm / 2)
        training.optimizer.step()
        yield {
            "loss": loss.item(),
            **({"grad_norm": norm} if not number else {}),
        }  # later ones as time allows


def scaler_called_with_a_loss_scaled_by_hand(training: Training) -> Iterator[Row]:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(torch.zeros(()))
    for x, y in training.batches():
        (mse_loss(training.model(x), y) * scaler.get_scale()).backward()
        scaler.step(training.optimizer)
        scaler.update()
        yield {"loss": None, "loss_form": "scaled", "loss_scale": 256.0, "grad_norm": None}


def last_layer(parameters: list[nn.Parameter], lr: float) -> torch.optim.SGD:
    return torch.optim.SGD(parameters[2:], lr=lr)


def groups_added_later(training: Training) -> Iterator[Row]:
    for number, (x, y) in enumerate(training.batches()):
        if number == 1:
            training.optimizer.add_param_group({"params": training.parameters[:2]})
        mse_loss(training.model(x), y).backward()
        groups = training.optimizer.param_groups
        norm = float(nn.utils.get_total_norm([p.grad for group in groups for p in group["params"]]))
        training.optimizer.step()
        yield {"grad_norm": norm}


class TwiceAdam(torch.optim.Adam):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        super().step(closure)


def a_step_of_two_steps(training: Training) -> Iterator[Row]:
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # from now on torch calls hooks in Adam's own step
    for x, y in training.batches():
        loss = mse_loss(training.model(x), y)
        loss.backward()
        training.optimizer.step()
        yield {"loss": loss.item(), "loss_form": ""}


class Halving(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            torch._foreach_add_(
                [p.data for p in group["params"]], [p.grad for p in group["params"]], alpha=-group["lr"]
            )
            group["lr"] /= 2


def a_rate_that_the_step_changes(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        mse_loss(training.model(x), y).backward()
        yield {"lr": training.optimizer.param_groups[0]["lr"]}
        training.optimizer.step()


def a_gradient_to_begin_with(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        loss = mse_loss(training.model(x), y)
        loss.backward(torch.tensor(1.0))
        training.optimizer.step()
        yield {"loss": loss.item(), "loss_form": ""}


def casts_without_autocast(training: Training) -> Iterator[Row]:
    weight, bias, *last = training.parameters
    for number, (x, y) in enumerate(training.batches(40)):
        dtype = torch.bfloat16 if number >= 30 else torch.float32
        hidden = relu(linear(x.to(dtype), weight.to(dtype), bias.to(dtype)))
        output = linear(hidden.float(), *last)
        mse_loss(output, y).backward()
        training.optimizer.step()
        yield {"precision": "bf16" if number >= 30 else "fp32"}


def as_many_operations_in_either_precision(training: Training) -> Iterator[Row]:
    weight, bias, *_ = training.parameters
    for number, (x, y) in enumerate(training.batches(40)):
        is_low = number >= 30 and number % 2 == 1
        if is_low:
            hidden = linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).float()
        else:
            hidden = linear(x, weight, bias).relu().sin().tanh()
        mse_loss(hidden[:, :1], y).backward()
        training.optimizer.step()
        yield {"precision": "bf16" if is_low else "fp32"}


class Hidden(torch.autograd.Function):
    """Multiplies in bfloat16 and shows float32 on both sides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (x.bfloat16() @ weight.bfloat16().T).float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x


def a_function_that_hides_what_it_computes(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        mse_loss(Hidden.apply(x, training.parameters[0])[:, :1], y).backward()
        training.optimizer.step()
        yield {"precision": "unknown"}


def passes_within_a_pass(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        loss = mse_loss(training.model(x), y).detach().requires_grad_()

        def run_again(gradient: Tensor, x: Tensor = x, y: Tensor = y) -> None:
            with torch.enable_grad():
                with torch.autocast("cpu", torch.bfloat16):
                    output = training.model(x)
                (mse_loss(output.float(), y) * gradient).backward()

        loss.register_hook(run_again)
        loss.backward()
        training.optimizer.step()
        yield {"loss": loss.item(), "precision": "bf16"}


LOOPS: dict[Callable[[Training], Iterator[Row]], Callable[..., torch.optim.Optimizer]] = {
    loss_changed_in_place: torch.optim.SGD,
    logged_tensor_changed_in_place: torch.optim.SGD,
    gradients_of_two_tasks_added: torch.optim.SGD,
    scaled_by_hand: torch.optim.SGD,
    divided_and_clipped: torch.optim.SGD,
    clipped_by_torch: torch.optim.SGD,
    scaler_called_with_a_loss_scaled_by_hand: torch.optim.SGD,
    groups_added_later: last_layer,
    a_step_of_two_steps: TwiceAdam,
    a_rate_that_the_step_changes: Halving,
    a_gradient_to_begin_with: torch.optim.SGD,
    casts_without_autocast: torch.optim.SGD,
    as_many_operations_in_either_precision: torch.optim.SGD,
    a_function_that_hides_what_it_computes: torch.optim.SGD,
    passes_within_a_pass: torch.optim.SGD,
}
"""With the optimizer of each."""


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_what_is_shown_is_what_happened(loop: Callable[[Training], Iterator[Row]], runs: Path) -> None:
    training = Training(LOOPS[loop])
    with training.monitor:
        rows = [*loop(training)]
    steps = of(StepRecord, records(runs))
    assert len(steps) == len(rows)
    for step, row in zip(steps, rows, strict=True):
        seen = {name: getattr(step, name) for name in row}
        if step.step > 1 and seen.get("grad_norm", 0) is None:
            row["grad_norm"] = None  # not each step's is measured
        assert seen == {
            name: value if value is None or isinstance(value, str) else pytest.approx(value, rel=1e-5)
            for name, value in row.items()
        }


def test_a_pass_that_the_script_dies_of_is_told(runs: Path) -> None:
    training = Training()

    def train() -> None:
        for number, (x, y) in enumerate(training.batches()):
            loss = mse_loss(training.model(x), y) * (1.0 if number < 2 else torch.nan)
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
