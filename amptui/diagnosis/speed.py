"""What AMP or FP8 gained in words: a comparison's result, the running ratio, and why there is little gain."""

from collections.abc import Collection
from typing import Literal, NamedTuple

from amptui.base import units
from amptui.diagnosis.labels import compared_label, family_label, precision_label
from amptui.diagnosis.memory_use import LITTLE_MEMORY, why_little
from amptui.records.answers import RequestKind
from amptui.records.findings import PairCompared, PrecisionMeasured, PrecisionsCompared
from amptui.records.run import (
    AMP_PRECISIONS,
    FP8_PRECISIONS,
    RunStarted,
    base_precision,
    is_emulated,
    reference_precision,
)
from amptui.telemetry.comparison import LITTLE_SPEED, MIN_PROVISIONAL_STEPS, MIN_STEPS, losses_after
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView

PROVISIONAL = "~"
"""Marks figures from warm-up steps, or from too few other steps."""

EMULATED = "emulated"
"""In the row of emulated FP8, in place of time and memory."""

NO_STEPS = "no steps yet"

WIDE = 1.2
"""If the ends of an interval around 1 differ by more than this factor, which is faster remains open."""

# ------------------------------------------------------------------------------------ the phrases


def times_speed(ratio: float | None, than: str) -> str:
    """``1.71× the speed of FP32``: the one phrase for it."""
    return f"{units.ratio(ratio)} the speed of {than}"


def about_speed(ratio: float | None, than: str) -> str:
    """``about 1.7× the speed of FP32``: of steps that were not alternated, without an interval."""
    return f"about {units.about_ratio(ratio)} the speed of {than}"


def interval_ends(low: float | None, high: float | None) -> str:
    """``1.68 to 1.74``; empty without an interval."""
    return " to ".join(units.ratio(end).removesuffix("×") for end in (low, high)) if low and high else ""


def ratio_words(value: float | None, low: float | None, high: float | None) -> str:
    """``1.61× (1.55 to 1.68)``; the ratio alone while there are too few blocks for an interval."""
    interval = interval_ends(low, high)
    return f"{units.ratio(value)} ({interval})" if interval else units.ratio(value)


SpeedState = Literal["faster", "same", "slower", "open"]
"""``open``: a wide interval contains 1."""


def speed_state(speedup: float, low: float | None, high: float | None) -> SpeedState:
    """Which of the two is faster; without an interval a small difference may be chance."""
    if low and high:
        if low <= 1 <= high:
            return "open" if high / low > WIDE else "same"
        return "faster" if low > 1 else "slower"
    if max(speedup, 1 / speedup) < 1 + LITTLE_SPEED:
        return "same"
    return "faster" if speedup > 1 else "slower"


class Speed(NamedTuple):
    """A precision's speed relative to another one's."""

    words: str
    """``1.71× the speed of FP32``, or that it remains open."""
    interval: str
    """``(1.68 to 1.74)``; empty without one."""
    gain: int
    """1 if it is faster, -1 if it is slower, 0 if there is no difference to see."""


def speed_of(speedup: float, low: float | None, high: float | None, than: str) -> Speed:
    """A speed-up above 0 with its interval, if there is one; below 1 it is slower."""
    state, interval = speed_state(speedup, low, high), interval_ends(low, high)
    words = (times_speed if interval else about_speed)(speedup, than)
    words = f"no clear difference from {than} yet" if state == "open" else words
    gain = {"faster": 1, "slower": -1}.get(state, 0) if units.ratio(speedup) != "1.00×" else 0
    return Speed(words, f"({interval})" if interval else "", gain)


def less_memory(saving: float) -> str:
    """``38% less peak memory``, or more, of a fraction saved."""
    return f"{less_percent(saving)} peak memory"


def less_percent(saving: float) -> str:
    """``38% less``, ``12% more``, ``the same``."""
    amount = units.percent(abs(saving))
    return "the same" if amount == "0%" else f"{amount} {less_or_more(saving)}"


def less_or_more(saving: float) -> str:
    """``less`` of something that was saved."""
    return "less" if saving >= 0 else "more"


# --------------------------------------------------------------------- the result of a comparison


def result_cards(result: PrecisionsCompared, run: RunStarted | None) -> list[str]:
    """A card for each precision beside the baseline; none before its first pair of blocks.

    ``AMP fp16 1.71× the speed of FP32 (1.68 to 1.74), 38% less peak memory, 0 skips, 12 blocks of 20
    steps, mnist-deep, batch 256, H200``.
    """
    rows = [row for row in result.rows[1:] if row.speedup is not None and row.speedup > 0]
    # Those beside the baseline are among them.
    pairs = [pair for pair in result.pairs if pair.speedup > 0 and pair.than != result.baseline]
    return [_card(result, row, run) for row in rows] + [pair_words(pair, result) for pair in pairs]


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


