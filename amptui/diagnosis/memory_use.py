"""How AMP and FP8 change a step's memory, and why it saves much or little: sizes, and sentences."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.records.answers import RequestKind
from amptui.records.findings import MemoryBreakdown, XRayTaken
from amptui.records.run import AMP_PRECISIONS, FP8_PRECISIONS, base_precision, is_emulated
from amptui.telemetry.comparison import references

LITTLE_MEMORY = 0.05
"""Less than this fraction of the reference's memory is little saving."""

_UNCHANGED = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers",
}
"""What autocast does not change: it casts the inputs of operators, never what is stored."""

_MAIN_SHARE = 0.5
"""A larger fraction of the peak is most of it."""


class MemorySides(NamedTuple):
    """The newest breakdown in a reference precision and in a lower one; None if there is none."""

    full: MemoryBreakdown | None
    low: MemoryBreakdown | None


def sides(memory: Sequence[MemoryBreakdown], low: str | None = None) -> MemorySides:
    """The newest in bf16 and in FP8 if ``low`` is that, else the newest without AMP and with it.

    None of emulated FP8, whose memory says nothing of it.
    """
    if is_emulated(low or ""):
        return MemorySides(None, None)
    newest_first = sorted(memory, key=lambda breakdown: -breakdown.step)
    names = (low,) if low in FP8_PRECISIONS else AMP_PRECISIONS
    full = (one for one in newest_first if base_precision(one.precision) in references(names[0]))
    below = (one for one in newest_first if one.precision in names)
    return MemorySides(next(full, None), next(below, None))


def size_of(breakdown: MemoryBreakdown, *kinds: str) -> int | None:
    """The total size of these kinds in bytes; None if none of them was measured."""
    sizes = [kind.size_bytes for kind in breakdown.kinds if kind.kind in kinds]
    return sum(sizes) if sizes else None


def other_bytes(breakdown: MemoryBreakdown) -> int | None:
    """The part of the peak beyond all kinds: batches, data on the device, workspaces; None on a CPU."""
    if breakdown.peak_allocated_bytes is None:
        return None
    return max(0, breakdown.peak_allocated_bytes - sum(kind.size_bytes for kind in breakdown.kinds))


def why_little(memory: Sequence[MemoryBreakdown], xray: XRayTaken | None, low: str | None = None) -> str:
    """Where the memory goes that ``low`` did not save; empty until breakdowns or an X-ray exist."""
    full, below = sides(memory, low)
    if full is not None and below is not None and _have_peaks(full, below):
        return f"{_owners(below)}; {_differences(full, below)}"
    # An X-ray measures what AMP saves beside FP32.
    return saved_for_backward(xray) if xray is not None and low not in FP8_PRECISIONS else ""


def saved_for_backward(xray: XRayTaken) -> str:
    """Which memory AMP can save and which it cannot; empty if what is saved for backward was not measured.

    AMP shrinks what autograd saves for backward: activations, but it also saves cast copies of weights.
    Weights, gradients, optimizer state and buffers are unchanged.
    """
    full, amp = xray.saved_bytes_fp32, xray.saved_bytes_amp
    if full is None or amp is None or is_emulated(xray.precision):
        return ""
    fixed = xray.weights_bytes + xray.gradients_bytes + xray.optimizer_bytes + xray.buffers_bytes
    whole = fixed + full
    low = precision_label(xray.precision) if base_precision(xray.precision) in FP8_PRECISIONS else "AMP"
    owners = "weights, gradients, optimizer state and buffers"
    if full - amp < LITTLE_MEMORY * whole and fixed >= full:
        share = f"{units.number_of_bytes(fixed)} of {units.number_of_bytes(whole)}"
        return f"{low} cannot save much memory: {share} are {owners}"
    in_amp, in_fp32 = units.number_of_bytes(amp), units.number_of_bytes(full)
    rest = f"plus {units.number_of_bytes(fixed)} of {owners}"
    return f"saved for backward: {in_amp} in {low}, {in_fp32} in FP32, {rest}"


def memory_sentences(
    memory: Sequence[MemoryBreakdown],
    xray: XRayTaken | None,
    accepts: Collection[RequestKind] = (),
    low: str | None = None,
) -> tuple[str, ...]:
    """Why ``low`` saves memory or not, or what to measure to find out; none before the first breakdown.

    ``accepts``: what the run can be asked for.
    """
    if not memory:
        return ()
    sentences = (_peak_sentence(*sides(memory, low)), _saved_in_xray(memory, xray, accepts))
    return tuple(filter(None, sentences))


def _have_peaks(*breakdowns: MemoryBreakdown) -> bool:
    return all(breakdown.peak_allocated_bytes for breakdown in breakdowns)


# ------------------------------------------------------------------------------------- the peak


