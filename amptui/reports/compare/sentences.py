"""Every sentence of a comparison, made from its numbers: verdicts, checks, differences, headings."""

import math
from collections.abc import Callable, Mapping, Sequence

from amptui.base import units
from amptui.records.run import RunFailed, RunFinished, Severity
from amptui.reports.compare.contrasts import Check, Compared, Contrast, Kind, Outcome
from amptui.reports.compare.groups import Group, Spread
from amptui.reports.compare.power import POWER
from amptui.reports.compare.trace import FINAL_SHARE, MEAN_STEPS, RunFigures
from amptui.reports.compare.welch import ENOUGH_SEEDS, MIN_SEEDS

AXES = {"steps": "step", "samples": "samples", "seconds": "training time"}
"""What curves can be drawn over: fields of ``Curve``, and their names."""

_NO_VERDICT: Mapping[Outcome, str] = {
    "no spread": "the seeds of each group ended at the same loss",
    "no loss": "a run has no loss",
    "not comparable": "it was not the same training, see below",
    "running": "a run still trains",
    "reading": "not all journals are read yet",
}
"""Why there is none."""

_CHECKS: Mapping[Kind, str] = {
    "samples": "trained on different numbers of samples ({}): final losses are not of equal training",
    "data": "trained on different data ({}): losses do not compare",
    "model": "different models ({}): losses do not compare",
    "devices": "trained on different devices ({}): times do not compare",
    "several devices": "resumed on another device, so times do not compare: {}",
    "overlap": "trained at the same time, perhaps on one machine, which may slow each down: {}",
    "unfinished": "ended before the end that was asked for, or failed: {}",
    "repeated seed": "{}: a repeated seed counts once",
    "unknown seed": "{}: not all runs tell their seed; those count as one",
    "uneven": "mean steps took over 1.25 times as long as median ones, as on a busy machine: {}",
    "untimed": "more than 1% of the steps have no time, so there is no training time: {}",
    "unread": "not everything in the journal could be read: {}",
}


ONE_GROUP = "one group: its runs differ in nothing but the seed, so there is nothing to compare it with"

NOT_SHOWN = "No difference shown: the seeds differ by as much"

NO_VALIDATION = "no run has a validation"

LEGEND = "line: mean over the runs of a group; band: lowest to highest; where runs have ended: the others"

READING = (
    "A line is the mean over all runs of a group, the dots beside it",
    "reach from the lowest to the highest. Where a run has ended,",
    "dots show the others. Letters name groups; × is NaN or Inf.",
)
"""How to read the curves."""


def heading(found: Compared) -> str:
    """``6 runs in 2 groups: mnist-deep, MNIST, AMD EPYC``."""
    runs, groups = len(found.runs), len(found.groups)
    about = f"{runs} runs in {groups} group{'' if groups == 1 else 's'}"
    started = [run.view.run for run in found.runs]
    known = [run for run in started if run is not None]
    facts = [
        [run.model for run in known],
        [run.data.name if run.data.real else f"{run.data.name} (synthetic data)" for run in known],
        [run.device_name for run in known],
    ]
    shared = [values[0] for values in facts if values and len(set(values)) == 1]
    return f"{about}: {', '.join(shared)}" if shared else about


def group_name(group: Group) -> str:
    """``A FP32``."""
    return f"{group.letter} {group.label}"


def seeds(group: Group) -> str:
    """``seeds 0, 1, 2``; what is not known is said."""
    found = [str(seed) for seed in group.seeds if seed is not None]
    if not found:
        return "seed unknown"
    return f"seed{'' if len(found) == 1 else 's'} {', '.join(found)}"


def severity(contrast: Contrast) -> Severity | None:
    """How bad a verdict is; None if there is none."""
    if contrast.outcome == "diverged":
        return "error"
    if contrast.outcome != "differ" or contrast.difference is None:
        return None
    return "warning" if contrast.difference > 0 else "info"


def verdict(contrast: Contrast, found: Compared) -> str:
    """A few words on the final losses of two groups."""
    loss = "final validation loss" if found.validation else "final training loss"
    sides = f"{group_name(contrast.other)} against {group_name(contrast.baseline)}"
    if contrast.outcome == "diverged":
        runs = [*contrast.baseline.runs, *contrast.other.runs]
        finals = [(run.name, found.final(run)) for run in runs]
        named = [name for name, final in finals if final is not None and not math.isfinite(final)]
        return f"{sides}: the {loss} is NaN or Inf in {', '.join(named)}"
    apart = "" if contrast.difference is None else f" {_signed(contrast.difference)}"
    if contrast.interval is None:
        why = _few(contrast) if contrast.outcome == "few seeds" else _NO_VERDICT[contrast.outcome]
        if contrast.difference is None:
            return f"{sides}: no verdict on the {loss}: {why}"
        return f"{sides}: {loss}{apart}. No verdict: {why}"
    low, high = _signed(contrast.interval.low), _signed(contrast.interval.high)
    percent = units.percent(contrast.interval.confidence, 0 if len(found.contrasts) == 1 else 1)
    told = "They differ by more than the seeds do" if contrast.outcome == "differ" else NOT_SHOWN
    if contrast.outcome == "not shown" and contrast.detectable is not None:
        seen = units.loss(contrast.detectable)
        told += f". With such seeds a difference of {seen} would show {round(10 * POWER)} times in 10"
    return f"{sides}: {loss}{apart} ({percent} interval {low} to {high}). {told}"


def _few(contrast: Contrast) -> str:
    few = [group for group in (contrast.baseline, contrast.other) if len(group.seeds) < MIN_SEEDS]
    who = "one seed each" if len(few) == 2 else f"{group_name(few[0])} has one seed"
    return f"{who}, and it takes {MIN_SEEDS} or more of each"


