"""Experiments small enough for tests, trained for real, and a way to run them and keep their records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from amptui import Data, DataRequest, Experiment
from amptui.control import Control
from amptui.data.sources import Arrays
from amptui.engine import setup
from amptui.engine.trainer import Outcome, Trainer
from amptui.records import Record, StepRecord
from amptui.request import TrainRequest

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


def prepare(experiment: Experiment, **options: Any) -> setup.Prepared:
    """Everything before the first step, on the CPU, as the worker does it."""
    request = TrainRequest(model="tiny", device="cpu", data_dir=Path("unused"), **options)
    setup.seed_everything(request.seed)
    asked = DataRequest(data_dir=request.data_dir, kind=request.data, seed=request.seed)
    return setup.assemble(request, experiment, setup.choose(request), data_request=asked)


class Log(list[Record]):
    """Records as they were emitted; ``watch`` is called with each."""

    def __init__(self, watch: Callable[[Record], object] | None = None) -> None:
        super().__init__()
        self.watch = watch

    def emit(self, record: Record) -> None:
        """What the trainer is given."""
        self.append(record)
        if self.watch is not None:
            self.watch(record)

    def of(self, kind: type[R]) -> list[R]:
        """The records of one type."""
        return [record for record in self if isinstance(record, kind)]


def train(
    prepared: setup.Prepared, log: Log, control: Control | None = None, *, attended: bool = False
) -> Outcome:
    """Run the loop in this thread."""
    return Trainer(prepared, control or Control(), log.emit, attended=attended).run()


def losses(log: Log) -> list[float | None]:
    """The loss of each step."""
    return [record.loss for record in log.of(StepRecord)]


def switching(control: Control, at: dict[int, str]) -> Callable[[Record], None]:
    """Ask for a precision when a step's record arrives."""

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step in at:
            control.request_precision(at[record.step])

    return watch
