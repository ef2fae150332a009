"""A loop as people write it for Accelerate, and the handwritten one that it stands for."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn

from amptui.guest.loop.switched_amp import SwitchedAmp
from tests.observed import AUTOCAST
from tests.own_loops import STEPS, SWITCHES, Own

OVERFLOWS = (14, 15, 40)
"""Steps whose inputs overflow float16, as Own's do."""


def new_accelerator(**options: Any) -> Accelerator:
    """One that knows nothing of those before it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def new_fp16_accelerator(**options: Any) -> Accelerator:
    """One that has on a CPU what Accelerate gives it on a GPU: autocast to float16, and a scaler."""
    accelerator = new_accelerator(mixed_precision="fp16", **options)
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", growth_interval=8, init_scale=2.0**12)
    return accelerator


class Loop(Own):
    """The model and data of :class:`Own`, a scheduler, and both loops."""

    def __init__(self, *, fused: bool = False, clip_norm: float | None = None, accumulate: int = 1) -> None:
        super().__init__(fused=fused, clip_norm=clip_norm, accumulate=accumulate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.98**step)
        self.skips: list[int] = []
        self.scales: list[float] = []

    def handwritten(self, switches: dict[int, str] = SWITCHES, steps: int = STEPS) -> torch.amp.GradScaler:
        """Switch precisions by itself; outputs are float32, as Accelerate's; returns the scaler."""
        scaler, precision = torch.amp.GradScaler("cpu"), "fp32"
        batches = list(self.loader(steps))
        for step in range(1, steps + 1):
            precision = switches.get(step, precision)
            scales, dtype = precision == "fp16", AUTOCAST.get(self.use_layers_of(precision))
            total = 0.0
            for inputs, labels in batches[(step - 1) * self.accumulate : step * self.accumulate]:
                with nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype):
                    outputs = self.model(inputs)
                loss = nn.functional.cross_entropy(outputs.float(), labels) / self.accumulate
                (scaler.scale(loss) if scales else loss).backward()
                total += loss.item()
            self.losses.append(total)
            self._update(scaler if scales else None, step)
            self.optimizer.zero_grad()
        return scaler

    def _update(self, scaler: torch.amp.GradScaler | None, step: int) -> None:
        before = 0.0 if scaler is None else scaler.get_scale()
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        if scaler is None:
            self.optimizer.step()
        else:
            self.scales.append(before)
            scaler.step(self.optimizer)
            scaler.update()
        skipped = scaler is not None and scaler.get_scale() < before
        if skipped:
            self.skips.append(step)
        # Accelerate does not see that a fused optimizer's step was skipped.
        if not skipped or self.optimizer.defaults["fused"]:
            self.scheduler.step()

    def accelerated(
        self,
        accelerator: Accelerator,
        steps: int = STEPS,
        *,
        through: Callable[[Iterable[Any]], Iterable[Any]] = iter,
        during: Callable[[int], object] = lambda _step: None,
    ) -> None:
        """Train with ``accelerator``; ``during`` is called in each step, whose precision is chosen then."""
        model, optimizer, scheduler = accelerator.prepare(self.model, self.optimizer, self.scheduler)
        for index, (inputs, labels) in enumerate(through(list(self.loader(steps)))):
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                if index % self.accumulate == 0:
                    during(index // self.accumulate + 1)
                accelerator.backward(loss)
                if accelerator.sync_gradients and self.clip_norm is not None:
                    accelerator.clip_grad_norm_(model.parameters(), self.clip_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    def bits(self) -> list[Any]:
        """Weights, moments, random numbers and the learning rate."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.model.parameters(), *moments, torch.get_rng_state()]
        return [*[Tensor.tolist(tensor) for tensor in tensors], self.scheduler.get_last_lr()]


def scaler_state(amp: SwitchedAmp | None) -> dict[str, Any]:
    """That of the scaler that follows the precision."""
    assert amp is not None
    return amp.scaler.state_dict()


def saved(folder: Path) -> list[str]:
    """The names of what was saved there."""
    return sorted(path.name for path in folder.iterdir())
