"""Samples torch's allocator of an accelerator and its peak over some steps; does nothing on a CPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from amptui.device.accelerator import MemoryUse, empty_cache, memory_use, restart_peak
from amptui.records.samples import AllocatorSample

_INTERVAL_SECONDS = 0.5


class AllocatorWatch:
    """Samples the allocator of ``device``; used by one thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_allocator = device.type != "cpu"
        self._due = 0.0
        self._earlier_peak_bytes = 0
        self.sample: AllocatorSample | None = None
        """The newest sample; other threads may read it."""

    def look(self, precision: str, *, settled: bool) -> None:
        """Refresh ``sample`` if the last one is old: that takes about 0.1 ms."""
        if self._has_allocator and (now := time.monotonic()) >= self._due:
            self._due = now + _INTERVAL_SECONDS
            use = memory_use(self._device)
            if use is not None:
                self.sample = AllocatorSample(
                    precision=precision,
                    allocated_bytes=use.allocated,
                    reserved_bytes=use.reserved,
                    peak_allocated_bytes=self._since_restart(use) if settled else None,
                )

    def restart_peak(self) -> None:
        """Measure the peak from here on."""
        self._earlier_peak_bytes = 0
        restart_peak(self._device)

    def peak_bytes(self) -> int | None:
        """The peak of allocated memory since ``restart_peak``; None on a CPU, or where it is not known."""
        return self._since_restart(memory_use(self._device))

    def free_unused(self) -> None:
        """Empty the allocator's cache, which may be fragmented after an out-of-memory error."""
        empty_cache(self._device)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Exclude what runs within from the peak: it is not part of the training."""
        peak = self.peak_bytes()
        try:
            yield
        finally:
            self.restart_peak()
            self._earlier_peak_bytes = peak or 0

    def _since_restart(self, use: MemoryUse | None) -> int | None:
        if use is None or use.peak_allocated is None:
            return None
        return max(self._earlier_peak_bytes, use.peak_allocated)
