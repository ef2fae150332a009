"""What uses the memory of a step in each precision, and what AMP and FP8 change of it."""

from collections.abc import Sequence

from amptui.records.findings import MemoryBreakdown
from amptui.records.run import AMP_PRECISIONS
from amptui.telemetry.comparison import references
from amptui.telemetry.finding import Finding, Grade

LITTLE_MEMORY = 0.05
"""Less than this fraction of the reference's memory is little saving."""

UNCHANGED = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers",
}
"""What autocast does not change: it casts the inputs of operators, never what is stored."""

_MAIN_SHARE = 0.5
"""A larger fraction of the peak is most of it."""


def judge_memory(ratio: float) -> Finding:
    """``less``, ``same`` or ``more``: a peak by the reference's, below 1 if it saves."""
    state = "same" if round(ratio, 2) == 1 else "less" if ratio < 1 else "more"
    grades: dict[str, Grade] = {"less": "good", "more": "warning"}
    return Finding(
        subject="memory",
        state=state,
        grade=grades.get(state, "neutral"),
        numbers={"memory_ratio": ratio},
        measured_by="comparison",
    )


def sides(
    memory: Sequence[MemoryBreakdown], low: str | None = None
) -> tuple[MemoryBreakdown | None, MemoryBreakdown | None]:
    """The newest in bf16 and in FP8 if ``low`` is that, else the newest without AMP and with it."""
    newest_first = sorted(memory, key=lambda breakdown: -breakdown.step)
    names = ("fp8",) if low == "fp8" else AMP_PRECISIONS
    full = (one for one in newest_first if one.precision in references(names[0]))
    below = (one for one in newest_first if one.precision in names)
    return next(full, None), next(below, None)


def size_of(breakdown: MemoryBreakdown, *kinds: str) -> int | None:
    """The total size of these kinds in bytes; None if none of them was measured."""
    sizes = [kind.size_bytes for kind in breakdown.kinds if kind.kind in kinds]
    return sum(sizes) if sizes else None


def other_bytes(breakdown: MemoryBreakdown) -> int | None:
    """The part of the peak beyond all kinds: batches, data on the device, workspaces; None on a CPU."""
    if breakdown.peak_allocated_bytes is None:
        return None
    return max(0, breakdown.peak_allocated_bytes - sum(kind.size_bytes for kind in breakdown.kinds))


def judge_memory_use(memory: Sequence[MemoryBreakdown], low: str | None = None) -> Finding | None:
    """How the peak changed, ``fell``, ``rose`` or ``same``, and what most of it is; None while unknown.

    ``stored``: what AMP does not change, ``other``: data, batches and workspaces; on a CPU there is ``no
    peak``. ``before AMP``: a reference alone.
    """
    full, below = sides(memory, low)
    breakdown = below or full
    if full is None or breakdown is None:
        return None
    kinds = [name for kind, name in UNCHANGED.items() if size_of(breakdown, kind)]
    dtypes = {kind.dtype for kind in breakdown.kinds if kind.kind in ("weights", "gradients", "optimizer")}
    before, peak = full.peak_allocated_bytes, breakdown.peak_allocated_bytes
    activations = size_of(breakdown, "activations")
    numbers: dict[str, float | None] = {"stored": size_of(breakdown, *UNCHANGED) or 0, "peak": peak}
    state, most = "no peak", ""
    if below is None:
        state, numbers["activations"] = "before AMP", activations
        if activations is None or full.precision in AMP_PRECISIONS:
            return None
    else:
        activations_before = size_of(full, "activations")
        if activations is not None and activations_before is not None:
            numbers["activations_change"] = activations - activations_before
    if below is not None and before and peak:
        saving = 1 - peak / before
        numbers |= {"change": abs(before - peak), "other": other_bytes(breakdown)}
        state = "fell" if saving >= LITTLE_MEMORY else "rose" if saving <= -LITTLE_MEMORY else "same"
        for name in ("stored", "other"):
            if state != "fell" and (numbers[name] or 0) > _MAIN_SHARE * peak:
                most = f", {name}"
    return Finding(
        subject="memory use",
        state=state + most,
        grade="neutral",
        about=low or "",
        numbers=numbers,
        names={"kinds": ", ".join(kinds), "dtype": "float32" if dtypes == {"float32"} else "as they are"},
        step=breakdown.step,
        precision=breakdown.precision,
    )
