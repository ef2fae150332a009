"""Turns any supported data source into batches on the training device."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from amptui.base.cores import read_cores
from amptui.base.errors import DataError
from amptui.data.loaders import (
    END,
    SeededSamples,
    draws_on_host,
    generators_of,
    length_of,
    move,
    raise_dead_worker,
    unchanged,
    without_workers,
)
from amptui.data.order import WHOLE, Order, Share, check_shared, is_split
from amptui.data.sources import Arrays, Source
from amptui.device.accelerator import PINNING, free_bytes

Batch = Any
"""What the loss and the metrics get: a tensor, or nested tuples, lists and mappings; anything else in them is
passed through unchanged."""


MAX_WORKERS = 16
"""Processes that load samples, unless another number is asked for; at most one less than the cores."""

Passed = Callable[[int], bool]
"""Called with how many batches a loader has skipped; returns False to stop skipping."""


Collate = Callable[[list[Any]], Batch]
"""Makes a batch of samples."""


_LOADER_OPTIONS = (
    *("num_workers", "collate_fn", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("prefetch_factor", "persistent_workers", "in_order"),
)
"""What is kept of a DataLoader whose samples several processes share."""


def _go_on(_passed: int) -> bool:
    return True


class Batches:
    """A data set in batches on the training device.

    Its place in the data is an epoch, a number of batches and the states of generators: torchdata's
    StatefulDataLoader returns neither to what workers draw nor, without workers, to the next epoch's order.
    """

    samples: int | None
    """How many samples the data set has; None if unknown."""
    batches_per_epoch: int | None
    """How many batches an epoch has; None if unknown."""
    generators: tuple[torch.Generator, ...] = ()
    """Its own generators whose state carries over from epoch to epoch; not torch's global one."""

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:
        """The batches of one epoch, in an order that depends only on the seed and ``number``.

        A user's :class:`DataLoader` keeps its own order, which depends on the epochs before. The first
        ``skip`` batches are left out: a loader loads them before this returns, and calls ``passed`` for each.
        Raises ``DataError`` if a loader has fewer.
        """
        raise NotImplementedError

    def first(self) -> Batch:
        """One batch, loaded in this process without changing the order or generators of the epochs.

        Raises DataError if there is none.
        """
        return next(self.epoch(1))

    def close(self) -> None:
        """End the workers, if any; there is no epoch after this."""

    def start_workers(self) -> None:
        """Start workers that persist across epochs, as an earlier epoch would have done."""


def open_batches(  # noqa: PLR0913 - each is a choice of its own
    source: Source,
    *,
    device: torch.device,
    batch_size: int,
    seed: int,
    training: bool,
    workers: int | None = None,
    collate: Collate | None = None,
    share: Share = WHOLE,
) -> Batches:
    """Batches of ``source`` on ``device``: for training shuffled and without a last short one, else in order.

    A :class:`DataLoader` is used as it is, with its own batch size and order; several processes share its
    samples as those of its data set, shuffled if it shuffles. ``Arrays`` are kept on the device if they take
    at most a quarter of a GPU's free memory. Raises ``DataError`` if there is not one batch.

    ``workers`` processes load the samples of a map-style ``Dataset``, whose batches do not depend on their
    number; None is 0 on a CPU and up to ``MAX_WORKERS`` on a GPU. ``collate`` makes batches of its samples.

    ``batch_size`` is that of one process; ``share`` says which samples this one takes. Raises ``UsageError``
    for data that several processes cannot share.
    """
    if share.world_size > 1 and not is_split(source, share):
        check_shared(source, _role(training))
        if isinstance(source, DataLoader):
            options = {name: getattr(source, name) for name in _LOADER_OPTIONS}
            assert source.batch_size is not None, "its batch sampler is torch's"
            batch_size, option = source.batch_size, "a DataLoader with batch_size"
            samples = _samples(source.dataset, batch_size, training, share.world_size, option)
            order = Order(samples, batch_size, seed, training=training, share=share)
            order.shuffles = isinstance(source.sampler, RandomSampler)
            order.seeds_batches = source.worker_init_fn is None  # it is to meet the data set itself
            return _DatasetBatches(source.dataset, order, device, **options)
    if isinstance(source, DataLoader):
        batches: Batches = _LoadedBatches(source, device)
        if batches.batches_per_epoch == 0:
            what = f"the {_role(training)} DataLoader has no batches"
            raise DataError(what, hint="use a smaller batch size or drop_last=False")
        return batches
    if isinstance(source, IterableDataset):
        # No workers: each would deliver the whole stream unless the data set splits it itself.
        return _LoadedBatches(DataLoader(source, batch_size, drop_last=training, collate_fn=collate), device)
    samples = _samples(source, batch_size, training, share.world_size)
    order = Order(samples, batch_size, seed, training=training, share=share)
    if isinstance(source, Arrays):
        return _ArrayBatches(source, order, device)
    on_gpu = device.type != "cpu"
    order.seeds_batches = workers is not None or on_gpu
    if workers is None:
        workers = min(MAX_WORKERS, read_cores().usable - 1) if on_gpu else 0
    # Those of a validation end with it: they would keep their memory for the whole epoch.
    stay = training and workers > 0
    return _DatasetBatches(
        source, order, device, num_workers=workers, persistent_workers=stay, collate_fn=collate
    )


