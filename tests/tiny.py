"""Experiments small enough for tests, trained for real, and a way to run them and keep their records."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from amptui import Data, DataRequest, Experiment
from amptui.checkpoint.file import Checkpoint
from amptui.checkpoint.writer import CheckpointWriter
from amptui.data.sources import Arrays, Source
from amptui.loops import setup
from amptui.loops.resume import newest_checkpoint, restore
from amptui.loops.setup import Prepared
from amptui.loops.train import Outcome, Trainer
from amptui.recipe.precision import unsupported_precisions
from amptui.recipe.request import TrainRequest
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import Note, Record
from tests.builders import StepRow, one_by_one

Asks = Mapping[int, str | RequestMade]
"""Precisions and other requests, by step."""

R = TypeVar("R")


class Tiny(Experiment):
    """A linear model on random images: a step takes a fraction of a millisecond."""

    epochs: int = 2
    batch_size: int = 8
    samples: int = 64
    width: int = 16
    learning_rate: float = 0.01

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(16, self.width),
            nn.BatchNorm1d(self.width),
            nn.ReLU(),
            nn.Linear(self.width, 4),
        )

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.randint(0, 256, (self.samples, 1, 4, 4), generator=generator, dtype=torch.uint8)
        targets = inputs.flatten(1).float().mean(1).div(64).long()
        arrays = Arrays(inputs, targets)
        return Data(name="noise", real=False, train=arrays, validation=arrays)


class Exploding(Tiny):
    """Its gradients leave float16's range at any scale above ``limit``."""

    factor: float = 1e4

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, _ = batch
        loss: Tensor = (model(inputs).float() * self.factor).square().mean()
        return loss


class Spoiled(Tiny):
    """From step ``at`` on ``steps`` losses are ``value``; with ``weights_too`` so are their gradients."""

    def __init__(  # no fields: a checkpoint of one may be resumed by another
        self,
        at: int = 12,
        steps: int = 1,
        *,
        weights_too: bool = True,
        value: float = math.nan,
        epochs: int = 8,
    ) -> None:
        super().__init__(epochs=epochs)
        self.at, self.steps, self.weights_too, self.value = at, steps, weights_too, value

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls = getattr(self, "calls", 0) + model.training
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        if not (model.training and self.at <= self.calls < self.at + self.steps):
            return loss
        return loss * self.value if self.weights_too else loss + self.value


NO_TF32 = unsupported_precisions(torch.device("cpu"))["tf32"]
"""Why a CPU does not run TF32."""

NO_KERNEL = "no kernel for this dtype"


