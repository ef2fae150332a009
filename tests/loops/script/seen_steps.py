"""A small loop of a test, and the records of its steps while it is observed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import amptui
from amptui.records.run import Record
from tests.builders import StepRow, of, recorded

BATCHES = 6


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batches(count: int = BATCHES) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(4, 4, generator=generator), torch.randint(0, 2, (4,), generator=generator)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def update(optimizer: Optimizer, loss: Tensor, *, set_to_none: bool = True) -> Tensor:
    """The optimizer's step with a loss, as in the simplest loop; returns the loss."""
    optimizer.zero_grad(set_to_none)
    loss.backward()
    optimizer.step()
    return loss


@contextmanager
def watching(model: nn.Module, optimizer: Optimizer) -> Iterator[list[Record]]:
    records: list[Record] = []
    with amptui.observe(model, optimizer):
        yield records
    runs = Path.home() / ".local" / "state" / "amptui" / "runs"
    records += recorded(runs)
    shutil.rmtree(runs)  # a law has one after the other


def steps_of(records: list[Record], optimizer: str = "") -> list[StepRow]:
    return [step for step in of(StepRow, records) if step.optimizer == optimizer]