def count_samples(batch: Batch) -> int:
    """How many samples a batch has: the length of its first tensor; 0 if there is none."""
    if type(batch) is tuple and batch and type(batch[0]) is Tensor and batch[0].ndim:
        return batch[0].size(0)  # the usual case, in every step; len() of a tensor takes ten times as long
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, tuple | list):
        return 0
    return next((samples for part in batch if (samples := count_samples(part))), 0)


class _ArrayBatches(Batches):
    """A data set in memory: on the device, where no step waits for the host, or on the host."""

    def __init__(self, arrays: Arrays, order: Order, device: torch.device) -> None:
        self._is_resident = _fits(arrays, device)
        self._inputs = arrays.inputs.to(device) if self._is_resident else arrays.inputs
        self._targets = arrays.targets.to(device) if self._is_resident else arrays.targets
        self._order = order
        self._device = device
        self.samples = order.samples
        self.batches_per_epoch = len(order)

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:  # noqa: ARG002
        indices = self._order.indices(number)
        if self._is_resident and self._device.type in PINNING:
            # The copy from pinned memory is queued like a kernel; the host would wait for any other.
            indices = indices.pin_memory().to(self._device, non_blocking=True)
        for chosen in self._order.split(indices)[skip:]:
            batch = self._inputs.index_select(0, chosen), self._targets.index_select(0, chosen)
            inputs, targets = batch if self._is_resident else move(batch, self._device)
            yield _scaled(inputs), targets


