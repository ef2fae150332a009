"""Small sources of samples that tell which sample is which, and how they are opened."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from amptui.data.batches import Batches, open_batches
from amptui.data.sources import Arrays, Source

CPU = torch.device("cpu")


class Numbers(Dataset[int]):
    """The numbers below ``samples``."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """Five numbers, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


def arrays(samples: int) -> Arrays:
    """Targets are the samples' numbers; so are inputs, modulo 256."""
    numbers = torch.arange(samples)
    return Arrays((numbers % 256).to(torch.uint8)[:, None], numbers)


def opened(
    source: Source, *, batch_size: int = 4, seed: int = 0, training: bool = True, device: torch.device = CPU
) -> Batches:
    return open_batches(source, device=device, batch_size=batch_size, seed=seed, training=training)