class Unautocastable(Tiny):
    """Fails wherever autocast is on, after a forward pass that has changed buffers and random state."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError(NO_KERNEL)
        return loss


def prepare(experiment: Experiment, **options: Any) -> Prepared:
    """Everything before the first step, on the CPU, as the worker does it."""
    request = TrainRequest(model="tiny", **{"device": "cpu", "data_dir": Path("unused"), **options})
    setup.seed_everything(request.seed)
    asked = DataRequest(data_dir=request.data_dir, kind=request.data, seed=request.seed)
    return setup.assemble(request, experiment, setup.choose(request), data_request=asked)


class Drawing(Tiny):
    """Draws random numbers in every place where a training may: dropout, transforms, the data's order."""

    source: Literal["arrays", "dataset", "loader", "own generator"] = "dataset"
    optimizer: Literal["adam", "momentum"] = "momentum"

    def build_model(self) -> nn.Module:
        return nn.Sequential(super().build_model(), nn.Dropout(0.2))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            return super().build_optimizer(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
        optimizer.register_step_post_hook(lambda *_: self.schedule.step())
        return optimizer

    def load_data(self, request: DataRequest) -> Data:
        data = super().load_data(request)
        assert isinstance(data.train, Arrays)
        if self.source == "arrays":
            return data
        train: Source = Jittered(data.train)
        if self.source != "dataset":
            own = torch.Generator().manual_seed(9) if self.source == "own generator" else None
            train = DataLoader(Jittered(data.train), self.batch_size, shuffle=True, generator=own)
        return replace(data, train=train, validation=DataLoader(Jittered(data.train), 32))

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        total = super().loss(model, batch)
        assert isinstance(total, Tensor)
        return {"loss": total, "half": total.detach() / 2}

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {**super().metrics(model, batch), "luck": torch.rand(())}


class Jittered(Dataset[tuple[Tensor, Tensor]]):
    """Images with noise from all three generators that people use; none of it in a worker."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.arrays.inputs[index] / 255
        if get_worker_info() is None:
            image = image + 0.1 * torch.rand(()) + 0.1 * random.random() + 0.1 * np.random.random()
        return image, self.arrays.targets[index]


class Log(list[Record]):
    """Records as they were emitted, steps one by one; ``watch`` is called with each."""

    def __init__(self, watch: Callable[[Record], object] | None = None) -> None:
        super().__init__()
        self.watch = watch

    def emit(self, record: Record) -> None:
        for single in one_by_one([record]):
            self.append(single)
            if self.watch is not None:
                self.watch(single)

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self if isinstance(record, kind)]


def train(
    prepared: Prepared,
    log: Log,
    control: Control | None = None,
    *,
    interactive: bool = False,
    checkpoints: Path | None = None,
    look_interval_seconds: float = 0.0,
    start: Checkpoint | None = None,
    **options: Any,
) -> Outcome:
    """Run the loop in this thread; with a folder for checkpoints, ``options`` are the writer's.

    By default it looks before each step, so that what a record brings about comes at a step that is known,
    and each epoch's end has its checkpoint, however short the epoch is.
    """
    control = control or Control()
    options = {"epoch_budget": math.inf, **options}
    writer = CheckpointWriter(checkpoints, control=control, emit=log.emit, **options)
    trainer = Trainer(
        prepared,
        control,
        log.emit,
        interactive=interactive,
        writer=writer,
        start=start,
        look_interval_seconds=look_interval_seconds,
    )
    try:
        return trainer.run()
    finally:  # whatever test collects a DataLoader's workers later waits 5 s for each
        for batches in (prepared.training, prepared.validation):
            if batches is not None:
                batches.close()


def log_of(
    prepared: Prepared,
    control: Control | None = None,
    *,
    at: Asks | None = None,
    **options: Any,
) -> Log:
    """The records of a training by :func:`train`, in which :func:`switching` asks for what ``at`` says."""
    control = control or Control()
    log = Log() if at is None else Log(switching(control, at))
    train(prepared, log, control, **options)
    return log


def resume(
    prepared: Prepared, folder: Path, log: Log, control: Control | None = None, **options: Any
) -> Outcome:
    """Go on from the newest checkpoint in this thread, as the worker does it."""

    def say(text: str) -> None:
        log.emit(Note(time=time.time(), severity="warning", text=text))

    checkpoint = newest_checkpoint(folder, say)
    prepared, start = restore(checkpoint, prepared, say)
    options = {"checkpoints": folder, "resumed_from": checkpoint.place, **options}
    return train(prepared, log, control, start=start, **options)


def losses(log: Log) -> list[float | None]:
    return [record.loss for record in log.of(StepRow)]


def stopping(control: Control, step: int) -> Callable[[Record], None]:
    """Ask for the end when a step's record arrives."""
    return switching(control, {step: RequestMade("stop", reason="the test")})


def switching(control: Control, at: Asks) -> Callable[[Record], None]:
    """Ask for a precision, or for something else, when a step's record arrives."""

    def watch(record: Record) -> None:
        request = at.get(record.step) if isinstance(record, StepRow) else None
        if request is not None:
            control.ask(RequestMade("precision", precision=request) if isinstance(request, str) else request)

    return watch


@contextmanager
def no_waits() -> Iterator[None]:
    """Within, the host may not wait for a GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