class _LoadedBatches(Batches):
    """The batches of a DataLoader, moved to the device."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self.samples = length_of(loader.dataset)
        self.batches_per_epoch = length_of(loader)
        self.generators = generators_of(loader)
        self._iterator: object = None

    def first(self) -> Batch:
        on_host = torch.device("cpu") if draws_on_host(self._loader) else nullcontext()
        with unchanged(self.generators), on_host:
            for batch in without_workers(self._loader):
                return move(batch, self._device)
        raise DataError("the training data has no batches")

    def close(self) -> None:
        # Waits for them, as torch does when the last reference goes: they remove their own files.
        getattr(self._iterator, "_shutdown_workers", lambda: None)()
        self._iterator = None

    def start_workers(self) -> None:
        if self._loader.persistent_workers:
            # Only the first iterator draws a seed for the workers.
            iter(self._loader)

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:
        if isinstance(self._loader.sampler, DistributedSampler):
            self._loader.sampler.set_epoch(number)
        batches = self._batches()  # the loader's order is its own
        for skipped in range(skip):
            if next(batches, END) is END:
                what = f"the checkpoint is at batch {skip:,} of an epoch"
                what += f", but the data has only {skipped:,} batches"
                raise DataError(what, hint="resume with the data that the run started with")
            if not passed(skipped + 1):
                break
        return (move(batch, self._device) for batch in batches)

    def _batches(self) -> Iterator[Batch]:
        default_device = torch.device("cpu") if draws_on_host(self._loader) else nullcontext()
        with default_device:
            self._iterator = iterator = iter(self._loader)
        try:
            while True:
                with default_device:
                    batch = next(iterator, END)
                if batch is END:
                    return
                yield batch
        except DataError as error:
            # Its frames reference the loader: a later collection would wait seconds for workers that failed.
            traceback.clear_frames(error.__traceback__)
            # An error from a worker contains its traceback, which ends with the message.
            raise DataError(str(error).rpartition(f"{DataError.__name__}: ")[2].strip()) from error
        except (RuntimeError, OSError, EOFError) as error:
            # torch's message about a dead worker depends on what it was sending at that moment.
            if not str(error).startswith("Caught "):
                self._iterator = None  # do not join the others: they may wait for a lock that it held
                raise_dead_worker(getattr(iterator, "_workers", ()), error)
            raise


class _DatasetBatches(_LoadedBatches):
    """A map-style data set in a DataLoader with our order and ``options`` of its own.

    Samples may draw random numbers, to augment images say. Where workers load them, or a number of workers
    was asked for, each batch has its own seed for that: it is the same whoever loads it, also after a resume.
    """

    def __init__(self, dataset: Dataset[Any], order: Order, device: torch.device, **options: Any) -> None:
        # The loader draws its workers' seeds from this generator, not from torch's global one.
        self._generator = torch.Generator()
        self._order = order
        loader = DataLoader(
            SeededSamples(dataset) if order.seeds_batches else dataset,
            batch_sampler=order,
            generator=self._generator,
            pin_memory=device.type in PINNING,
            **options,
        )
        super().__init__(loader, device)
        self.generators = ()  # seeded again for each epoch

    def first(self) -> Batch:
        self._order.epoch, self._order.skip = 1, 0
        return super().first()

    def start_workers(self) -> None:
        """Nothing to do: the workers draw nothing from torch's global generator."""

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:  # noqa: ARG002
        self._order.epoch, self._order.skip = number, skip
        self._generator.manual_seed(self._order.epoch_seed(number))
        return super().epoch(number)


def _scaled(inputs: Tensor) -> Tensor:
    """uint8 pixels as float32 in [0, 1]; any other dtype unchanged."""
    if inputs.dtype != torch.uint8:
        return inputs
    if not inputs.is_cpu and torch.get_default_dtype() is torch.float32:
        return inputs.div(255)  # one kernel
    return inputs.to(torch.float32).div_(255)


def _fits(arrays: Arrays, device: torch.device) -> bool:
    """Whether the arrays take at most a quarter of a GPU's free memory; always true on a CPU."""
    free = free_bytes(device)
    return free is None or arrays.inputs.nbytes + arrays.targets.nbytes <= free / 4


def _samples(
    source: Arrays | Dataset[Any],
    batch_size: int,
    training: bool,
    world_size: int,
    size_option: str = "--batch-size",
) -> int:
    """How many samples there are; raises DataError if they do not fill one batch of every rank."""
    role, samples = _role(training), length_of(source)
    if source is None or isinstance(source, str | bytes):
        what = f"the {role} data is {'None' if source is None else 'a string'}"
        raise DataError(what, hint="return an Arrays, a Dataset or a DataLoader")
    if samples is None:
        raise DataError(f"the {role} set has no length", hint="define __len__, or make it an IterableDataset")
    if samples == 0:
        raise DataError(f"the {role} set is empty")
    if training and samples < batch_size * world_size:
        what = f"the training set has {samples:,} samples, fewer than one batch of {batch_size:,}"
        if world_size > 1:
            what += f" for each of {world_size:,} ranks"
        fitting = samples // world_size
        raise DataError(what, hint=f"use {size_option} {fitting} or less" if fitting else "use fewer ranks")
    return samples


def _role(training: bool) -> str:
    return "training" if training else "validation"
