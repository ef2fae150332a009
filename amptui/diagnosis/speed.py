"""What AMP or FP8 gained in words: a comparison's result, the running ratio, and why there is little gain."""

from collections.abc import Collection

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import explained_words, long_words, speed_words
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.records.run import RunStarted
from amptui.telemetry.comparison import MIN_PROVISIONAL_STEPS, judge_speed
from amptui.telemetry.finding import Finding, never_measured
from amptui.telemetry.memory import LITTLE_MEMORY, judge_memory, judge_memory_use
from amptui.telemetry.timing import judge_gain, judge_limit
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView

PROVISIONAL = "~"
"""Marks figures from warm-up steps, or from too few other steps."""

NO_STEPS = "no steps yet"

_FEW_BLOCKS = "(too few blocks for an interval)"

# --------------------------------------------------------------------- the result of a comparison


def result_cards(result: PrecisionsCompared, run: RunStarted | None = None) -> list[str]:
    """A card for each precision beside the baseline; none before its first pair of blocks.

    ``AMP fp16 1.71× the speed of FP32 (1.68 to 1.74), 38% less peak memory, 0 skips, 12 blocks of 20
    steps, mnist-deep, batch 256, H200``.
    """
    cards, peak = [], result.rows[0].peak_allocated_bytes
    for row in result.rows[1:]:
        if not row.speedup or row.speedup <= 0:
            continue
        speed = judge_speed(row.speedup, row.speedup_low, row.speedup_high, than=result.baseline)
        parts = [f"{precision_label(row.precision)} {speed_words(speed, _FEW_BLOCKS)}"]
        if row.peak_allocated_bytes is not None and peak:
            parts.append(long_words(judge_memory(row.peak_allocated_bytes / peak)))
        if row.precision == "fp16":
            parts.append(units.counted(row.skipped, "skip"))
        parts.append(f"{units.counted(row.blocks, 'block')} of {result.block_steps} steps")
        if run is not None:
            batch = [f"batch {units.count(run.batch_size)}"] if run.batch_size else []
            parts += [run.model, *batch, run.device_name.removeprefix("NVIDIA ")]
        cards.append(", ".join(parts))
    return cards


def result_of_the_pair(view: SessionView) -> PrecisionMeasured | None:
    """The A/B result for the two precisions of the running comparison; None until there is one.

    It replaces the running ratio, which has no interval.
    """
    result, tally = view.compared, view.comparison
    if result is None or result.baseline != tally.baseline or running(view) is not None:
        return None
    return next((row for row in result.rows[1:] if row.precision == tally.low and row.speedup), None)


def running(view: SessionView) -> PrecisionsCompared | None:
    """The comparison that is running, or None."""
    result = view.compared
    return None if result is None or result.over or view.state in ("finished", "failed") else result


def round_words(result: PrecisionsCompared, *, brief: bool = False) -> str:
    """``round  3 of at most 24``, equally wide in every round; ``brief``: ``round 3/24``."""
    now, most = units.count(min(result.rounds + 1, result.most_rounds)), units.count(result.most_rounds)
    return f"round {now}/{most}" if brief else f"round {now:>{len(most)}} of at most {most}"


# ---------------------------------------------------------------------------- the running ratio


def of_steps(stats: PrecisionStats, figure: str, missing: str = units.NOT_MEASURED) -> str:
    """A figure from measured or, marked, warm-up steps; none from a single one of these: it loads kernels."""
    if figure == units.NOT_AVAILABLE or 0 < stats.provisional_steps < MIN_PROVISIONAL_STEPS:
        return missing
    return f"{PROVISIONAL}{figure}" if stats.provisional_steps else figure


def peak_words(stats: PrecisionStats, missing: str = units.NOT_MEASURED) -> str:
    """Its peak memory."""
    peak_bytes = stats.peak_allocated_bytes
    return missing if peak_bytes is None else units.number_of_bytes(peak_bytes)


def provisional_lines(comparison: Comparison) -> list[str]:
    """What ``~`` means in the table: the steps behind it; empty if no figure is provisional."""
    marked = [row for row in comparison.rows if row.provisional_steps >= MIN_PROVISIONAL_STEPS]
    counts = [f"{row.provisional_steps:,} in {precision_label(row.precision)}" for row in marked]
    return [f"{PROVISIONAL} from warm-up steps: {', '.join(counts)}"] if counts else []


def uncounted(view: SessionView) -> list[str]:
    """The steps that are in no figure: ``warm-up steps left out: 40``, and those not measured."""
    rows = view.comparison.rows
    left_out = sum(row.warm_up_steps for row in rows if row.provisional_steps < MIN_PROVISIONAL_STEPS)
    steps = {"warm-up steps left out": left_out, "steps not measured": view.unmeasured_steps}
    return [f"{what}: {units.count(count)}" for what, count in steps.items() if count]


# -------------------------------------------------------------------------------- why little gain


def little_memory(view: SessionView) -> list[Finding]:
    """Where the memory goes that AMP or FP8 did not save; empty if they saved some, or too few steps ran.

    By the breakdowns.
    """
    tally = view.comparison
    if tally.memory_saving is None or tally.memory_saving >= LITTLE_MEMORY or tally.missing:
        return []
    use = judge_memory_use(view.memory, tally.low)
    is_known = use is not None and "change" in use.numbers
    return [use if use is not None and is_known else never_measured("memory use", state="unknown")]


def limit_lines(view: SessionView, precisions: Collection[str]) -> list[str]:
    """What the steps of these precisions wait for, and what another one can gain, as far as it is known."""
    lines = []
    for timing in view.timings:
        if timing.precision in precisions and judge_limit(timing).freshness == "fresh":
            gain = judge_gain(timing, view.comparison, ranks=view.world_size)
            lines.append(f"{precision_label(timing.precision)}: {explained_words(gain)}")
    return lines
