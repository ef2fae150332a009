"""Helps with DataLoaders, from a batch's seed and a worker's death to its move to the training device."""

import copy
import multiprocessing
import random
import signal
import time
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from amptui.base.errors import DataError
from amptui.base.fork import how_ended
from amptui.device.accelerator import PINNING

_DYING_SECONDS = 1.0
"""How long a worker whose connection broke may take to exit."""

_WORKER_ENDS = {
    -signal.SIGKILL: "if the machine ran out of memory, use fewer workers",
    -signal.SIGBUS: "shared memory is full: use fewer workers, or enlarge /dev/shm",
}
"""What to do about a worker that was killed by that signal."""

END = object()
"""Returned at the end of an iterator; a batch may be anything else, even None."""


class SeededIndices(list[int]):
    """The indices of a batch, with the seed for what is drawn while its samples are loaded."""

    def __init__(self, indices: Iterable[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed


class SeededSamples(Dataset[Any]):
    """The samples of ``dataset``, loaded a batch at a time, with generators seeded for that batch."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]  # the order has asked for it

    def __getitems__(self, indices: SeededIndices) -> list[Any]:
        """The samples of one batch; torch's DataLoader asks for them so."""
        with seeded(indices.seed):
            together = getattr(self._dataset, "__getitems__", None)
            if callable(together):
                return list(together(list(indices)))
            return [self._dataset[index] for index in indices]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The generators of Python, numpy and torch seeded within; in the training's own process as before after.

    A GPU's generators are left alone: ``torch.manual_seed()`` would seed them too.
    """
    before = None
    if get_worker_info() is None:
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        if before is not None:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])


def raise_dead_worker(workers: Sequence[multiprocessing.Process], error: Exception) -> None:
    """Raise ``DataError`` if one of a loader's ``workers`` has died; it says how."""
    limit = time.monotonic() + _DYING_SECONDS
    for worker in workers:
        worker.join(max(0.0, limit - time.monotonic()))
    dead = [(worker.exitcode, number) for number, worker in enumerate(workers) if worker.exitcode is not None]
    for code, number in sorted(dead, key=lambda end: end[0] == 0):  # 0: it may have been done
        what = f"DataLoader worker {number} of {len(workers)} {how_ended(code)}"
        raise DataError(what, hint=_WORKER_ENDS.get(code, "see what it printed")) from error


def draws_on_host(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` has a generator on the CPU while another device is torch's default.

    torch makes it raise if a model file has called ``torch.set_default_device`` with another.
    """
    generator = loader.generator
    on_host = generator is not None and generator.device.type == "cpu"
    # torch 2.9's get_default_device() fails after set_default_device(None).
    return on_host and torch.empty(0).device.type != "cpu"


def without_workers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same batches, loaded in this process; a loader with its own ``__iter__`` is returned unchanged."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        return loader
    dataset, collate = loader.dataset, loader.collate_fn
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, loader.batch_size, collate_fn=collate, drop_last=loader.drop_last)
    if loader.batch_sampler is None:
        return DataLoader(dataset, None, sampler=loader.sampler, collate_fn=collate)
    return DataLoader(dataset, batch_sampler=loader.batch_sampler, collate_fn=collate)


def generators_of(loader: DataLoader[Any]) -> tuple[torch.Generator, ...]:
    """The generators of ``loader`` and its samplers that the user set, each once."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    candidates = (getattr(owner, "generator", None) for owner in (loader, *samplers))
    return tuple({id(one): one for one in candidates if isinstance(one, torch.Generator)}.values())


@contextmanager
def unchanged(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """``generators`` have the same state after this as before."""
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def length_of(source: object) -> int | None:
    """Its length; None where it knows none."""
    try:
        return len(source)  # type: ignore[arg-type]  # whether it has a length is the question
    except TypeError:
        return None


def move(batch: Any, device: torch.device) -> Any:
    """The same structure with its tensors on ``device``; the host does not wait for the copies."""
    if isinstance(batch, Tensor | PackedSequence):
        tensor = batch.data if isinstance(batch, PackedSequence) else batch
        if device.type in PINNING and tensor.is_cpu and not tensor.is_pinned():
            batch = batch.pin_memory()  # the host waits for copies from other memory
        return batch.to(device, non_blocking=True)
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        moved.update({key: move(value, device) for key, value in batch.items()})
        return moved
    if isinstance(batch, tuple | list):
        parts = [move(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
