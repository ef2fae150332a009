"""Hashes of each rank's weights, to find replicas that no longer have the same."""

import math
from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor, nn

from amptui.device.accelerator import capabilities
from amptui.probes.budget import Cadence
from amptui.probes.gradients import in_memory_order, together

WEIGHTS_BUDGET = 0.0005
"""The fraction of rank 0's time that hashes may take: 5 us of a step of 10 ms."""

MIN_HASH_SECONDS = 1.0
"""The time from one hash to the next at least: replicas that differ stay different."""

_ROW_WORDS = 1024
"""64-bit words of a row."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightsHash:
    """The hash of a model's parameters, computed on their device.

    The bit patterns are read as 64-bit words and laid out in matrices. The sums of each row and of each
    column are added up modulo 2^64, each multiplied by a random factor of its own. A plain sum would not
    notice two values that changed places, or all of them moved by one: here that changes sums of rows, or
    within a row those of columns. Factors of rows are odd and those of columns even, so that one changed word
    is multiplied by an odd number, which never gives 0. Sums of integers do not depend on the order in which
    a device adds them.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._factors: Tensor | None = None

    @torch.no_grad()
    def compute(self) -> Tensor:
        """[] int64, on the device of the parameters; the host does not wait for it."""
        matrices: list[Tensor] = []
        rests: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for parameter in self._parameters:
            flat = _integers(parameter)
            row = _ROW_WORDS * 8 // flat.itemsize
            whole = flat.numel() // row * row
            if whole:
                matrices.append(flat[:whole].view(torch.int64).view(-1, _ROW_WORDS))
            if whole < flat.numel():
                rests[flat.dtype].append(flat[whole:])
        for rest in map(torch.cat, rests.values()):
            padding = -rest.numel() % (_ROW_WORDS * 8 // rest.itemsize)
            matrices.append(nn.functional.pad(rest, (0, padding)).view(torch.int64).view(-1, _ROW_WORDS))
        if not matrices:
            return torch.zeros((), dtype=torch.int64, device="cpu")
        rows = [matrix.sum(1) for matrix in matrices]
        columns = [matrix.sum(0) for matrix in matrices]
        sums = torch.cat(together([*rows, *columns], matrices[0].device))
        if self._factors is None:
            factors = _factors(sum(map(len, rows)), len(sums))
            self._factors = factors.to(sums.device, non_blocking=True)
        return (sums * self._factors).sum()


def _factors(odd: int, count: int) -> Tensor:
    """[count] int64: random numbers, the same on all ranks; the first ``odd`` are odd and the others even."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(-(1 << 63), (1 << 63) - 1, (count,), generator=generator)
    return torch.cat([numbers[:odd] | 1, numbers[odd:] & ~1])


def _integers(parameter: Tensor) -> Tensor:
    """The bit patterns in memory order, in one dimension; a copy only if not dense or not aligned."""
    values = parameter.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    flat = in_memory_order(values).contiguous()
    if flat.storage_offset() * flat.itemsize % 8:
        flat = flat.clone()
    return flat.view(_INTEGERS[flat.itemsize])


class WeightsCheck:
    """One rank's part in comparing weights: hashes them when rank 0 asks, and tells the result later.

    Used by the trainer's thread, which never waits for the device. ``leads``: this is rank 0, which asks as
    often as ``WEIGHTS_BUDGET`` allows.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device, *, leads: bool) -> None:
        self._hash = WeightsHash(parameters)
        self._reads_later = capabilities(device).timed_events
        self._device = device
        self._leads = leads
        self._cadence = Cadence(WEIGHTS_BUDGET)
        self._is_asking = False
        self._asked_at = -MIN_HASH_SECONDS
        self._room: Tensor | None = None
        """Pinned memory, for one hash at a time."""
        self._pending: tuple[int, Tensor, torch.Event, torch.Event, float] | None = None
        """A hash on its way: its step, its place in pinned memory, its start, its end, the host's seconds."""
        self._newest = -1, math.nan

    def hash(self, step: int) -> None:
        """Hash the weights after ``step``, as all ranks do now."""
        self._is_asking = False
        try:
            self._begin(step)
        except torch.OutOfMemoryError:  # no reason to end a run
            self._cadence.charge(None)
            self._newest = step, math.nan

    def newest(self) -> tuple[int, float]:
        """The step after which the newest hash was computed, and 52 bits of it, which a float64 holds.

        The step is -1 before the first; the hash is NaN without one, for lack of memory too.
        """
        if self._pending is not None:
            step, value, start, end, host_seconds = self._pending
            if end.query():
                self._pending = None
                self._take(step, int(value), max(host_seconds, start.elapsed_time(end) / 1000))
        return self._newest

    def is_due(self) -> bool:
        """Of rank 0: whether all should hash their weights now; true once for each hash."""
        now = perf_counter()
        idle = self._leads and not self._is_asking and self._pending is None
        if not (idle and now - self._asked_at >= MIN_HASH_SECONDS and self._cadence.due()):
            return False
        self._is_asking, self._asked_at = True, now
        return True

    def _begin(self, step: int) -> None:
        self._cadence.begin()
        began = perf_counter()
        if not self._reads_later:
            value = int(self._hash.compute().item())
            self._take(step, value, perf_counter() - began)
            return
        stream = torch.accelerator.current_stream(self._device.index)
        start, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        start.record(stream)
        if self._room is None:
            self._room = torch.empty((), dtype=torch.int64, device="cpu", pin_memory=True)
        self._room.copy_(self._hash.compute(), non_blocking=True)
        end.record(stream)
        self._pending = step, self._room, start, end, perf_counter() - began

    def _take(self, step: int, value: int, cost_seconds: float) -> None:
        self._cadence.charge(cost_seconds)
        self._newest = step, float(value % (1 << 64) >> 12)
