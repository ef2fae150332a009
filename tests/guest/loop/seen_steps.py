"""Watches a loop of a test without a run's folder: the records that its steps make."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.observed_optimizer import ObservedOptimizer
from amptui.records.run import Record
from tests.builders import StepRow, of, one_by_one

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


def _fail(error: Exception) -> None:
    raise error


def observed_loop(
    model: nn.Module,
    optimizer: Optimizer,
    emit: Callable[[Record], object],
    data_parallel: int = 0,
) -> ObservedLoop:
    """A loop whose steps are seen from here on; a fault of ours is an error of the test."""
    loop = ObservedLoop()
    loop.open(emit, on_first_step=lambda _precision: None, on_fault=_fail)
    loop.add(ObservedOptimizer(model, optimizer, loop, data_parallel=data_parallel), optimizer)
    return loop


@contextmanager
def watching(
    model: nn.Module, optimizer: Optimizer, *, counts_inputs: bool = False
) -> Iterator[list[Record]]:
    """The records of its steps, complete at the end of the block.

    ``counts_inputs``: whether samples are those that the model is called with, from the second step on.
    """
    records: list[Record] = []
    loop = observed_loop(
        model,
        optimizer,
        lambda record: records.extend(one_by_one([record])),
        data_parallel=int(counts_inputs),
    )
    del model, optimizer  # the test may drop them
    try:
        yield records
    finally:
        loop.close()


def steps_of(records: list[Record], optimizer: str = "") -> list[StepRow]:
    """The steps of one of the optimizers."""
    return [step for step in of(StepRow, records) if step.optimizer == optimizer]
