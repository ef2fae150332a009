"""What torch's CUDA allocator holds, and its peak within a stretch of steps; nothing on a CPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from amptui.samples import AllocatorSample

_INTERVAL_SECONDS = 0.5


class AllocatorWatch:
    """Samples the allocator, for the one thread that uses it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self._due = 0.0
        self._earlier_peak_bytes = 0
        self.sample: AllocatorSample | None = None
        """As last looked at; another thread may read it."""

    def look(self, precision: str, *, settled: bool) -> None:
        """Refresh ``sample`` occasionally: it costs about a tenth of a millisecond."""
        if self._on_cuda and (now := time.monotonic()) >= self._due:
            self._due = now + _INTERVAL_SECONDS
            self.sample = self._measure(precision, settled=settled)

    def restart_peak(self) -> None:
        """Count the peak from here on."""
        if self._on_cuda:
            self._earlier_peak_bytes = 0
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        """What was allocated at most since ``restart_peak``; None on a CPU."""
        if not self._on_cuda:
            return None
        peak: int = torch.cuda.memory_stats(self._device)["allocated_bytes.all.peak"]
        return max(self._earlier_peak_bytes, peak)

    def free_unused(self) -> None:
        """Give back what the allocator keeps for tensors that are gone: after running out, in pieces."""
        if self._on_cuda:
            torch.cuda.empty_cache()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Exclude what runs within from the peak: it is not part of the training."""
        if not self._on_cuda:
            yield
            return
        peak = self.peak_bytes() or 0
        try:
            yield
        finally:
            self.restart_peak()
            self._earlier_peak_bytes = peak

    def _measure(self, precision: str, *, settled: bool) -> AllocatorSample:
        stats = torch.cuda.memory_stats(self._device)
        return AllocatorSample(
            precision=precision,
            allocated_bytes=stats["allocated_bytes.all.current"],
            reserved_bytes=stats["reserved_bytes.all.current"],
            peak_allocated_bytes=(
                max(self._earlier_peak_bytes, stats["allocated_bytes.all.peak"]) if settled else None
            ),
        )
