"""Turns whatever can be trained on into batches on the training device."""

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from amptui.data.loaders import END, delivered, draws_on_host, tell_dead_worker, without_workers, worker_count
from amptui.data.sources import Arrays, Source
from amptui.errors import DataError

Batch = Any
"""What the loss and the metrics get: a tensor, or tuples, lists and mappings of batches; all else in them
is handed on untouched."""


Passed = Callable[[int], bool]
"""Told how many batches a loader has passed over; false ends that where it is."""


def _go_on(_passed: int) -> bool:
    return True


class Batches(Protocol):
    """A data set cut into batches on the training device."""

    @property
    def samples(self) -> int | None:
        """How many samples the data set has; None if it does not know."""

    @property
    def batches_per_epoch(self) -> int | None:
        """How many batches an epoch has; None if the data set does not know."""

    @property
    def dropped(self) -> int:
        """How many batches of the newest epoch were None so far; they are left out."""

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """Those of its own that go on from epoch to epoch; torch's global one is not among them."""

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:
        """The batches of one epoch, in an order that depends on the seed and ``number`` alone.

        A :class:`DataLoader` of the user's keeps its own order, which depends on what came before. The first
        ``skip`` batches are left out: a loader has to load them, before this returns, and ``passed`` is told.
        Raises ``DataError`` where a loader has fewer.
        """

    def first(self) -> Batch:
        """A batch as epochs have them, loaded in this process; their order and generators stay as they are.

        Raises DataError where there is none.
        """

    def close(self) -> None:
        """End the workers, if there are some; no epoch comes after."""

    def start_workers(self) -> None:
        """Make ready what outlives an epoch, as one before would have: the epochs after the first find it."""


def open_batches(
    source: Source, *, device: torch.device, batch_size: int, seed: int, training: bool
) -> Batches:
    """Batches of ``source`` on ``device``: shuffled, without a last short one, for training; else in order.

    A :class:`DataLoader` is used as it was made, with its own batch size and order. ``Arrays`` lie on the
    device as a whole if that takes at most a quarter of a GPU's free memory. Raises ``DataError`` when
    there is not one batch.
    """
    if isinstance(source, DataLoader):
        batches: Batches = _LoadedBatches(source, device)
        if batches.batches_per_epoch == 0:
            what = f"the {_role(training)} DataLoader has no batches"
            raise DataError(what, mend="use a smaller batch size or drop_last=False")
        return batches
    if isinstance(source, IterableDataset):
        # No workers: each of them would deliver the whole stream unless the data set shares it out itself.
        return _LoadedBatches(DataLoader(source, batch_size, drop_last=training), device)
    order = _Order(_samples(source, batch_size, training), batch_size, seed, training=training)
    if not isinstance(source, Arrays):
        return _DatasetBatches(source, order, device)
    if _fits(source, device):
        return _ResidentBatches(source, order, device)
    return _StreamedBatches(source, order, device)


def count_samples(batch: Batch) -> int:
    """How many samples a batch holds: the length of the first tensor in it; 0 if there is none."""
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


