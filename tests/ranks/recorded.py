"""What ranks train in tests: it writes down its steps, and fails, overflows or waits where it is told to."""

import hashlib
import math
import os
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from amptui import Data, DataRequest
from amptui.data.sources import Arrays
from tests.tiny import Log, Tiny, log_of, prepare

STEPS: list[tuple[str, str]] = []
"""The precision of each step of this process, and a hash of the weights after it."""


class Block(nn.Module):
    """A residual block, one layer of which gets its sizes from the first batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.LazyLinear(2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = values + self.layers(self.norm(values))
        return result


class OddModel(nn.Module):
    """Its loss is a method, and nobody calls forward()."""

    def __init__(self, width: int = 12, *, unused: bool = False, outside: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.blocks[1].get_submodule("norm").requires_grad_(False)
        self.head = nn.Linear(width, 8, bias=False)
        self.head.weight = self.embedding.weight
        if unused:
            self.unused = nn.Parameter(torch.zeros(3))
            self.blocks.append(nn.Linear(width, width))
        self.depth = 3
        self.outside = outside

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        values = self.embedding((inputs.flatten(1) * 7.99).long()).mean(1)
        for block in self.blocks[: self.depth]:
            values = block(values)
        if self.outside:
            values = values * self.blocks[0].get_parameter("norm.weight")
        return functional.cross_entropy(self.head(values), targets)


class Recorded(Tiny):
    """Writes down the precision in which each step runs, and the weights after it."""

    epochs: int = 1_000_000
    samples: int = 96
    slow_seconds: float = 0.0
    """The mean of a random delay before each step, different on each rank."""
    batch_norm: bool = True
    """It takes its means over a rank's own batch: another training than that of one process."""
    loader: bool = False
    """Its data is a DataLoader of its own, with a worker, and validates in batches of 10."""
    held: str = ""
    """A file that step 20 waits for: a test that is slow finds the run no further."""
    loading_seconds: float = 0.0
    unused: bool = False
    """Has a parameter without a part in the loss."""
    dropout: float = 0.0
    communicates: bool = False
    """Its loss is averaged over the ranks by itself."""
    lag_seconds: float = 0.0
    """How long rank ``lags_on_rank`` takes after each step, or after ``lag_step`` only."""
    lags_on_rank: int = 1
    lag_step: int = 0
    fails_on_rank: int = -1
    """The rank that raises an error in its third step or in the first one of a precision."""
    fails_in: str = ""
    """The precision in which it does."""
    fails_late: bool = False
    """It fails there in the optimizer's step, after all ranks have averaged their gradients."""
    overflows_on_rank: int = -1
    """The rank whose loss is Inf in step ``overflow_step``."""
    overflow_step: int = 3
    fused_sgd: bool = False
    odd: bool = False
    outside: bool = False
    """Its loss uses the weights of a block outside the block."""

    def load_data(self, request: DataRequest) -> Data:
        if os.environ.get("RANK") == "1":
            time.sleep(self.loading_seconds)
        data = super().load_data(request)
        if not self.loader:
            return data
        return as_loaders(data, self.batch_size)

    def build_model(self) -> nn.Module:
        if self.odd:
            return OddModel(unused=self.unused, outside=self.outside)
        layers = super().build_model().children()
        keep = self.batch_norm
        model = nn.Sequential(*[layer for layer in layers if keep or type(layer) is not nn.BatchNorm1d])
        if self.dropout:
            model.insert(2, nn.Dropout(self.dropout))
        if self.unused:
            model[1].register_parameter("unused", nn.Parameter(torch.zeros(3)))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        if self.slow_seconds:
            time.sleep(random.random() * 2 * self.slow_seconds)
        while self.held and len(STEPS) == 19 and not Path(self.held).exists():
            time.sleep(0.01)
        self.precision = precision_now()
        loss = model.loss(*batch) if isinstance(model, OddModel) else super().loss(model, batch)
        if self.communicates:
            torch.distributed.all_reduce(torch.zeros(1))
        if self.fails_in == self.precision if self.fails_in else len(STEPS) == 2:
            self._fail(late=False)
        if (
            len(STEPS) + 1 == self.overflow_step
            and model.training
            and os.environ.get("RANK") == str(self.overflows_on_rank)
        ):
            assert isinstance(loss, Tensor)
            return loss * math.inf
        return loss

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.fused_sgd:
            return torch.optim.SGD(model.parameters(), lr=self.learning_rate, fused=True)
        optimizer = super().build_optimizer(model)
        optimizer.register_step_pre_hook(
            lambda *_: self._fail(late=True) if self.precision == self.fails_in else None
        )
        return optimizer

    def _fail(self, *, late: bool) -> None:
        if self.fails_late == late and os.environ.get("RANK") == str(self.fails_on_rank):
            raise ArithmeticError("a wrong number")

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {} if self.odd else super().metrics(model, batch)

    def after_step(self, model: nn.Module) -> None:
        if os.environ.get("RANK") == str(self.lags_on_rank) and self.lag_step in (0, len(STEPS) + 1):
            time.sleep(self.lag_seconds)
        weights = b"".join(whole(p).detach().numpy().tobytes() for p in model.parameters())
        STEPS.append((self.precision, hashlib.sha1(weights, usedforsecurity=False).hexdigest()[:12]))


def alone(batch_size: int = 16, *, options: Mapping[str, Any] | None = None, **fields: Any) -> Log:
    """What one process records that trains for two epochs with the batches of all ranks."""
    return log_of(prepare(Recorded(epochs=2, batch_size=batch_size, **fields), **(options or {})))


def whole(parameter: Any) -> Tensor:
    """All of a parameter, of which this rank may have a part."""
    gathered: Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return gathered


class Drawing(Recorded):
    def build_model(self) -> nn.Module:
        return nn.Sequential(super().build_model(), nn.Dropout(0.2))

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        inputs, targets = batch
        noise = torch.rand(()) + random.random() + np.random.random()
        return super().loss(model, (inputs + 0.1 * noise, targets))


def precision_now() -> str:
    if not torch.is_autocast_enabled("cpu"):
        return "fp32"
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}[torch.get_autocast_dtype("cpu")]


def as_loaders(data: Data, batch_size: int) -> Data:
    """The same samples in loaders of one's own: one with a worker, one with a collate function."""
    assert isinstance(data.train, Arrays)
    samples = TensorDataset(data.train.inputs / 255, data.train.targets)
    train = DataLoader(samples, batch_size, num_workers=1)
    return replace(data, train=train, validation=DataLoader(samples, 10, collate_fn=_collated))


def _collated(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(targets)
