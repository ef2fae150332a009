"""The order of samples in an epoch, and the share of it that one rank of a distributed run takes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from amptui.base.errors import UsageError
from amptui.data.loaders import SeededIndices, length_of


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of every global batch a process takes: part ``rank`` of ``world_size`` equal ones."""

    rank: int = 0
    world_size: int = 1


WHOLE = Share()
"""That of a single process."""


class Order(Sampler[list[int]]):
    """The sample indices of each batch of an epoch; iterates over the batches of epoch ``self.epoch``.

    Training: the shuffled epoch of a single process with batches of ``batch_size * world_size`` samples,
    without a last short one; each rank takes its part of every batch. Validation: the batches of
    ``batch_size`` samples in order, dealt to the ranks in turn; the last may be short, and a rank may have
    none.
    """

    def __init__(
        self, samples: int, batch_size: int, seed: int, *, training: bool, share: Share = WHOLE
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.epoch = 0
        self.skip = 0
        """Batches that iteration leaves out at the start."""
        self.seeds_batches = False
        """Whether each batch comes with a seed for what is drawn while its samples are loaded."""
        self.shuffles = training
        self._seed = seed
        self._training = training
        self._share = share

    def __len__(self) -> int:
        rank, world_size = self._share.rank, self._share.world_size
        if self._training:
            return self.samples // (self.batch_size * world_size)
        batches = -(-self.samples // self.batch_size)
        return len(range(rank, batches, world_size))

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.batches(self.epoch)[self.skip :]
        if not self.seeds_batches:
            return (batch.tolist() for batch in batches)
        numbered = enumerate(batches, self.skip)
        # Rank 0 draws as a single process does.
        rank = (self._share.rank,) if self._share.rank else ()
        return (
            SeededIndices(batch.tolist(), seed_of(self._seed, self.epoch, number, *rank))
            for number, batch in numbered
        )

    def batches(self, epoch: int) -> tuple[Tensor, ...]:
        """The sample indices of each batch of an epoch, int64 on the CPU."""
        return self.split(self.indices(epoch))

    def split(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The batches of all ``indices`` of an epoch, on any device."""
        return torch.split(indices, self.batch_size) if len(indices) else ()

    def indices(self, epoch: int) -> Tensor:
        """The sample indices of an epoch, int64 [samples]; drawn on the CPU, so the same for every device."""
        rank, world_size = self._share.rank, self._share.world_size
        every = torch.arange(self.samples, device="cpu")
        if not self._training:
            mine = torch.split(every, self.batch_size)[rank::world_size] if world_size > 1 else (every,)
            return torch.cat(mine) if mine else every[:0]
        if self.shuffles:
            generator = torch.Generator().manual_seed(self.epoch_seed(epoch))
            every = torch.randperm(self.samples, generator=generator, device="cpu")
        whole = every[: len(self) * self.batch_size * world_size]
        return whole.view(-1, world_size, self.batch_size)[:, rank].reshape(-1) if world_size > 1 else whole

    def epoch_seed(self, epoch: int) -> int:
        """A 64-bit seed from the run's seed and ``epoch``; neighbouring numbers give unrelated seeds."""
        return seed_of(self._seed, epoch)


def is_split(source: object, share: Share) -> bool:
    """Whether a loader takes this rank's part by itself; raises UsageError if it takes another's."""
    sampler = source.sampler if isinstance(source, DataLoader) else None
    if not isinstance(sampler, DistributedSampler):
        return False
    if (sampler.rank, sampler.num_replicas) != (share.rank, share.world_size):
        what = f"a DistributedSampler for rank {sampler.rank} of {sampler.num_replicas}"
        what += f" on rank {share.rank} of {share.world_size}"
        raise UsageError(what, hint="leave out its arguments num_replicas and rank")
    return True


def check_shared(source: object, role: str) -> None:
    """Raise UsageError for data whose batches are not in an order of torch's, in which ranks take theirs."""
    loader = source if isinstance(source, DataLoader) else None
    hint = "let load_data() return a Dataset with a length, of which each rank loads its part"
    if isinstance(source if loader is None else loader.dataset, IterableDataset):
        raise UsageError(f"the {role} data is a stream, which cannot be split between ranks", hint=hint)
    if loader is not None and not (
        type(loader).__iter__ is DataLoader.__iter__
        and type(loader.batch_sampler) is BatchSampler
        and loader.batch_size is not None  # else the batch sampler is the script's
        and type(loader.sampler) in (RandomSampler, SequentialSampler)
        and not getattr(loader.sampler, "replacement", False)
        and length_of(loader.sampler) == length_of(loader.dataset)
    ):
        what = f"the {role} {type(loader).__name__} has a sampler or an __iter__() of its own"
        raise UsageError(f"{what}, which cannot be split between ranks", hint=hint)


def seed_of(seed: int, *numbers: int) -> int:
    """A 64-bit seed from a run's ``seed`` and ``numbers``; neighbouring ones give unrelated seeds."""
    entropy = (seed % (1 << 64), *numbers)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
