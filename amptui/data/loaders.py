"""Helps with DataLoaders: the device of their generators, how a worker died, loading without workers."""

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from amptui.cores import read_cores, read_limits
from amptui.errors import DataError
from amptui.fork import how_ended

_DYING_SECONDS = 1.0
"""How long a worker whose connection broke may take to exit."""

_WORKER_ENDS = {
    -signal.SIGKILL: "if the machine ran out of memory, use fewer workers",
    -signal.SIGBUS: "shared memory is full: use fewer workers, or enlarge /dev/shm",
}
"""What to do about a worker that was killed by that signal."""

END = object()
"""Returned at the end of an iterator; a batch may be anything else, even None."""


def worker_count(most: int) -> int:
    """The number of worker processes to use: one less than the available cores, at most ``most``."""
    return min(most, read_cores(read_limits()).usable - 1)


def raise_dead_worker(workers: Sequence[multiprocessing.Process], error: Exception) -> None:
    """Raise ``DataError`` if one of a loader's ``workers`` has died; it says how."""
    limit = time.monotonic() + _DYING_SECONDS
    for worker in workers:
        worker.join(max(0.0, limit - time.monotonic()))
    dead = [(worker.exitcode, number) for number, worker in enumerate(workers) if worker.exitcode is not None]
    for code, number in sorted(dead, key=lambda each: each[0] == 0):  # 0: it may have been done
        what = f"DataLoader worker {number} of {len(workers)} {how_ended(code)}"
        raise DataError(what, hint=_WORKER_ENDS.get(code, "see what it printed")) from error


def draws_on_host(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` has a generator on the CPU while another device is torch's default.

    torch makes it raise if a model file has called ``torch.set_default_device("cuda")``.
    """
    generator = loader.generator
    on_host = generator is not None and generator.device.type == "cpu"
    # torch 2.9's get_default_device() fails after set_default_device(None).
    return on_host and torch.empty(0).device.type != "cpu"


def delivered(iterator: Iterator[Any], on_host: bool) -> Iterator[Any]:
    """The batches of ``iterator``; with ``on_host``, they are loaded with the CPU as default device."""
    if not on_host:
        yield from iterator
        return
    while True:
        with torch.device("cpu"):
            batch = next(iterator, END)
        if batch is END:
            return
        yield batch


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
