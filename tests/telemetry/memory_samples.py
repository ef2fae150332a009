"""Breakdowns of a step's memory for tests: those of a model of 56 MiB that Adam trains."""

from typing import Literal

from amptui.records.findings import MemoryBreakdown, MemoryKind

_MIB = 2**20

_LIVES_ON: tuple[tuple[Literal["weights", "gradients", "optimizer", "buffers"], str, int], ...] = (
    ("weights", "float32", 56 * _MIB),
    ("gradients", "float32", 56 * _MIB),
    ("optimizer", "float32", 112 * _MIB),
    ("buffers", "float32", 30 * 1024),
    ("buffers", "int64", 112),
)


def memory(
    precision: str,
    *,
    activations: int | None = None,
    copies: int | None = None,
    peak: int | None = None,
    step: int = 412,
) -> MemoryBreakdown:
    """A breakdown with these activations and cast copies, if any."""
    kinds = [MemoryKind(kind=kind, dtype=dtype, size_bytes=size) for kind, dtype, size in _LIVES_ON]
    if copies is not None:
        half = "float16" if precision == "fp16" else "bfloat16"
        kinds.append(MemoryKind(kind="cast copies", dtype=half, size_bytes=copies))
    if activations is not None:
        kinds.append(MemoryKind(kind="activations", dtype="", size_bytes=activations))
    return MemoryBreakdown(
        time=100 + step / 1000,
        step=step,
        precision=precision,
        kinds=tuple(kinds),
        peak_allocated_bytes=peak,
    )