def _peak_sentence(full: MemoryBreakdown | None, low: MemoryBreakdown | None) -> str:
    """How the peak changed and why; with one side only, what AMP could change."""
    if full is None or low is None:
        activations = None if full is None else size_of(full, "activations")
        if full is None or activations is None or full.precision in AMP_PRECISIONS:
            return ""
        whole = units.bytes_of(activations, full.peak_allocated_bytes)
        return f"AMP can shrink only activations, which take {whole} here; {_unchanged_words(full)}"
    differences = _differences(full, low)
    if not _have_peaks(full, low):
        return "; ".join(text for text in (_unchanged_words(low), differences) if text)
    before, after = full.peak_allocated_bytes or 0, low.peak_allocated_bytes or 0
    saving = 1 - after / before
    if saving >= LITTLE_MEMORY:
        return f"peak fell by {units.number_of_bytes(before - after)}: {differences}; {_unchanged_words(low)}"
    rose = saving <= -LITTLE_MEMORY
    moved = f"rose by {units.number_of_bytes(after - before)}" if rose else "barely changed"
    return f"peak {moved}: {_owners(low)}; {differences}"


def _unchanged_words(breakdown: MemoryBreakdown) -> str:
    """``weights, gradients, optimizer state, buffers (236 MiB) stay float32``."""
    size = units.number_of_bytes(size_of(breakdown, *_UNCHANGED) or 0)
    return f"{_unchanged_names(breakdown)} ({size}) stay {_stored_as(breakdown)}"


def _unchanged_names(breakdown: MemoryBreakdown) -> str:
    """``weights, gradients, buffers``: those that exist."""
    return ", ".join(name for kind, name in _UNCHANGED.items() if size_of(breakdown, kind))


def _stored_as(breakdown: MemoryBreakdown) -> str:
    """``float32`` if weights, gradients and optimizer state all are."""
    dtypes = {kind.dtype for kind in breakdown.kinds if kind.kind in ("weights", "gradients", "optimizer")}
    return "float32" if dtypes == {"float32"} else "as they are"


def _owners(amp: MemoryBreakdown) -> str:
    """What most of the peak is, if AMP does not shrink it."""
    peak, other, unchanged = (
        amp.peak_allocated_bytes or 0,
        other_bytes(amp) or 0,
        size_of(amp, *_UNCHANGED) or 0,
    )
    whole = units.number_of_bytes(peak)
    if other > _MAIN_SHARE * peak:
        part = f"{units.number_of_bytes(other)} of {whole}"
        return f"{part} is other memory: data on the device, batches, workspaces"
    if unchanged > _MAIN_SHARE * peak:
        part = f"{units.number_of_bytes(unchanged)} of {whole}"
        return f"{part} are {_unchanged_names(amp)}, which stay {_stored_as(amp)}"
    return _unchanged_words(amp)


def _differences(full: MemoryBreakdown, amp: MemoryBreakdown) -> str:
    """``activations -744 MiB, cast copies of weights +28.1 MiB``."""
    words = []
    before, after = size_of(full, "activations"), size_of(amp, "activations")
    if before is not None and after is not None:
        words.append(f"activations {signed_bytes(after - before)}")
    copies = size_of(amp, "cast copies")
    if copies:
        words.append(f"cast copies of weights {signed_bytes(copies)}")
    return ", ".join(words)


def signed_bytes(change: int) -> str:
    """``-744 MiB``, ``+28.1 MiB``, ``the same``."""
    if not change:
        return "the same"
    return f"{'+' if change > 0 else ''}{units.number_of_bytes(change)}"


# ---------------------------------------------------------------------- what autograd keeps


def _saved_in_xray(
    memory: Sequence[MemoryBreakdown], xray: XRayTaken | None, accepts: Collection[RequestKind]
) -> str:
    """The X-ray's sizes, exact for one batch; without one, how to measure them on a CPU.

    In AMP autograd also saves cast copies: a layer's backward pass needs its weights as they were in the
    forward pass.
    """
    if xray is None:
        unknown = any(breakdown.peak_allocated_bytes is None for breakdown in memory)
        hint = "; press x to measure what is saved for backward" if "x-ray" in accepts else ""
        return f"activations and peak are not measured on a CPU{hint}" if unknown else ""
    full, half = xray.saved_bytes_fp32, xray.saved_bytes_amp
    if full is None or half is None or is_emulated(xray.precision):
        return ""
    amp = next((one for one in memory if one.precision == xray.precision), None)
    copies = size_of(amp, "cast copies") if amp is not None else None
    among = f", up to {units.number_of_bytes(copies)} of it cast copies of weights" if copies else ""
    change = units.percent(half / full - 1) if full else ""
    if change:
        change = f" ({'the same' if change == '0%' else change if half < full else f'+{change}'})"
    label = precision_label(xray.precision)
    sizes = f"{units.number_of_bytes(full)} in FP32, {units.number_of_bytes(half)} in {label}{change}"
    return f"saved for backward (X-ray): {sizes}{among}"
