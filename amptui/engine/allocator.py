"""Samples torch's CUDA allocator and its peak over some steps; does nothing on a CPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from amptui.records.samples import AllocatorSample

_INTERVAL_SECONDS = 0.5


class AllocatorWatch:
    """Samples the allocator of ``device``; used by one thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self._due = 0.0
        self._earlier_peak_bytes = 0
        self.sample: AllocatorSample | None = None
        """The newest sample; other threads may read it."""

    def look(self, precision: str, *, settled: bool) -> None:
        """Refresh ``sample`` if the last one is old: that takes about 0.1 ms."""
        if self._on_cuda and (now := time.monotonic()) >= self._due:
            self._due = now + _INTERVAL_SECONDS
            stats = torch.cuda.memory_stats(self._device)
            peak_bytes = max(self._earlier_peak_bytes, stats["allocated_bytes.all.peak"])
            self.sample = AllocatorSample(
                precision=precision,
                allocated_bytes=stats["allocated_bytes.all.current"],
                reserved_bytes=stats["reserved_bytes.all.current"],
                peak_allocated_bytes=peak_bytes if settled else None,
            )

    def restart_peak(self) -> None:
        """Measure the peak from here on."""
        if self._on_cuda:
            self._earlier_peak_bytes = 0
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        """The peak of allocated memory since ``restart_peak``; None on a CPU."""
        if not self._on_cuda:
            return None
        peak: int = torch.cuda.memory_stats(self._device)["allocated_bytes.all.peak"]
        return max(self._earlier_peak_bytes, peak)

    def free_unused(self) -> None:
        """Empty the allocator's cache, which may be fragmented after an out-of-memory error."""
        torch.cuda.empty_cache()  # does nothing without CUDA

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Exclude what runs within from the peak: it is not part of the training."""
        peak = self.peak_bytes()
        try:
            yield
        finally:
            self.restart_peak()
            self._earlier_peak_bytes = peak or 0
