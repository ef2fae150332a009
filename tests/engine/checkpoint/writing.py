"""What the tests of the checkpoint writer train with, wait for and look at."""

import threading
from typing import Any

import torch
from torch import Tensor, nn

from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import Record
from amptui.records.steps import StepRecord, Steps
from tests.tiny import Log, Tiny

ENOUGH_SECONDS = 60.0


def written(log: Log) -> list[tuple[int, str]]:
    return [(record.step, record.reason) for record in log.of(CheckpointWritten)]


def troubles(log: Log) -> list[str]:
    return [record.trouble for record in log.of(KeepingChanged)]


class Unhurried(Tiny):
    """Ends no epoch before what it wrote is on the disk, so that tests know what is written when."""

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        for thread in threading.enumerate():
            if thread.name == "amptui-checkpoint":
                thread.join(ENOUGH_SECONDS)
        return super().metrics(model, batch)


class Waiting(Log):
    """Holds the trainer after each step until nothing is being written."""

    def emit(self, record: Record) -> None:
        super().emit(record)
        if isinstance(record, Steps):
            Unhurried().metrics(nn.Linear(1, 4), (torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)))


class Journal:
    """One that is as slow as a test likes."""

    def __init__(self, *, opens_at: int) -> None:
        self.opens_at = opens_at
        self.opened = threading.Event()
        self.asked = list[int]()

    def wait(self, step: int) -> None:
        self.asked.append(step)
        assert self.opened.wait(ENOUGH_SECONDS)

    def watch(self, record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == self.opens_at:
            self.opened.set()
