"""Hashes of each rank's weights, to find replicas that no longer have the same."""

import math
from collections.abc import Iterable, Sequence
from time import perf_counter

import torch
from torch import Tensor

from amptui.device.accelerator import capabilities
from amptui.probes.budget import Cadence
from amptui.probes.gradients import together

WEIGHTS_BUDGET = 0.0005
"""The fraction of rank 0's time that hashes may take: 5 us of a step of 10 ms."""

MIN_HASH_SECONDS = 1.0
"""The time from one hash to the next at least: replicas that differ stay different."""

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd factor that moves each bit of a hash to its upper ones, which are told."""


@torch.no_grad()
def weights_hash(parameters: Iterable[Tensor]) -> Tensor:
    """[] int64: the bits of each of ``parameters`` xored, added up; the host does not wait for the device.

    Replicas that drift apart differ in many bits. That of values which change places is the same.
    """
    values = [torch.view_as_real(p.resolve_conj()) if p.is_complex() else p for p in parameters]
    hashes = [torch.hash_tensor(value).view(torch.int64) for value in values if value.numel()]
    if not hashes:
        return torch.zeros((), dtype=torch.int64, device="cpu")
    column = torch.stack(together(hashes, hashes[0].device))
    return (column * (torch.arange(1, 2 * len(column), 2, device=column.device) * _GOLDEN)).sum()


class WeightsCheck:
    """One rank's part in comparing weights: hashes them when rank 0 asks, and tells the result later.

    Used by the trainer's thread, which never waits for the device. ``leads``: this is rank 0, which asks as
    often as ``WEIGHTS_BUDGET`` allows.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device, *, leads: bool) -> None:
        self._parameters = parameters
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
        except (torch.OutOfMemoryError, NotImplementedError):  # of a dtype or device: no reason to end a run
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
            value = int(weights_hash(self._parameters).item())
            self._take(step, value, perf_counter() - began)
            return
        stream = torch.accelerator.current_stream(self._device.index)
        start, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        start.record(stream)
        if self._room is None:
            self._room = torch.empty((), dtype=torch.int64, device="cpu", pin_memory=True)
        self._room.copy_(weights_hash(self._parameters), non_blocking=True)
        end.record(stream)
        self._pending = step, self._room, start, end, perf_counter() - began

    def _take(self, step: int, value: int, cost_seconds: float) -> None:
        self._cadence.charge(cost_seconds)
        self._newest = step, float(value % (1 << 64) >> 12)
