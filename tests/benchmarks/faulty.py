"""What the benchmark of faults trains: a small model, one rank of which gets into trouble at a step."""

import ctypes
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from amptui import Data, DataRequest
from amptui.data.sources import Arrays
from tests.tiny import Tiny

NOTES_VARIABLE = "RANK_FAULTS_NOTES"
"""The folder in which ranks write down their steps, and when the fault began."""

FAULT_FILE = "fault"


class Faulty(Tiny):
    """Makes steps of some 30 ms. On rank ``on_rank`` step ``at`` goes wrong as ``fault`` says."""

    samples: int = 8192
    width: int = 32
    step_seconds: float = 0.03
    fault: str = ""
    on_rank: int = 1
    at: int = 40
    lasts_seconds: float = 90.0

    def build_model(self) -> nn.Module:
        layers = nn.Linear(16, self.width), nn.ReLU(), nn.Linear(self.width, 4)
        return nn.Sequential(nn.Flatten(), *layers)

    def load_data(self, request: DataRequest) -> Data:
        data = super().load_data(request)
        assert isinstance(data.train, Arrays)
        few = Arrays(data.train.inputs[:32], data.train.targets[:32])
        return replace(data, train=SlowAtOnce(data.train, self), validation=few)

    @property
    def is_here(self) -> bool:
        """Whether the fault is this rank's."""
        return os.environ.get("RANK") == str(self.on_rank)

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        if model.training:
            time.sleep(self.step_seconds)
            self.begun = getattr(self, "begun", 0) + 1
            if self.is_here and self.begun == self.at:
                self.go_wrong()
        return super().loss(model, batch)

    def go_wrong(self) -> None:
        """In a step, unless the fault is elsewhere."""
        if self.fault not in ("", "loader", "after_step"):
            note_fault()
        match self.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "exec":
                os.execvp("sleep", ["sleep", "600"])  # noqa: S606 - that is the fault
            case "exit in C":  # as a library may
                ctypes.CDLL(None)._exit(0)
            case "exec in C":
                ctypes.CDLL(None).execl(b"/bin/sleep", b"sleep", b"600", None)
            case "error":
                raise ArithmeticError("a wrong number")
            case "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    def after_step(self, model: nn.Module) -> None:
        notes = os.environ.get(NOTES_VARIABLE)
        if self.fault == "after_step" and self.is_here and self.begun == self.at:
            note_fault()
            time.sleep(self.lasts_seconds)
        if notes is not None:
            with Path(notes, f"rank-{os.environ.get('RANK', '0')}").open("a") as file:
                file.write(f"{self.begun} {time.time()}\n")


class SlowAtOnce(Dataset[tuple[Tensor, Tensor]]):
    """Samples, one of which takes long on one rank if the fault is ``loader``."""

    def __init__(self, arrays: Arrays, experiment: Faulty) -> None:
        self.arrays = arrays
        self.experiment = experiment
        self.taken = 0

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        experiment = self.experiment
        self.taken += 1
        is_due = self.taken == experiment.at * experiment.batch_size
        if experiment.fault == "loader" and experiment.is_here and is_due:
            note_fault()
            time.sleep(experiment.lasts_seconds)
        return self.arrays.inputs[index].float() / 255, self.arrays.targets[index]


def note_fault() -> None:
    """Write down that the fault begins."""
    notes = os.environ.get(NOTES_VARIABLE)
    if notes is not None:
        Path(notes, FAULT_FILE).write_text(str(time.time()))