def move(batch: Batch, device: torch.device) -> Batch:
    """The same nest with its tensors on ``device``; the host does not wait for the copies."""
    if isinstance(batch, Tensor | PackedSequence):
        if device.type == "cuda" and not batch.is_cuda and not batch.is_pinned():
            batch = batch.pin_memory()  # from other memory the host waits for the copy
        return batch.to(device, non_blocking=True)
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        moved.update({key: move(value, device) for key, value in batch.items()})
        return moved
    if isinstance(batch, tuple | list):
        parts = [move(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


class _Order(Sampler[list[int]]):
    """Which samples make which batch of an epoch; as an iterable, the batches of epoch ``self.epoch``."""

    def __init__(self, samples: int, batch_size: int, seed: int, *, training: bool) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.epoch = 0
        self.skip = 0
        """As an iterable, leaves out so many batches."""
        self._seed = seed
        self._training = training

    def __len__(self) -> int:
        full, rest = divmod(self.samples, self.batch_size)
        return full + (rest > 0 and not self._training)

    def __iter__(self) -> Iterator[list[int]]:
        batches = torch.split(self.indices(self.epoch), self.batch_size)
        return (batch.tolist() for batch in batches[self.skip :])

    def indices(self, epoch: int) -> Tensor:
        """The samples of an epoch's batches in a row: int64 on the CPU, hence the same for every device."""
        if not self._training:
            return torch.arange(self.samples, device="cpu")
        generator = torch.Generator().manual_seed(self.epoch_seed(epoch))
        shuffled = torch.randperm(self.samples, generator=generator, device="cpu")
        return shuffled[: len(self) * self.batch_size]

    def epoch_seed(self, epoch: int) -> int:
        """A seed of 64 bits that two numbers determine and that neighbours do not share."""
        entropy = (self._seed % (1 << 64), epoch)
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


class _ResidentBatches:
    """A data set that lies on the device as a whole; no step waits for the host's memory."""

    generators: tuple[torch.Generator, ...] = ()
    dropped = 0

    def __init__(self, arrays: Arrays, order: _Order, device: torch.device) -> None:
        self._inputs = arrays.inputs.to(device)
        self._targets = arrays.targets.to(device)
        self._order = order
        self._device = device
        self.samples = order.samples
        self.batches_per_epoch = len(order)

    def first(self) -> Batch:
        return next(self.epoch(1))

    def close(self) -> None:
        """There are no workers."""

    def start_workers(self) -> None:
        """There are none."""

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:  # noqa: ARG002
        indices = self._order.indices(number)
        if self._device.type == "cuda":
            # From pinned memory the copy is queued like a kernel; from any other the host would wait for it.
            indices = indices.pin_memory().to(self._device, non_blocking=True)
        for batch in torch.split(indices, self._order.batch_size)[skip:]:
            yield _scaled(self._inputs.index_select(0, batch)), self._targets.index_select(0, batch)


class _LoadedBatches:
    """What torch's loader delivers, moved to the device."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self.samples = _length(loader.dataset)
        self.batches_per_epoch = _length(loader)
        self.generators = _generators(loader)
        self.dropped = 0
        self._iterator: object = None

    def first(self) -> Batch:
        states = [generator.get_state() for generator in self.generators]
        try:
            with torch.device("cpu") if draws_on_host(self._loader) else nullcontext():
                for batch in without_workers(self._loader):
                    if batch is not None:
                        return move(batch, self._device)
        finally:
            for generator, state in zip(self.generators, states, strict=True):
                generator.set_state(state)
        raise DataError("the training data have no batch")

    def close(self) -> None:
        # Waits for them, as torch does where the last reference goes: they remove their files themselves.
        getattr(self._iterator, "_shutdown_workers", lambda: None)()
        self._iterator = None

    def start_workers(self) -> None:
        if self._loader.persistent_workers:
            # The first iterator draws a seed for the workers, those after it do not.
            iter(self._loader)

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:  # noqa: ARG002
        batches = self._batches()  # the loader's order is its own
        for done in range(skip):
            if next(batches, END) is END:
                what = f"an epoch had more than {done:,} batches when its checkpoint was written"
                raise DataError(what, mend="resume with the data that the run began with")
            if not passed(done + 1):
                break
        return (move(batch, self._device) for batch in batches)

    def _batches(self) -> Iterator[Batch]:
        """All but those that are None: a ``collate_fn`` that leaves out bad samples may have none left."""
        self.dropped = 0
        on_host = draws_on_host(self._loader)
        with torch.device("cpu") if on_host else nullcontext():
            self._iterator = iterator = iter(self._loader)
        try:
            for batch in delivered(iterator, on_host):
                if batch is None:
                    self.dropped += 1
                else:
                    yield batch
        except DataError as error:
            # Its frames hold the loader: a collection much later would wait seconds for workers that failed.
            traceback.clear_frames(error.__traceback__)
            # From a worker it comes with the traceback it had there, which ends with what it said.
            raise DataError(str(error).rpartition(f"{DataError.__name__}: ")[2].strip()) from error
        except (RuntimeError, OSError, EOFError) as error:
            # What torch says of a worker that is gone depends on what it was sending at that moment.
            if not str(error).startswith("Caught "):
                self._iterator = None  # the others may wait for a lock that it held: nobody waits for them
                tell_dead_worker(getattr(iterator, "_workers", ()), error)
            raise


class _DatasetBatches(_LoadedBatches):
    """A map-style data set behind a loader that keeps our order."""

    def __init__(self, dataset: Dataset[Any], order: _Order, device: torch.device) -> None:
        # The loader draws its workers' seeds from the generator and leaves torch's global one alone.
        self._generator = torch.Generator()
        self._order = order
        on_gpu = device.type == "cuda"
        workers = worker_count(4) if on_gpu else 0
        loader = DataLoader(
            dataset,
            batch_sampler=order,
            generator=self._generator,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=on_gpu,
        )
        super().__init__(loader, device)
        self.generators = ()  # seeded anew with each epoch

    def first(self) -> Batch:
        self._order.epoch, self._order.skip = 1, 0
        return super().first()

    def start_workers(self) -> None:
        """They take nothing from torch's global generator."""

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:  # noqa: ARG002
        self._order.epoch, self._order.skip = number, skip
        self._generator.manual_seed(self._order.epoch_seed(number))
        return super().epoch(number)


class _StreamedBatches(_LoadedBatches):
    """Arrays too large for the device: batches are gathered here and copied there."""

    def __init__(self, arrays: Arrays, order: _Order, device: torch.device) -> None:
        self._order = order
        # A sampler of whole batches and no batch size: one indexing call gathers a batch.
        loader = DataLoader(
            TensorDataset(arrays.inputs, arrays.targets),
            sampler=order,
            batch_size=None,
            generator=torch.Generator(),
            pin_memory=device.type == "cuda",
        )
        super().__init__(loader, device)
        self.batches_per_epoch = len(order)
        self.generators = ()  # draws nothing that is used

    def first(self) -> Batch:
        return next(self.epoch(1))

    def epoch(self, number: int, *, skip: int = 0, passed: Passed = _go_on) -> Iterator[Batch]:  # noqa: ARG002
        self._order.epoch, self._order.skip = number, skip
        return ((_scaled(inputs), targets) for inputs, targets in super().epoch(number))


def _scaled(inputs: Tensor) -> Tensor:
    """Pixels as float32 in [0, 1]; any other dtype than uint8 as it is."""
    if inputs.dtype != torch.uint8:
        return inputs
    if inputs.is_cuda and torch.get_default_dtype() is torch.float32:
        return inputs.div(255)  # one kernel
    return inputs.to(torch.float32).div_(255)


def _fits(arrays: Arrays, device: torch.device) -> bool:
    """Whether the arrays take at most a quarter of what is free on a GPU; a CPU holds them already."""
    if device.type != "cuda":
        return True
    free_bytes, _total_bytes = torch.cuda.mem_get_info(device)
    return arrays.inputs.nbytes + arrays.targets.nbytes <= free_bytes / 4


def _samples(source: Arrays | Dataset[Any], batch_size: int, training: bool) -> int:
    """How many samples there are, at least enough for one batch."""
    role, samples = _role(training), _length(source)
    if source is None or isinstance(source, str | bytes):
        what = f"the {role} data are {'None' if source is None else 'a text'}"
        raise DataError(what, mend="give an Arrays, a Dataset or a DataLoader")
    if samples is None:
        raise DataError(
            f"the {role} set has no length", mend="give it __len__, or make it an IterableDataset"
        )
    if samples == 0:
        raise DataError(f"the {role} set is empty")
    if training and samples < batch_size:
        what = f"the training set has {samples:,} samples, fewer than one batch of {batch_size:,}"
        raise DataError(what, mend=f"use --batch-size {samples} or less")
    return samples


def _generators(loader: DataLoader[Any]) -> tuple[torch.Generator, ...]:
    """The generators that a person gave to ``loader`` and to its samplers, each once."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = (getattr(owner, "generator", None) for owner in (loader, *samplers))
    return tuple({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _length(source: object) -> int | None:
    try:
        return len(source)  # type: ignore[arg-type]  # whether it has a length is the question
    except TypeError:
        return None


def _role(training: bool) -> str:
    return "training" if training else "validation"