def speed(contrast: Contrast) -> str:
    """How the speeds compare; empty if they cannot be compared."""
    found = contrast.speedup
    if found is None:
        return ""
    ratio, baseline = units.ratio(found.mean), group_name(contrast.baseline)
    sides = f"{group_name(contrast.other)}: {ratio} the speed of {baseline}"
    low, high = units.ratio(found.low), units.ratio(found.high)
    return sides if low == high else f"{sides}, {low} to {high} from run to run"


def check(one: Check) -> str:
    """One limit of the comparison."""
    if one.kind == "unread":
        told = [f"{run} ({words})" for run, words in zip(one.groups, one.values, strict=True)]
        return _CHECKS[one.kind].format(", ".join(told))
    if one.kind in ("samples", "data", "model", "devices"):
        pairs = zip(one.groups, one.values, strict=True)
        return _CHECKS[one.kind].format("; ".join(f"{group}: {value}" for group, value in pairs))
    return _CHECKS[one.kind].format(", ".join(one.groups))


def difference_lines(found: Compared) -> list[str]:
    """``precision: A FP32; B AMP bf16``, a line for each option."""
    lines = []
    for each in found.differences:
        pairs = zip(found.groups, each.values, strict=True)
        told = "; ".join(f"{group.letter} {value or 'none'}" for group, value in pairs)
        lines.append(f"{each.name}: {told}")
    return lines


def how_measured(found: Compared) -> list[str]:
    """What the figures of the table are."""
    share = units.percent(FINAL_SHARE)
    final = f"final training loss: mean of the last {share} of the steps, {MEAN_STEPS} at least"
    lines = [
        f"{final}; best: lowest mean of {MEAN_STEPS} steps in a row",
        "training time: sum of all step times, without validation and pauses",
    ]
    several = {run.name: run.view.optimizers[0].label for run in found.runs if run.view.optimizers}
    if several:
        firsts = ", ".join(f"{label} of {name}" for name, label in several.items())
        lines.append(f"of several optimizers only the first is compared: {firsts}")
    if any(len(group.runs) > 1 for group in found.groups):
        lines.append("a group's figures are means over its runs, lowest and highest in brackets")
    if any(contrast.outcome == "not shown" for contrast in found.contrasts):
        lines.append("no difference shown does not mean none: the true one may be anywhere in the interval")
        lines.append("what would show: with as many seeds, if their losses spread as they do here")
    if any(map(_is_uneven, found.contrasts)):
        lines.append(
            f"the interval of unequal groups, if one has fewer than {ENOUGH_SEEDS} seeds, is wider: else it "
            "would miss the true difference more often than it says; as many seeds of each show more"
        )
    if any(contrast.speedup is not None for contrast in found.contrasts):
        lines.append(
            "separate runs also differ by the load of the machine: `amptui bench` alternates precisions"
        )
    if found.target is None:
        lines.append("no time to a loss: not every run has enough steps for one")
    elif not found.target_asked:
        lines.append(
            f"time to {units.loss(found.target)}: the highest of the final losses, which every run reached; "
            "--target-loss chooses another"
        )
    return lines


def _is_uneven(contrast: Contrast) -> bool:
    fewer, more = sorted(len(group.seeds) for group in (contrast.baseline, contrast.other))
    return contrast.interval is not None and fewer < min(more, ENOUGH_SEEDS)


def curve_title(axis: str, *, validation: bool) -> str:
    """``training loss by step, smoothed``."""
    if validation:
        return f"validation loss by {AXES[axis]}"
    return f"training loss by {AXES[axis]}, smoothed"


def axis_words(axis: str) -> Callable[[float], str]:
    """How values of an axis are written."""
    if axis == "seconds":
        return units.duration
    return lambda value: units.count(round(value)) if abs(value) < 1e6 else units.short_count(value)


def state(run: RunFigures) -> str:
    """How a run stands, in a word or two."""
    if run.read_share < 1:
        return f"reading {units.percent(run.read_share)}"
    if isinstance(run.view.outcome, RunFailed):
        return "failed"
    if isinstance(run.view.outcome, RunFinished):
        return run.view.outcome.reason
    if run.is_live:
        return "paused" if run.view.state == "paused" else "running"
    return "unfinished"


def spread(found: Spread | None, words: Callable[[float], str], *, brief: bool = False) -> str:
    """``0.512 [0.49–0.53]``; without brackets if ``brief``, or if they would repeat the mean."""
    if found is None:
        return units.NOT_AVAILABLE
    mean, low, high = (words(value) for value in (found.mean, found.low, found.high))
    if brief or found.runs == 1 or low == high == mean:
        return mean
    if _unit(low) == _unit(high):
        low = low.removesuffix(_unit(low))  # it stands behind the other end
    return f"{mean} [{low}–{high}]"


def _unit(words: str) -> str:
    """What stands behind the number: `` GiB``, ``/s``."""
    return words.lstrip("0123456789.,+-−")


def without_curves(groups: Sequence[Group]) -> str:
    """Which groups have no curve on the screen."""
    return f"no curves for {', '.join(map(group_name, groups))}: the screen has room for those before"


def more_lines(count: int) -> str:
    """What stands below sentences that do not all fit."""
    return f"… {count} more line{'' if count == 1 else 's'}: ↓"


def more_rows(count: int) -> str:
    """What stands below a table whose rows do not all fit."""
    return f"{count} more row{'' if count == 1 else 's'}: --plain shows all"


def _signed(value: float) -> str:
    words = units.loss(abs(value))
    return f"{'−' if value < 0 else '+'}{words}"
