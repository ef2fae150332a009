"""Loops that are written in unusual ways: what is shown of their steps is what happened, or nothing.

What many people write is generated in ``tests/loops``.
"""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss, relu

import amptui
from amptui.records.answers import RequestMade
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.run import RunFailed
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.own_loops import ask

Row = dict[str, Any]
"""Fields of a step as the loop itself knows them; None for what cannot be known from outside."""

Batch = tuple[Tensor, Tensor]


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))


def deep_net() -> nn.Module:
    """Of so many parameters that not all of them are looked at."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(16, 1))


class Training:
    """A small model with its optimizer, watched from the first loop on."""

    def __init__(
        self,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        model: Callable[[], nn.Module] = small_net,
    ) -> None:
        torch.manual_seed(0)
        self.model = model()
        self.optimizer: Any = optimizer(self.parameters, lr=0.01)
        self.monitor = amptui.observe(self.model, self.optimizer)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self.model.parameters()]

    @property
    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def batches(self, count: int = 3) -> Iterator[Batch]:
        numbers = torch.Generator().manual_seed(1)
        for _ in range(count):
            self.optimizer.zero_grad()
            inputs = torch.randn(4, 16, generator=numbers)
            yield inputs, inputs[:, :1]

    def loss(self, batch: Batch) -> Tensor:
        return mse_loss(self.model(batch[0]), batch[1])


# ----------------------------------------------------------------------------------- whose loss it is


def loss_changed_in_place(training: Training) -> Iterator[Row]:
    for batch in training.batches():
        loss = training.loss(batch)
        yield {"loss": loss.item()}
        loss.backward()
        loss *= 4
        training.optimizer.step()


def logged_tensor_changed_in_place(training: Training) -> Iterator[Row]:
    total = torch.zeros(())
    for batch in training.batches():
        loss = training.loss(batch)
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
            training.loss((x, target)).backward()
            parts.append([p.grad for p in training.parameters])
        for parameter, *gradients in zip(training.parameters, *parts, strict=True):
            parameter.grad = sum(gradients)
        training.optimizer.step()
        yield {"loss": None, "loss_form": "edited", "grad_norm": None}


def an_adversarial_pass(training: Training) -> Iterator[Row]:
    for x, y in training.batches(80):
        attacked = x.clone().requires_grad_()
        training.loss((attacked, y)).backward()
        assert attacked.grad is not None
        loss = training.loss(((attacked + 0.1 * attacked.grad.sign()).detach(), y))
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        yield {"loss": loss.item()}


def a_step_within_the_pass(training: Training) -> Iterator[Row]:
    def step(_parameter: Tensor) -> None:
        training.optimizer.step()
        training.optimizer.zero_grad()

    hook = training.parameters[0].register_post_accumulate_grad_hook(step)
    for batch in training.batches():
        loss = training.loss(batch)
        loss.backward()
        yield {"loss": loss.item()}
    hook.remove()  # else it keeps the optimizer for all tests


def gradients_cleared_before_the_step(training: Training) -> Iterator[Row]:
    for number, batch in enumerate(training.batches()):
        training.loss(batch).backward()
        training.optimizer.zero_grad(set_to_none=number != 1)
        training.optimizer.step()
        yield {"loss": None, "loss_form": "no backward"}


def gradients_of_the_loop_s_own(training: Training) -> Iterator[Row]:
    for batch in training.batches():
        training.loss(batch).backward()
        for parameter, gradient in zip(training.parameters, training.gradients, strict=True):
            parameter.grad = gradient.sign()
        training.optimizer.step()
        yield {"loss": None, "loss_form": "edited", "grad_norm": None}


def several_passes_for_a_step(training: Training) -> Iterator[Row]:
    for x, y in training.batches():
        parts = [training.loss(part) for part in zip(x.split(2), y.split(2), strict=True)]
        for loss in parts:
            loss.backward()
        training.optimizer.step()
        yield {"loss": torch.stack(parts).sum().item(), "loss_form": "sum"}


def passes_that_fail(training: Training) -> Iterator[Row]:
    for batch in training.batches():
        loss = training.loss(batch)
        bad = (2 * loss).detach().requires_grad_() * torch.ones(2)
        with pytest.raises(RuntimeError, match="scalar"):
            bad.backward()
        loss.backward()
        training.optimizer.step()
        yield {"loss": loss.item()}


# ------------------------------------------------------------------------------- gradients and scales


def scaled_by_hand(training: Training) -> Iterator[Row]:
    for batch in training.batches():
        (training.loss(batch) * 128).backward()
        torch._foreach_div_(training.gradients, 128)
        training.optimizer.step()
        yield {"loss": None, "loss_form": "scaled", "grad_norm": None}


def divided_and_clipped(training: Training) -> Iterator[Row]:
    for batch in training.batches():
        loss = training.loss(batch)
        loss.backward()
        torch._foreach_div_(training.gradients, 8)
        nn.utils.clip_grad_norm_(training.parameters, 1.0)
        training.optimizer.step()
        yield {"loss": loss.item(), "grad_norm": None}


def groups_added_later(training: Training) -> Iterator[Row]:
    for number, batch in enumerate(training.batches()):
        if number == 1:
            training.optimizer.add_param_group({"params": training.parameters[:2]})
        training.loss(batch).backward()
        groups = training.optimizer.param_groups
        norm = float(nn.utils.get_total_norm([p.grad for group in groups for p in group["params"]]))
        training.optimizer.step()
        yield {"grad_norm": norm}


# ------------------------------------------------------------------------------ computed in what


def micro_batches_in_two_precisions(training: Training) -> Iterator[Row]:
    for batch in training.batches():
        training.loss(batch).backward()
        with torch.autocast("cpu", torch.bfloat16):
            loss = training.loss(batch)
        loss.backward()
        training.optimizer.step()
        yield {"precision": "mixed"}


def a_body_in_bfloat16_below_a_large_head(training: Training) -> Iterator[Row]:
    *body, head = training.model.children()
    assert isinstance(head, nn.Linear)
    for x, y in training.batches():
        with torch.autocast("cpu", torch.bfloat16):
            features = nn.Sequential(*body)(x)
        features = features.float()
        for _ in range(600):
            features = features * head.weight[:, :8]
        mse_loss(head(features), y).backward()
        training.optimizer.step()
        yield {"precision": "bf16"}


def weights_cast_to_float64(training: Training) -> Iterator[Row]:
    training.model.double()
    for x, y in training.batches():
        loss = training.loss((x.double(), y.double()))
        loss.backward()
        training.optimizer.step()
        yield {"loss": loss.item(), "precision": "float64"}


def casts_without_autocast(training: Training) -> Iterator[Row]:
    weight, bias, *last = training.parameters
    for number, (x, y) in enumerate(training.batches(40)):
        dtype = torch.bfloat16 if number >= 30 else torch.float32
        hidden = relu(linear(x.to(dtype), weight.to(dtype), bias.to(dtype)))
        output = linear(hidden.float(), *last)
        mse_loss(output, y).backward()
        training.optimizer.step()
        yield {"precision": "bf16" if number >= 30 else "fp32"}


class Hidden(torch.autograd.Function):
    """Multiplies in bfloat16 and shows float32 on both sides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.name = "hidden"  # other nodes of the graph have a method of this name
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
    for batch in training.batches():
        loss = training.loss(batch).detach().requires_grad_()

        def run_again(gradient: Tensor, batch: Batch = batch) -> None:
            with torch.enable_grad():
                with torch.autocast("cpu", torch.bfloat16):
                    output = training.model(batch[0])
                (mse_loss(output.float(), batch[1]) * gradient).backward()

        loss.register_hook(run_again)
        loss.backward()
        training.optimizer.step()
        yield {"loss": loss.item(), "precision": "bf16"}


