"""A model whose every step is witnessed outside of its process: what a kill cost can be counted."""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays

_SLOT = struct.Struct("dd")
"""When a step's loss was computed (Unix seconds), and what it was."""

MAX_STEPS = 65536


class Witness(Experiment):
    """A small network with dropout and momentum, whose losses depend on every random number drawn."""

    epochs: int = 1000
    batch_size: int = 8
    learning_rate: float = 1e-2
    step_ms: float = 0.0
    to: Path = Path()
    """The file of witnessed steps; none is written without."""

    def build_model(self) -> nn.Module:
        self.steps = self._open() if self.to != Path() else None
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9, fused=True)

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randint(0, 256, (400, 1, 4, 4), generator=generator, dtype=torch.uint8)
        return Data(
            name="noise", real=False, train=Arrays(inputs, inputs.flatten(1).float().mean(1).div(64).long())
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        loss = functional.cross_entropy(model(inputs), targets)
        if self.step_ms:
            time.sleep(self.step_ms / 1000)
        if self.steps is not None:
            # Shared memory outlives a process that is killed.
            count = int.from_bytes(self.steps[:8], "little") + 1
            _SLOT.pack_into(self.steps, _SLOT.size * count, time.time(), loss.item())
            self.steps[:8] = count.to_bytes(8, "little")
        return loss

    def _open(self) -> mmap.mmap:
        size = _SLOT.size * (MAX_STEPS + 1)
        file = os.open(self.to, os.O_RDWR | os.O_CREAT, 0o600)
        # Not a file with holes: to write into one on a full disk is SIGBUS.
        os.posix_fallocate(file, 0, size)
        return mmap.mmap(file, size)


def witnessed(to: Path) -> list[tuple[float, float]]:
    """Time and loss of each step that was computed, by whichever process, in order."""
    data = to.read_bytes() if to.exists() else bytes(8)
    count = int.from_bytes(data[:8], "little")
    return [_SLOT.unpack_from(data, _SLOT.size * (1 + index)) for index in range(count)]