def blocks_words(blocks: int, result: PrecisionsCompared) -> str:
    """``12 blocks of 20 steps``: what a result is based on."""
    return f"{units.counted(blocks, 'block')} of {result.block_steps} steps"


def _card(result: PrecisionsCompared, row: PrecisionMeasured, run: RunStarted | None) -> str:
    assert row.speedup is not None, "a card is of a precision that was measured"
    gain = _gain_words(
        row.speedup, row.speedup_low, row.speedup_high, compared_label(result.baseline, result)
    )
    parts = [f"{compared_label(row.precision, result)} {gain}"]
    peak = result.rows[0].peak_allocated_bytes
    if row.peak_allocated_bytes is not None and peak:
        parts.append(less_memory(1 - row.peak_allocated_bytes / peak))
    if base_precision(row.precision) == "fp16":
        parts.append(units.counted(row.skipped, "skip"))
    parts.append(blocks_words(row.blocks, result))
    if run is not None:
        parts.append(run.model)
        if run.batch_size:
            parts.append(f"batch {units.count(run.batch_size)}")
        parts.append(run.device_name.removeprefix("NVIDIA "))
    return ", ".join(parts)


def pair_words(pair: PairCompared, result: PrecisionsCompared) -> str:
    """``AMP bf16 compiled 1.24× the speed of AMP bf16 eager (1.20 to 1.28)``."""
    than = compared_label(pair.than, result)
    gain = _gain_words(pair.speedup, pair.speedup_low, pair.speedup_high, than)
    return f"{compared_label(pair.precision, result)} {gain}"


def launch_bound_gain(pair: PairCompared, option: str) -> str:
    """``FP32 eager is launch-bound: with --compile default 1.80× the speed of FP32 eager (1.75 to 1.85)``."""
    than = precision_label(pair.than)
    gain = _gain_words(pair.speedup, pair.speedup_low, pair.speedup_high, than)
    return f"{than} is launch-bound: with {option} {gain}"


def _gain_words(speedup: float, low: float | None, high: float | None, than: str) -> str:
    speed = speed_of(speedup, low, high, than)
    return f"{speed.words} {speed.interval or '(too few blocks for an interval)'}"


# ---------------------------------------------------------------------------- the running ratio


def tally_words(comparison: Comparison) -> str:
    """``AMP about 1.9× the speed of FP32``, or from warm-up steps, ``provisional``; empty while unknown."""
    ratio = comparison.speedup or comparison.provisional_speedup
    if not ratio:
        return ""
    several = sum(row.precision in AMP_PRECISIONS for row in comparison.rows) > 1
    low = precision_label(comparison.low or "") if several else family_label(comparison.low)
    than = precision_label(comparison.baseline or reference_precision(comparison.low or ""))
    return f"{low} {about_speed(ratio, than)}{'' if comparison.speedup else ', provisional'}"


def why_no_ratio(comparison: Comparison, accepts: Collection[RequestKind] = ()) -> str:
    """What a speed-up still needs; empty when there is one. ``accepts``: what the run can be asked for."""
    low, baseline = comparison.low, comparison.baseline
    match comparison.missing:
        case "emulated":
            return "emulated: its time says nothing about FP8"
        case "more steps":
            rows = {row.precision: row for row in comparison.rows}
            labels = {baseline or "": precision_label(baseline or ""), low or "": family_label(low)}
            few = []
            for name, label in labels.items():
                if name in rows and rows[name].steps < MIN_STEPS:
                    skips = f" ({units.count(rows[name].skipped)} skipped)" if rows[name].skipped else ""
                    few.append(f"{label} {rows[name].steps} of {MIN_STEPS}{skips}")
            return f"not enough steps: {', '.join(few)}"
        case "low" | "baseline":
            return _other_side(comparison, accepts)
        case "steady steps":
            hint = "; press c to alternate precisions" if "comparison" in accepts else ""
            return f"step times too uneven for a speed-up{hint}"
        case "steps":
            return "neither FP32 nor AMP ran" if comparison.rows and not (baseline or low) else NO_STEPS
    return ""


def _other_side(comparison: Comparison, accepts: Collection[RequestKind]) -> str:
    """Which precision has to run, and the key for it: ``c`` runs FP8's reference, ``p`` another precision."""
    other = family_label(comparison.low)
    if comparison.missing == "baseline":
        other = precision_label(reference_precision(comparison.low or ""))
    in_float8 = comparison.low in FP8_PRECISIONS
    kind, key = ("comparison", "c") if in_float8 else ("precision", "p")
    return f"press {key} to compare with {other}" if kind in accepts else f"no steps in {other}"


