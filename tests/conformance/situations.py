"""Situations that a training gets into, and the loop by hand that says what has to come of each."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from amptui import Monitor

EPOCHS, STEPS_PER_EPOCH, SAMPLES = 3, 8, 8

STEPS = EPOCHS * STEPS_PER_EPOCH

OVERFLOWS = (3, 4)
"""Steps of each epoch, counted from 1, whose inputs overflow float16."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}

SWITCHES = {1: "fp32", 4: "bf16", 6: "fp16", 13: "ieee", 14: "fp16", 22: "bf16"}
"""From which step on which precision runs: the scale grows, and four steps are skipped."""

FLOAT8_SWITCHES = {1: "fp32", 4: "fp8", 8: "bf16", 10: "fp8", 14: "fp16"}


@dataclass(frozen=True)
class Situation:
    precisions: Mapping[int, str] = field(default_factory=lambda: {1: "fp32"})
    """From which step on which one runs."""
    accumulate: int = 1
    clip_norm: float | None = None
    fused: bool = False
    schedules: bool = False
    averages: bool = False
    """Keeps an exponential moving average of the weights."""
    zeroes: bool = False
    """Clears gradients to zeros before the forward pass, not to None after the step."""
    closure: bool = False
    """Its optimizer is LBFGS, which runs the forward pass several times in a step."""

    def precision(self, step: int) -> str:
        return self.precisions[max(first for first in self.precisions if first <= step)]

    @property
    def requests(self) -> dict[int, str]:
        """In which step which precision has to be asked for: it is taken after that step."""
        return {step - 1: name for step, name in self.precisions.items() if step > 1}


SITUATIONS = {
    "fp32": Situation(averages=True, zeroes=True),
    "bf16": Situation({1: "bf16"}, accumulate=3, schedules=True),
    "fp16": Situation({1: "fp16"}, clip_norm=0.5, schedules=True, averages=True),
    "switches": Situation(SWITCHES),
    "switches, fused, clipped": Situation(SWITCHES, fused=True, clip_norm=0.5, schedules=True),
    "switches, accumulated, clipped": Situation(
        SWITCHES, accumulate=3, clip_norm=0.5, schedules=True, averages=True
    ),
    "float8": Situation(FLOAT8_SWITCHES, clip_norm=0.5),
    "closure": Situation({1: "fp32", 10: "bf16"}, closure=True),
}


class Batches:
    """An epoch's batches. What a framework draws between two epochs reaches no dropout mask."""

    def __init__(self, accumulate: int) -> None:
        self.accumulate = accumulate

    def __len__(self) -> int:
        return STEPS_PER_EPOCH * self.accumulate

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        torch.manual_seed(2)
        generator = torch.Generator().manual_seed(1)
        for number in range(len(self)):
            inputs = torch.randn(SAMPLES, 16, generator=generator)
            overflows = number // self.accumulate + 1 in OVERFLOWS
            yield inputs * (1e6 if overflows else 1.0), torch.arange(SAMPLES) % 4


