"""The result of an A/B comparison as one sentence to quote, with what it was measured on."""

from amptui import units
from amptui.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records import RunStarted
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import SessionView

PROVISIONAL = "~"
"""Marks figures from warm-up steps, or from too few other steps."""

WIDE = 1.2
"""If the ends of an interval around 1 differ by more than this factor, which is faster remains open."""


def result_cards(found: PrecisionsCompared, run: RunStarted | None) -> list[str]:
    """A card for each precision beside the baseline; none before its first pair of blocks.

    ``AMP fp16 1.71× faster than FP32 (1.68 to 1.74), 38% less peak memory, 0 skips, 12 blocks of 20 steps,
    mnist-deep, batch 256, H200``.
    """
    baseline, *others = found.rows
    return [_card(found, baseline, row, run) for row in others if row.speedup is not None and row.speedup > 0]


def result_of_the_pair(view: SessionView) -> PrecisionMeasured | None:
    """The A/B result for the two precisions of the running comparison; None until there is one.

    It replaces the running ratio, which has no interval.
    """
    found, tally = view.compared, view.comparison
    if found is None or found.baseline != tally.baseline:
        return None
    if not (found.over or view.state in ("finished", "failed")):
        return None
    return next((row for row in found.rows[1:] if row.precision == tally.amp and row.speedup), None)


def speed_words(row: PrecisionMeasured, baseline: str) -> str:
    """``1.71× faster than FP32 (1.68 to 1.74)``; for slower, ratio and interval are inverted."""
    assert row.speedup is not None, "a card is of a precision that was measured"
    low, high, than = row.speedup_low, row.speedup_high, precision_label(baseline)
    interval = interval_words(row.speedup, low, high) or "(too few blocks for an interval)"
    tie = tie_words(low, high, than)
    if tie:
        return f"{tie} {interval}"
    words = factor_words(row.speedup)
    return f"{words} than {than} {interval}" if words else f"as fast as {than} {interval}"


def factor_words(speedup: float) -> str:
    """``1.71× faster`` or ``2.00× slower``; empty if it rounds to 1.00×. ``speedup`` is above 0."""
    words = units.ratio(max(speedup, 1 / speedup))
    if words == "1.00×":
        return ""
    return f"{words} {'faster' if speedup > 1 else 'slower'}"


def interval_words(speedup: float, low: float | None, high: float | None) -> str:
    """``(1.68 to 1.74)``: how many times faster or slower, as in ``factor_words``; empty without an interval.

    An interval that contains 1 is always of the speed-up.
    """
    if not low or not high:
        return ""
    if speedup < 1 and not within_noise(low, high):
        low, high = 1 / high, 1 / low
    return f"({low:.2f} to {high:.2f})"


def ratio_words(value: float | None, low: float | None, high: float | None) -> str:
    """``1.61× (1.55 to 1.68)``; the ratio alone while there are too few blocks for an interval."""
    return (
        units.ratio(value)
        if low is None or high is None
        else f"{units.ratio(value)} ({low:.2f} to {high:.2f})"
    )


def within_noise(low: float | None, high: float | None) -> bool:
    """Whether there is an interval, and 1 is in it."""
    return low is not None and high is not None and low <= 1 <= high


def tie_words(low: float | None, high: float | None, than: str) -> str:
    """For an interval around 1: as fast, or no significant difference if it is wide; empty for others."""
    if not low or not high or not within_noise(low, high):
        return ""
    if high / low > WIDE:
        return f"no significant difference from {than} yet"
    return f"as fast as {than} within noise"


def memory_words(row: PrecisionMeasured, baseline: PrecisionMeasured) -> str:
    """``38% less peak memory``; empty if it was not measured."""
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
