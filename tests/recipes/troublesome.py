"""A model file that does to its process, at one step, what no part of a program should do to the others."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui import Data, DataRequest, Experiment
from amptui.data.sources import Arrays


class Troublesome(Experiment):
    """A linear model."""

    epochs: int = 4
    batch_size: int = 8
    folder: Path = Path()
    at: int = 20
    what: str = "fork"
    """One of ``TROUBLES``."""

    def load_data(self, request: DataRequest) -> Data:
        inputs = torch.rand(80, 4)
        arrays = Arrays(inputs, inputs.argmax(1))
        return Data("own", False, arrays, arrays)

    def build_model(self) -> nn.Module:
        self.calls = 0
        return nn.Linear(4, 4)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        self.calls += model.training
        if self.calls == self.at and model.training:
            TROUBLES[self.what](self)
        return functional.cross_entropy(model(inputs), targets)

    def fork(self) -> None:
        """Go on twice; each says who it is."""
        is_copy = os.fork() == 0
        (self.folder / ("copy" if is_copy else "original")).write_text(str(os.getpid()))


def close_streams() -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        print("half a line", end="", file=None if stream is sys.stdin else stream)
        stream.close()


def fork_and_exit() -> None:
    if os.fork() == 0:
        os._exit(0)


TROUBLES: dict[str, Callable[[Troublesome], object]] = {
    "close the streams": lambda _: close_streams(),
    "fork": Troublesome.fork,
    "fork that exits": lambda _: fork_and_exit(),
}