def of_steps(stats: PrecisionStats, figure: str, missing: str = units.NOT_MEASURED) -> str:
    """A figure from measured or, marked, warm-up steps; none from a single one of these: it loads kernels.

    Emulated steps have none: they would be taken for FP8's.
    """
    if is_emulated(stats.precision):
        return EMULATED
    if figure == units.NOT_AVAILABLE or 0 < stats.provisional_steps < MIN_PROVISIONAL_STEPS:
        return missing
    return f"{PROVISIONAL}{figure}" if stats.provisional_steps else figure


def peak_words(stats: PrecisionStats, missing: str = units.NOT_MEASURED) -> str:
    """Its peak memory; that of emulated steps is not FP8's."""
    if stats.peak_allocated_bytes is None:
        return missing
    return EMULATED if is_emulated(stats.precision) else units.number_of_bytes(stats.peak_allocated_bytes)


def provisional_lines(comparison: Comparison) -> list[str]:
    """What ``~`` means in the table: the steps behind it; empty if no figure is provisional."""
    rows = [row for row in comparison.rows if not is_emulated(row.precision)]
    marked = [row for row in rows if row.provisional_steps >= MIN_PROVISIONAL_STEPS]
    counts = [f"{row.provisional_steps:,} in {precision_label(row.precision)}" for row in marked]
    return [f"{PROVISIONAL} from warm-up steps: {', '.join(counts)}"] if counts else []


def uncounted(view: SessionView) -> list[str]:
    """The steps that are in no figure: ``warm-up steps left out: 40``, and those not measured."""
    rows = view.comparison.rows
    left_out = sum(row.warm_up_steps for row in rows if row.provisional_steps < MIN_PROVISIONAL_STEPS)
    steps = {"warm-up steps left out": left_out, "steps not measured": view.unmeasured_steps}
    return [f"{what}: {units.count(count)}" for what, count in steps.items() if count]


# -------------------------------------------------------------------------------- why little gain


def explanations(view: SessionView, accepts: Collection[RequestKind] = ()) -> list[str]:
    """One or two sentences for each gain that AMP or FP8 did not bring; none for those that it did.

    ``accepts``: what the run can be asked for; an X-ray would show where the memory goes.
    """
    comparison = view.comparison
    sentences = [_held_back(comparison)] if comparison.held_back_by else []
    saving = comparison.memory_saving
    if saving is not None and saving < LITTLE_MEMORY and not comparison.missing:
        breakdown = why_little(view.memory, view.numerics.xray, comparison.low)
        guess = "probably mostly weights, gradients and optimizer state, which stay FP32"
        # An X-ray measures what AMP keeps beside FP32.
        can_measure = "x-ray" in accepts and comparison.low not in FP8_PRECISIONS
        hint = "; press x for the breakdown" if can_measure and not breakdown else ""
        sentences.append(f"{less_memory(saving)}: {breakdown or guess}{hint}")
    return sentences


def unfair_losses(view: SessionView) -> tuple[str, ...]:
    """The losses after as many steps of each, and what they do not mean, the longest form first.

    Empty until there are both.
    """
    comparison = view.comparison
    losses = losses_after(view, comparison)
    if losses is None:
        return ()
    steps, baseline, low = losses
    both = f"{precision_label(comparison.baseline or '')} {units.loss(baseline)}, "
    both += f"{family_label(comparison.low)} {units.loss(low)}"
    after = f"loss after {units.count(steps)} steps of each: {both}"
    return f"{after}; mid-run losses start where the other precision left off", f"{after}; no fair race"


def _held_back(comparison: Comparison) -> str:
    rows = {row.precision: row for row in comparison.rows}
    baseline, low = rows[comparison.baseline or ""], rows[comparison.low or ""]
    if comparison.held_back_by == "input":
        before, after = units.share(baseline.data_fraction, 1), units.share(low.data_fraction, 1)
        waits = f"{precision_label(baseline.precision)} spends {before} of each step waiting for data"
        return f"input-bound: {waits}, {precision_label(low.precision)} {after}; speed up data loading first"
    idle = f"the GPU is idle {units.share(100 - (low.utilization_percent or 0.0), 100)} of the time"
    slower = comparison.speedup is not None and comparison.speedup < 1 - LITTLE_SPEED
    more = f", and {family_label(low.precision)}'s casts add kernel launches" if slower else ""
    return f"launch-bound: {idle}{more}; use larger batches, CUDA graphs or torch.compile"
