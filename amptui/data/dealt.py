"""A DataLoader that several ranks share: all draw one order, and its batches are dealt to them in turn."""

import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from amptui.base.errors import DataError, UsageError
from amptui.data.loaders import length_of, seeded
from amptui.data.order import Share, seed_of


class DealtOrder(Sampler[Any]):
    """One rank's part of the batches of a loader; iterates over those of epoch ``self.epoch``.

    For training each rank gets as many, and of each group of batches, one for each rank, all have as many
    samples: what is left at the end of an epoch is left out. For validation nothing is.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, *, training: bool, share: Share) -> None:
        self._batches: Iterable[Any] = _batches_of(loader)
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
                _check_equal(start, every[start : start + world_size])
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


def share_of(loader: DataLoader[Any], order: DealtOrder) -> DataLoader[Any]:
    """A loader as ``loader`` is, with workers and collate function, of the batches in ``order``."""
    batched: dict[str, Any] = {"batch_sampler": order}
    return DataLoader(
        loader.dataset,
        **({"sampler": order, "batch_size": None} if loader.batch_sampler is None else batched),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
    )


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


def _batches_of(loader: DataLoader[Any]) -> Iterable[Any]:
    """What yields the sample indices of each batch."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _whole_batches(loader: DataLoader[Any]) -> int:
    """How many batches are not short."""
    sampler = loader.batch_sampler
    if type(sampler) is BatchSampler and not sampler.drop_last:
        return len(loader.sampler) // sampler.batch_size  # type: ignore[arg-type]  # len(loader) needs it too
    return len(loader)


def _check_equal(first: int, group: list[Any]) -> None:
    """Raise DataError if the ranks would get batches of different sizes: their gradients count the same."""
    sizes = [length_of(batch) for batch in group]
    if len(set(sizes)) > 1:
        what = f"training batches {first + 1:,} to {first + len(group):,} have {sizes} samples"
        raise DataError(what, hint="ranks need batches of one size: let the batch sampler make them")
