"""A hand-written training loop, with and without a monitor, and what it computed."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

OVERFLOWS = (50, 51, 120)
"""Steps (counted from 1) whose input overflows float16."""


@dataclass
class Loop:
    """An AMP loop as in PyTorch's documentation."""

    precision: str
    fused: bool = False
    clip: bool = False
    accumulate: int = 1
    device: str = "cpu"
    losses: list[float] = field(default_factory=list)
    """Of each step, the mean over its batches."""
    scales: list[float] = field(default_factory=list)
    """Before each step."""
    skips: list[int] = field(default_factory=list)
    """Skipped steps, counted from 1."""

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.generator = torch.Generator(self.device).manual_seed(1)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=self.fused)
        self.scaler = torch.amp.GradScaler(
            self.device, growth_interval=20, enabled=self.precision == "fp16", init_scale=2.0**16
        )

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST[self.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device, dtype=dtype)

    def batches(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.accumulate):
            inputs = torch.randn(8, 16, generator=self.generator, device=self.device)
            labels = torch.randint(0, 4, (8,), generator=self.generator, device=self.device)
            overflows = self.precision == "fp16" and step in OVERFLOWS
            yield (inputs * 1e6 if overflows else inputs), labels

    def train_step(self, step: int) -> Tensor:
        """One step without any wait for the device."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for inputs, labels in self.batches(step):
            with self.autocast():
                loss = nn.functional.cross_entropy(self.model(inputs), labels) / self.accumulate
            self.scaler.scale(loss).backward()
            total = total + loss.detach()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return total

    def run(self, steps: int) -> "Loop":
        """Train, and note the truth as only waiting can tell it."""
        for step in range(1, steps + 1):
            before = self.scaler.get_scale()
            self.losses.append(self.train_step(step).item())
            self.scales.append(before)
            if self.scaler.get_scale() < before:
                self.skips.append(step)
        return self

    def state(self) -> list[Tensor]:
        moments = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if torch.is_tensor(value)
        ]
        scale = torch.tensor(self.scaler.get_scale())
        return [*self.model.parameters(), *moments, scale, torch.get_rng_state()]


def same_bits(ours: Loop, bare: Loop) -> bool:
    pairs = list(zip(ours.state(), bare.state(), strict=True))
    return all(torch.equal(one, other) for one, other in pairs)