class Training:
    """What is trained in a situation; ``during`` is called once in each step, after a forward pass."""

    def __init__(self, situation: Situation, during: Callable[[int], object] = lambda _step: None) -> None:
        torch.manual_seed(0)
        self.situation, self.during = situation, during
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)
            if situation.closure
            else torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=situation.fused)
        )
        self.scheduler: Any = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.95**step if situation.schedules else 1.0
        )
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.batches = Batches(situation.accumulate)
        self.passes = 0
        self._last: deque[Tensor] = deque(maxlen=situation.accumulate)

    def loss(self, batch: tuple[Tensor, Tensor], model: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The loss of a batch; ``model``: what a framework has made of it."""
        loss = nn.functional.cross_entropy((model or self.model)(batch[0]).float(), batch[1])
        is_new = all(batch[0] is not last for last in self._last)  # else the pass is run again
        if is_new and self.model.training:
            self._last.append(batch[0])
            self.passes += 1
            if (self.passes - 1) % self.situation.accumulate == 0:
                self.during((self.passes - 1) // self.situation.accumulate + 1)
        return loss

    def clip(self) -> None:
        if self.situation.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.situation.clip_norm)

    def grad_norm(self) -> float:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        return float(torch.stack([gradient.norm() for gradient in gradients]).norm())

    def after_step(self, *, skipped: bool = False) -> None:
        """What a loop does after each step; some leave the schedule alone after one that was ``skipped``."""
        if not skipped:
            self.scheduler.step()
        if self.situation.averages:
            self.average.update_parameters(self.model)

    def digests(self) -> dict[str, str]:
        state = self.optimizer.state_dict()["state"]
        moments = [value for entry in state.values() for value in entry.values() if torch.is_tensor(value)]
        return {
            "weights": _digest(*self.model.parameters()),
            "moments": _digest(*moments),
            "average": _digest(*self.average.parameters()),
            "learning rate": repr(self.optimizer.param_groups[0]["lr"]),
            "random numbers": _digest(torch.get_rng_state()),
        }


def _digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class Step:
    step: int
    epoch: int
    precision: str
    loss: float
    loss_scale: float | None
    skipped: bool
    lr: float
    samples: int
    micro_batches: int
    grad_norm: float
    """Of the unscaled gradients, before clipping; of a closure's last call."""


@dataclass
class Truth:
    steps: list[Step]
    digests: dict[str, str]
    scaler: dict[str, Any]

    @property
    def skipped(self) -> list[int]:
        return [step.step for step in self.steps if step.skipped]


class InFloat8(nn.Module):
    """A Linear layer that multiplies in float8 as torchao does; the parameters are shared.

    Its operands are rounded to bfloat16 once.
    """

    def __init__(self, linear: nn.Linear) -> None:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        super().__init__()
        bare = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        bare.weight, self.bias = linear.weight, linear.bias
        self.product = convert_to_float8_training(
            nn.Sequential(bare), config=Float8LinearConfig(pad_inner_dim=True)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            product: Tensor = self.product(inputs.bfloat16())
            return product + self.bias.bfloat16()


def in_float8(model: nn.Module) -> nn.Module:
    """The same layers, of which those multiply in float8 whose sizes are multiples of 16: the first."""
    first, *others = model.children()
    assert isinstance(first, nn.Linear)
    return nn.Sequential(InFloat8(first), *others)


def train_by_hand(
    training: Training,
    *,
    monitor: Monitor | None = None,
    growth_interval: int = 4,
    pauses_schedule: Callable[[Situation], bool] = lambda situation: False,
) -> Truth:
    """The loop that switches precisions by itself; ``monitor`` only watches it.

    ``pauses_schedule``: whether the schedule stands still where a step is skipped.
    """
    situation, steps = training.situation, list[Step]()
    scaler = torch.amp.GradScaler("cpu", growth_interval=growth_interval)
    has_float8 = "fp8" in situation.precisions.values()
    twin = in_float8(training.model) if has_float8 else training.model
    for epoch in range(EPOCHS) if monitor is None else monitor.epochs(EPOCHS):
        batches = iter(training.batches if monitor is None else monitor.steps(training.batches))
        for _ in range(STEPS_PER_EPOCH):
            if len(taken := list(islice(batches, situation.accumulate))) < situation.accumulate:
                break  # the watcher was asked to stop
            precision, lr = situation.precision(len(steps) + 1), training.optimizer.param_groups[0]["lr"]
            model = twin if precision == "fp8" else training.model
            scales, scale = precision == "fp16", scaler.get_scale()
            loss, grad_norm = _step(training, taken, model, precision, scaler if scales else None)
            skipped = scales and scaler.get_scale() < scale
            training.after_step(skipped=skipped and pauses_schedule(situation))
            steps.append(
                Step(
                    step=len(steps) + 1,
                    epoch=epoch + 1,
                    precision=precision,
                    loss=loss,
                    loss_scale=scale if scales else None,
                    skipped=skipped,
                    lr=lr,
                    samples=SAMPLES * situation.accumulate,
                    micro_batches=situation.accumulate,
                    grad_norm=grad_norm,
                )
            )
        for _ in batches:  # the end of the epoch
            pass
    return Truth(steps, training.digests(), scaler.state_dict())


def _step(
    training: Training,
    batches: list[tuple[Tensor, Tensor]],
    model: nn.Module,
    precision: str,
    scaler: torch.amp.GradScaler | None,
) -> tuple[float, float]:
    situation, optimizer, total = training.situation, training.optimizer, 0.0

    def one_pass(batch: tuple[Tensor, Tensor]) -> Tensor:
        with autocast(precision):
            loss = training.loss(batch, model) / situation.accumulate
        (loss if scaler is None else scaler.scale(loss)).backward()
        return loss

    if situation.closure:
        losses: list[float] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = one_pass(batches[0])
            losses.append(loss.item())
            return loss

        optimizer.step(closure)  # type: ignore[arg-type] # torch's own annotation is of a float
        return losses[0], training.grad_norm()
    if situation.zeroes:
        optimizer.zero_grad(set_to_none=False)
    for batch in batches:
        total += one_pass(batch).item()
    if scaler is not None:
        scaler.unscale_(optimizer)
    grad_norm = training.grad_norm()
    training.clip()
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    if not situation.zeroes:
        optimizer.zero_grad()
    return total, grad_norm


def autocast(precision: str) -> AbstractContextManager[Any]:
    dtype = DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)
