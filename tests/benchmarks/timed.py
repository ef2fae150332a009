"""Experiments that stamp each of their steps: whatever loop trains them is timed with the same clock.

One process writes stamps while another one reads them. Their file is mapped into memory: a stamp costs a
clock read and a microsecond, alike for every loop.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays

if TYPE_CHECKING:
    from models.mnist_deep import MnistDeep  # where its types can be read
else:
    from amptui.models.mnist_deep import MnistDeep

VARIABLE = "AMPTUI_BENCHMARK_STAMPS"

_MAX_STAMPS = 4_000_000


class StampWriter:
    """Writes stamps into a new file at ``path``, from one thread."""

    def __init__(self, path: Path) -> None:
        self._rows = np.memmap(path, np.float64, "w+", shape=2 + _MAX_STAMPS)  # sparse
        self.count = 0
        self.first_loss = 0.0
        """Of the first step, once that is known: written with the next stamp."""

    def stamp(self) -> None:
        self._rows[2 + self.count] = time.perf_counter()
        self.count += 1
        self._rows[:2] = self.count, self.first_loss


def read_stamps(path: Path) -> tuple[float, npt.NDArray[np.float64]]:
    """The first step's loss, 0 before the second step, and the monotonic clock at each step: [N] seconds."""
    if not path.exists() or not path.stat().st_size:
        return 0.0, np.zeros(0)
    rows = np.memmap(path, np.float64, "r", shape=2 + _MAX_STAMPS)
    return float(rows[1]), rows[2 : 2 + int(rows[0])]


class LaunchBound(Experiment):
    """The worst case for whatever shares the interpreter with the training."""

    epochs: int = 100
    batch_size: int = 16
    learning_rate: float = 1e-3
    layers: int = 120
    """About 2.2 ms a step on one core of an EPYC server of 2024: the aims are for 2.3 ms."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *(nn.Linear(16, 16) for _ in range(self.layers)), nn.Linear(16, 4))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, fused=True)

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.randint(0, 256, (16_000, 1, 4, 4), generator=generator, dtype=torch.uint8)
        # The class is the first pixel's brightness: something to learn, at no cost.
        return Data(name="noise", real=False, train=Arrays(inputs, inputs.flatten(1)[:, 0].long() // 64))


class _Timed(Experiment):
    """To be put before an experiment. Without validation: a plain loop has none."""

    def __post_init__(self) -> None:
        self.stamps = StampWriter(Path(os.environ[VARIABLE]))

    def load_data(self, request: DataRequest) -> Data:
        return replace(super().load_data(request), validation=None)

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        self.stamps.stamp()
        loss = super().loss(model, batch)
        if self.stamps.count == 1:
            assert isinstance(loss, Tensor)
            self.stamps.first_loss = loss.item()
        return loss


class TimedMnistDeep(_Timed, MnistDeep):
    """mnist-deep with a clock."""


class TimedLaunchBound(_Timed, LaunchBound):
    """Many tiny layers with a clock."""
