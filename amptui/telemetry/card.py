"""A comparison's result as one sentence to quote, with what it was measured on."""

from amptui import units
from amptui.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records import RunStarted
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import SessionView

PROVISIONAL = "~"
"""Stands before what is of warm-up steps, or of too few others for a result."""

WIDE = 1.2
"""An interval around 1 whose ends differ by more than this factor leaves open which is faster."""


def result_cards(found: PrecisionsCompared, run: RunStarted | None) -> list[str]:
    """A card for each precision beside the baseline; none before its first pair of blocks.

    ``AMP fp16 1.71× faster than FP32 (1.68 to 1.74), 38% less peak memory, 0 skips, 12 blocks of 20 steps,
    mnist-deep, batch 256, H200``.
    """
    baseline, *others = found.rows
    return [_card(found, baseline, row, run) for row in others if row.speedup is not None and row.speedup > 0]


def result_of_the_pair(view: SessionView) -> PrecisionMeasured | None:
    """What turns found for the two precisions of the running tally; None while they run, or without a result.

    It takes the place of the tally's ratio, which has no interval.
    """
    found, tally = view.compared, view.comparison
    if found is None or found.baseline != tally.baseline:
        return None
    if not (found.over or view.state in ("finished", "failed")):
        return None
    return next((row for row in found.rows[1:] if row.precision == tally.amp and row.speedup), None)


def speed_words(row: PrecisionMeasured, baseline: str) -> str:
    """``1.71× faster than FP32 (1.68 to 1.74)``; slower is said the other way round, with its interval."""
    assert row.speedup is not None, "a card is of a precision that was measured"
    low, high, than = row.speedup_low, row.speedup_high, precision_label(baseline)
    interval = interval_words(row.speedup, low, high) or "(too few blocks for an interval)"
    tie = tie_words(low, high, than)
    if tie:
        return f"{tie} {interval}"
    words = factor_words(row.speedup)
    return f"{words} than {than} {interval}" if words else f"as fast as {than} {interval}"


def factor_words(speedup: float) -> str:
    """``1.71× faster`` or ``2.00× slower``; empty where neither shows in two digits. Above 0."""
    words = units.ratio(max(speedup, 1 / speedup))
    if words == "1.00×":
        return ""
    return f"{words} {'faster' if speedup > 1 else 'slower'}"


def interval_words(speedup: float, low: float | None, high: float | None) -> str:
    """``(1.68 to 1.74)``: how many times faster or slower, as ``factor_words`` says it; empty without one.

    An interval on both sides of 1 is always of the speed-up.
    """
    if not low or not high:
        return ""
    if speedup < 1 and not within_noise(low, high):
        low, high = 1 / high, 1 / low
    return f"({low:.2f} to {high:.2f})"


def ratio_words(value: float | None, low: float | None, high: float | None) -> str:
    """``1.61× (1.55 to 1.68)``: the ratio as it is, alone while there are too few blocks for an interval."""
    return (
        units.ratio(value)
        if low is None or high is None
        else f"{units.ratio(value)} ({low:.2f} to {high:.2f})"
    )


def within_noise(low: float | None, high: float | None) -> bool:
    """Whether there is an interval, and 1 is in it."""
    return low is not None and high is not None and low <= 1 <= high


def tie_words(low: float | None, high: float | None, than: str) -> str:
    """What an interval around 1 says: as fast, or, where it is wide, that it is open; empty for others."""
    if not low or not high or not within_noise(low, high):
        return ""
    if high / low > WIDE:
        return f"no significant difference from {than} yet"
    return f"as fast as {than} within noise"


def memory_words(row: PrecisionMeasured, baseline: PrecisionMeasured) -> str:
    """``38% less peak memory``; empty where it was not measured."""
    if row.peak_allocated_bytes is None or not baseline.peak_allocated_bytes:
        return ""
    saving = 1 - row.peak_allocated_bytes / baseline.peak_allocated_bytes
    amount = units.percent(abs(saving))
    return (
        "the same peak memory"
        if amount == "0%"
        else f"{amount} {'less' if saving > 0 else 'more'} peak memory"
    )


def _card(
    found: PrecisionsCompared, baseline: PrecisionMeasured, row: PrecisionMeasured, run: RunStarted | None
) -> str:
    parts = [
        f"{precision_label(row.precision)} {speed_words(row, found.baseline)}",
        memory_words(row, baseline),
    ]
    if row.precision == "fp16":
        parts.append(f"{units.count(row.skipped)} skip{'' if row.skipped == 1 else 's'}")
    parts.append(
        f"{units.count(row.blocks)} block{'' if row.blocks == 1 else 's'} of {found.block_steps} steps"
    )
    if run is not None:
        parts.append(run.model)
        if run.batch_size:
            parts.append(f"batch {units.count(run.batch_size)}")
        parts.append(run.device_name.removeprefix("NVIDIA "))
    return ", ".join(part for part in parts if part)
