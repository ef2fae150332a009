"""A model file as a person would write it, with a knob for each way in which such files go wrong."""

import math
import sys
import time
import warnings
from ctypes import CDLL
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays


class Knobs(Experiment):
    """A linear model whose step lasts as long as one likes."""

    epochs: int = 1000
    batch_size: int = 8
    step_ms: float = 2.0
    uneven: bool = False
    """Some of its steps take three times as long as others: no comparison is soon sure of them."""
    trouble: Literal["none", "build", "data", "loss", "exit", "shape", "nan", "print", "memory"] = "none"
    at: int = 5
    """The step of the trouble."""
    gate: str = ""
    """A file that the step of the trouble waits for."""

    def build_model(self) -> nn.Module:
        if self.trouble == "build":
            raise RuntimeError("no such layer")
        self.calls = 0
        self.libc = CDLL(None)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def load_data(self, request: DataRequest) -> Data:
        if self.trouble == "data":
            return "MNIST"  # type: ignore[return-value]
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randint(0, 256, (800, 1, 4, 4), generator=generator, dtype=torch.uint8)
        arrays = Arrays(inputs, inputs.flatten(1).float().mean(1).div(64).long())
        return Data(name="noise", real=False, train=arrays, validation=arrays)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        loss = functional.cross_entropy(model(inputs), targets)
        if model.training:
            self.calls += 1
            longer = 1 + self.calls // 20 % 3 if self.uneven else 1
            # What a GPU's step is to the host: time without the interpreter.
            time.sleep(longer * self.step_ms / 1000)
            if self.trouble == "print":
                self.be_loud()
            if self.calls >= self.at:
                while self.gate and not Path(self.gate).exists():
                    time.sleep(0.01)
                return self.go_wrong(loss)
        return loss

    def go_wrong(self, loss: Tensor) -> Tensor:
        match self.trouble:
            case "loss":
                raise ValueError(f"bad label in batch {self.calls}")
            case "exit":
                sys.exit("the model left")
            case "memory":
                raise MemoryError
            case "shape":
                return loss.repeat(3)
            case "nan":
                return loss * math.nan
        return loss

    def be_loud(self) -> None:
        """Write to the terminal in every way there is."""
        print(f"print from step {self.calls}")
        print(f"\x1b[2J\x1b[31mred stderr {self.calls}", file=sys.stderr)
        warnings.warn(f"warning {self.calls}", stacklevel=1)
        self.libc.printf(b"printf from C %d\n", self.calls)
        self.libc.fflush(None)
