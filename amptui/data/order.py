"""The order of samples in an epoch, and the share of it that one rank of a distributed run takes."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from amptui.base.errors import DataError, UsageError
from amptui.data.loaders import SeededIndices, length_of, seeded


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
        if not self._training:
            every = torch.arange(self.samples, device="cpu")
            mine = torch.split(every, self.batch_size)[rank::world_size] if world_size > 1 else (every,)
            return torch.cat(mine) if mine else every[:0]
        generator = torch.Generator().manual_seed(self.epoch_seed(epoch))
        shuffled = torch.randperm(self.samples, generator=generator, device="cpu")
        whole = shuffled[: len(self) * self.batch_size * world_size]
        return whole.view(-1, world_size, self.batch_size)[:, rank].reshape(-1) if world_size > 1 else whole

    def epoch_seed(self, epoch: int) -> int:
        """A 64-bit seed from the run's seed and ``epoch``; neighbouring numbers give unrelated seeds."""
        return seed_of(self._seed, epoch)


class DealtOrder(Sampler[Any]):
    """One rank's part of the batches of a loader; iterates over those of epoch ``self.epoch``.

    For training each rank gets as many, and of each group of batches, one for each rank, all have as many
    samples: what is left at the end of an epoch is left out. For validation nothing is.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, *, training: bool, share: Share) -> None:
        self._batches: Iterable[Any] = (
            loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        )
        self._total = _whole_batches(loader) if training else len(loader)
        self._seed = seed
        self._training = training
        self._share = share
        self.epoch = 0

    def __len__(self) -> int:
        rank, world_size = self._share.rank, self._share.world_size
        return self._total // world_size if self._training else len(range(rank, self._total, world_size))

    def __iter__(self) -> Iterator[Any]:
        every, world_size = self._draw(self.epoch), self._share.world_size
        if self._training:
            del every[len(self) * world_size :]
            for start in range(0, len(every), world_size):
                sizes = [length_of(batch) for batch in every[start : start + world_size]]
                if len(set(sizes)) > 1:  # the gradients of all ranks count the same
                    what = f"training batches {start + 1:,} to {start + world_size:,} have {sizes} samples"
                    hint = "ranks need batches of one size: let the batch sampler make them"
                    raise DataError(what, hint=hint)
        return iter(every[self._share.rank :: world_size])

    def checksum(self) -> int:
        """Of the order of the first epoch; ranks that draw different ones would train on the same samples."""
        return zlib.crc32(repr(self._draw(1)).encode())

    def _draw(self, epoch: int) -> list[Any]:
        """The sample indices of each batch of an epoch, of all ranks; draws from the loader's sampler."""
        with seeded(seed_of(self._seed, epoch)):
            every = list(islice(self._batches, self._total))
        if len(every) < self._total:
            what = f"the data's sampler ended after {len(every):,} batches, but its len() is {self._total:,}"
            raise DataError(what, hint="let it yield as many as it says")
        return every


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


def check_shared(source: object, role: str, world_size: int) -> None:
    """Raise UsageError for data whose batches cannot be dealt to ranks, and DataError for too few."""
    loader = source if isinstance(source, DataLoader) else None
    hint = "let load_data() return a Dataset with a length, of which each rank loads its part"
    if isinstance(source if loader is None else loader.dataset, IterableDataset):
        raise UsageError(f"the {role} data is a stream, which cannot be split between ranks", hint=hint)
    if loader is None:
        return
    if type(loader).__iter__ is not DataLoader.__iter__:
        what = f"the {role} data is a {type(loader).__name__} with an __iter__() of its own"
        raise UsageError(f"{what}, which cannot be split between ranks", hint=hint)
    batches = length_of(loader)
    if batches is None:
        what = f"the {role} DataLoader has a sampler without a length, which cannot be split between ranks"
        raise UsageError(what, hint="define its __len__")
    if role == "training" and _whole_batches(loader) < world_size:
        what = f"the training DataLoader has {batches:,} batches, not a whole one"
        raise DataError(
            f"{what} for each of {world_size:,} ranks", hint="use a smaller batch size, or fewer ranks"
        )


def left_out(source: object, batch_size: int, share: Share) -> str:
    """What of an epoch no rank trains on; "" if nothing is left. ``batch_size``: a rank's, of a data set."""
    if share.world_size == 1 or is_split(source, share):
        return ""
    if not isinstance(source, DataLoader):
        samples = length_of(source) or 0
        left = samples % (batch_size * share.world_size)
        what = f"{left:,} of {samples:,} training samples are left out of each epoch, others each time"
        return (
            f"{what}: they do not make a whole batch for each of {share.world_size:,} ranks" if left else ""
        )
    left = len(source) - _whole_batches(source) // share.world_size * share.world_size
    what = f"the last {left:,} of {len(source):,} training batches of each epoch are left out"
    return f"{what}: they do not make a whole one for each of {share.world_size:,} ranks" if left else ""


def _whole_batches(loader: DataLoader[Any]) -> int:
    """How many batches are not short."""
    sampler = loader.batch_sampler
    if type(sampler) is BatchSampler and not sampler.drop_last:
        return len(loader.sampler) // sampler.batch_size  # type: ignore[arg-type]  # len(loader) needs it too
    return len(loader)


def seed_of(seed: int, *numbers: int) -> int:
    """A 64-bit seed from a run's ``seed`` and ``numbers``; neighbouring ones give unrelated seeds."""
    entropy = (seed % (1 << 64), *numbers)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