LOOPS: list[tuple[Callable[[Training], Iterator[Row]], dict[str, Callable[..., Any]]]] = [
    (loss_changed_in_place, {}),
    (logged_tensor_changed_in_place, {}),
    (gradients_of_two_tasks_added, {}),
    (an_adversarial_pass, {"model": deep_net}),
    (a_step_within_the_pass, {"model": lambda: nn.Linear(16, 1, bias=False)}),
    (gradients_cleared_before_the_step, {}),
    (gradients_of_the_loop_s_own, {}),
    (several_passes_for_a_step, {}),
    (passes_that_fail, {}),
    (scaled_by_hand, {}),
    (divided_and_clipped, {}),
    (groups_added_later, {"optimizer": lambda parameters, lr: torch.optim.SGD(parameters[2:], lr=lr)}),
    (micro_batches_in_two_precisions, {}),
    (a_body_in_bfloat16_below_a_large_head, {}),
    (weights_cast_to_float64, {}),
    (casts_without_autocast, {}),
    (a_function_that_hides_what_it_computes, {}),
    (passes_within_a_pass, {}),
]

AFTER_USUAL_STEPS = [(loop, built, 70) for loop, built in LOOPS if loop is not logged_tensor_changed_in_place]
"""Not a loop that begins to log so late: what is logged after a step is the next one's, the first time."""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("loop", "built", "usual_steps"),
    [*[(loop, built, 0) for loop, built in LOOPS], *AFTER_USUAL_STEPS],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_shown_is_what_happened(
    loop: Callable[[Training], Iterator[Row]],
    built: dict[str, Callable[..., Any]],
    usual_steps: int,
    runs: Path,
) -> None:
    gc.collect()  # the optimizers of other tests, which could make steps as well
    training = Training(**built)
    with training.monitor:
        for batch in training.batches(usual_steps):
            training.loss(batch).backward()
            training.optimizer.step()
        rows = [*loop(training)]
    found = records(runs)
    assert not of(GradientsDropped, found)
    for step, row in zip(of(StepRow, found)[usual_steps:], rows, strict=True):
        seen = {field: getattr(step, field) for field in row}
        if step.step > 1 and seen.get("grad_norm", 0) is None:
            row["grad_norm"] = None  # not each step's is measured
        assert seen == {
            field: value if value is None or isinstance(value, str) else pytest.approx(value, rel=1e-5)
            for field, value in row.items()
        }


# ------------------------------------------------------------------- what is told beside the steps


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
            ask(monitor, RequestMade("precision", precision="fp32"))

    with pytest.raises(RuntimeError, match="dtype"), monitor:
        train()
    (failed,) = of(RunFailed, records(runs))
    assert "the first step after the switch to fp32: cast or reset what the loop carries" in failed.error
