"""The newest memory breakdowns without AMP and with it, and what of their peak is what."""

from collections.abc import Sequence
from dataclasses import dataclass

from amptui.records.findings import MemoryBreakdown
from amptui.records.run import AMP_PRECISIONS, base_precision
from amptui.telemetry.comparison import BASELINES


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySides:
    """The newest breakdown without AMP and with it; None if there is none."""

    full: MemoryBreakdown | None
    amp: MemoryBreakdown | None


def sides(memory: Sequence[MemoryBreakdown]) -> MemorySides:
    """The newest without AMP and the newest with it."""
    full = (each for each in memory if base_precision(each.precision) in BASELINES)
    return MemorySides(
        full=max(full, key=_step, default=None),
        amp=max((each for each in memory if each.precision in AMP_PRECISIONS), key=_step, default=None),
    )


def size_of(breakdown: MemoryBreakdown, *kinds: str) -> int | None:
    """The total size of these kinds in bytes; None if none of them was measured."""
    sizes = [kind.size_bytes for kind in breakdown.kinds if kind.kind in kinds]
    return sum(sizes) if sizes else None


def other_bytes(breakdown: MemoryBreakdown) -> int | None:
    """The part of the peak beyond all kinds: batches, data on the device, workspaces; None on a CPU."""
    if breakdown.peak_allocated_bytes is None:
        return None
    return max(0, breakdown.peak_allocated_bytes - sum(kind.size_bytes for kind in breakdown.kinds))


def _step(breakdown: MemoryBreakdown) -> int:
    return breakdown.step
