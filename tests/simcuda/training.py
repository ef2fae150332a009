"""A small network trained on the pretended GPU: what each step sent to it, and where the host waited."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from amptui import Data, DataRequest, Experiment
from amptui.checkpoint.writer import CheckpointWriter
from amptui.data.sources import Arrays
from amptui.loops.setup import Prepared
from amptui.loops.train import Trainer
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from tests.simcuda import device
from tests.simcuda.device import Wait
from tests.tiny import Log, prepare

FIRST_STEPS = 3
"""In the first steps memory is allocated, for which a host may wait."""

USUAL_STEPS = 15
"""From then on nothing that happens once happens any more."""

Script = Callable[[int], object]
"""Called as each step's loss is computed, with the step's number."""


Asks = Mapping[int, RequestMade | Sequence[RequestMade]]
"""What is asked as a step's loss is computed, by step."""


@dataclass(eq=False)
class Marks:
    """What came between one step's loss and the next one's: backward, optimizer, boundary, batch."""

    script: Script = lambda _step: None
    step: int = 0
    owner: object = None
    operators: dict[int, Counter[str]] = field(default_factory=dict)
    waits: dict[int, list[Wait]] = field(default_factory=dict)

    def next_step(self) -> None:
        """A step's loss is about to be computed."""
        self.take()
        self.step += 1
        self.script(self.step)

    def take(self) -> None:
        """What was counted until now belongs to the newest step."""
        self.operators.setdefault(self.step, Counter()).update(device.take_operators())
        self.waits.setdefault(self.step, []).extend(device.take_waits())

    def places(self, first: int = FIRST_STEPS, last: int | None = None) -> Counter[str]:
        """Where the host waited in those steps, both ends included; by default in all but the last."""
        last = self.step - 1 if last is None else last
        return Counter(str(wait) for step in range(first, last + 1) for wait in self.waits[step])

    def usual(self) -> Counter[str]:
        """The operators of a step in which nothing special happens: the commonest ones."""
        steps = [counts for step, counts in self.operators.items() if USUAL_STEPS <= step < self.step]
        commonest, _ = Counter(frozenset(counts.items()) for counts in steps).most_common(1)[0]
        return Counter(dict(commonest))


class Small(Experiment):
    batch_size: int = 8
    samples: int = 512
    width: int = 8

    def mark(self, marks: Marks) -> "Small":
        """Let ``marks`` know of each step."""
        self.marks, marks.owner = marks, self
        return self

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.randint(0, 256, (self.samples, 1, 12, 12), generator=generator, dtype=torch.uint8)
        targets = inputs.flatten(1).float().mean(1).long() % 10
        few = Arrays(inputs[:32], targets[:32])
        return Data(name="noise", real=False, train=Arrays(inputs, targets), validation=few)

    def build_model(self) -> nn.Module:
        width = self.width
        return nn.Sequential(
            *(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1)),
            *(nn.Linear(16 * width, 32), nn.ReLU(), nn.Linear(32, 10)),
        )

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        # The X-ray computes its losses with a copy of the experiment, and a validation its own.
        if model.training and hasattr(self, "marks") and self.marks.owner is self:
            self.marks.next_step()
        return super().loss(model, batch)


class Whole(Small):
    """Without dropout, whose masks each device draws from a generator of its own."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(*(layer for layer in super().build_model() if not isinstance(layer, nn.Dropout)))  # type: ignore[attr-defined]


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Samples on the host, one by one; each image ``repeats`` times as high and as wide."""

    def __init__(self, arrays: Arrays, repeats: int = 1) -> None:
        self.arrays = arrays
        self.repeats = repeats

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.arrays.inputs[index].float() / 255
        for dimension in (1, 2):
            image = image.repeat_interleave(self.repeats, dimension)
        return image, self.arrays.targets[index]


class Failing(Small):
    """A kernel of it fails in a step, in an assertion say."""

    at: int = 30

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        self.calls = getattr(self, "calls", 0) + model.training
        if self.calls == self.at:
            device.configure(broken=710)
        return super().loss(model, batch)


@dataclass(frozen=True, eq=False)
class Trained:
    marks: Marks
    log: Log
    prepared: Prepared


def run(
    experiment: Small | None = None,
    *,
    asks: Asks = MappingProxyType({}),
    waits_are_errors: Container[int] = (),
    script: Script = lambda _step: None,
    checkpoints: Path | None = None,
    every: int | None = None,
    log: Log | None = None,
    **options: Any,
) -> Trained:
    """Train to the end.

    ``asks``: as the loss of each step is computed, then ``script`` is called; ``waits_are_errors``: in which
    steps torch's debug mode says so.
    """
    control = Control()
    log = Log() if log is None else log

    def as_loss_is_computed(step: int) -> None:
        if waits_are_errors:
            torch.cuda.set_sync_debug_mode("error" if step in waits_are_errors else "default")
        asked = asks.get(step, ())
        for request in asked if isinstance(asked, Sequence) else (asked,):
            control.ask(request)
        script(step)

    marks = Marks(as_loss_is_computed)
    prepared = prepare((experiment or Small()).mark(marks), **{"device": "cuda", **options})
    writer = CheckpointWriter(checkpoints, control=control, emit=log.emit, every=every)
    trainer = Trainer(prepared, control, log.emit, interactive=False, writer=writer)
    device.take_operators()
    device.take_waits()
    try:
        trainer.run()
    finally:
        marks.take()
    return Trained(marks, log, prepared)


def run_plain(
    experiment: Small | None = None, *, precision: str, clip_norm: float | None = None, steps: int = 20
) -> Marks:
    """The same in a loop as PyTorch's recipes write it, on the same batches."""
    marks = Marks()
    experiment = (experiment or Small()).mark(marks)
    prepared = prepare(experiment, device="cuda", precision=precision)
    batches = prepared.training.epoch(1)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    model, optimizer = prepared.model, prepared.optimizer
    device.take_operators()
    for _ in range(steps):
        batch = next(batches)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype) if dtype else nullcontext():
            loss = experiment.loss(model, batch)
        assert isinstance(loss, Tensor)
        scaler.scale(loss).backward()
        if clip_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        scaler.step(optimizer)
        scaler.update()
    marks.take()
    return marks
