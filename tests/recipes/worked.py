"""A model file that defines its own data set, loaded by workers of any kind."""

import os
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from amptui import Data, DataRequest, Experiment


class Own(Dataset[tuple[Tensor, int]]):
    """Known by name to whoever can import this file."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(index)), index % 4


class Worked(Experiment):
    """A linear model."""

    epochs: int = 2
    start_method: Literal["fork", "spawn", "forkserver"] = "fork"
    pid_file: Path = Path("pid")

    def load_data(self, request: DataRequest) -> Data:
        self.pid_file.write_text(str(os.getpid()))
        loader = DataLoader(
            Own(), 8, num_workers=1, persistent_workers=True, multiprocessing_context=self.start_method
        )
        return Data("own", False, loader, loader)

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 4)
