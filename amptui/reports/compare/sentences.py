"""Every sentence of a comparison, made from its numbers: verdicts, checks, differences, headings."""

from collections.abc import Callable

from amptui.base import units
from amptui.diagnosis.finding_fields import times_speed
from amptui.diagnosis.labels import data_label
from amptui.records.run import RunFailed, RunFinished
from amptui.reports.compare.contrasts import Compared, Contrast
from amptui.reports.compare.groups import Group, Spread, has_emulated_steps
from amptui.reports.compare.trace import FINAL_SHARE, MEAN_STEPS, RunFigures
from amptui.reports.compare.welch import ENOUGH_SEEDS

AXES = {"steps": "step", "samples": "samples", "seconds": "training time"}
"""What curves can be drawn over: fields of ``Curve``, and their names."""

ONE_GROUP = "only one group: these runs differ only in the seed, so there is nothing to compare"

LEGEND = "line: mean of a group's runs; band: lowest to highest; after a run ends: the remaining runs"


def heading(comparison: Compared) -> str:
    """``6 runs in 2 groups: mnist-deep, MNIST, AMD EPYC``."""
    runs, groups = len(comparison.runs), len(comparison.groups)
    about = f"{runs} runs in {units.counted(groups, 'group')}"
    started = [run.view.run for run in comparison.runs]
    records = [run for run in started if run is not None]
    facts = [
        [run.model for run in records],
        [data_label(run.data) for run in records],
        [run.device_name for run in records],
    ]
    shared = [values[0] for values in facts if values and len(set(values)) == 1]
    return f"{about}: {', '.join(shared)}" if shared else about


def seeds(group: Group) -> str:
    """``seeds 0, 1, 2``; what is not known is said."""
    numbers = [str(seed) for seed in group.seeds if seed is not None]
    if not numbers:
        return "seed unknown"
    return f"seed{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}"


def speed(contrast: Contrast) -> str:
    """How the speeds compare; empty if they cannot be compared."""
    ratio = contrast.speedup
    if ratio is None:
        return ""
    speed = times_speed(ratio.mean, contrast.baseline.name)
    sides = f"{contrast.other.name}: {speed}"
    low, high = units.ratio(ratio.low), units.ratio(ratio.high)
    return sides if low == high else f"{sides}, {low} to {high} from run to run"


def difference_lines(comparison: Compared) -> list[str]:
    """``precision: F FP32; B AMP bf16``, a line for each option."""
    lines = []
    for name, values in comparison.differences.items():
        pairs = zip(comparison.groups, values, strict=True)
        lines.append(f"{name}: " + "; ".join(f"{group.letter} {value or 'none'}" for group, value in pairs))
    return lines


def how_measured(comparison: Compared) -> list[str]:
    """What the figures of the table are."""
    share = units.percent(FINAL_SHARE)
    final = f"final training loss: mean of the last {share} of the steps, {MEAN_STEPS} at least"
    lines = [
        f"{final}; best: lowest mean of {MEAN_STEPS} steps in a row",
        "training time: sum of all step times, without validation and pauses",
    ]
    several = {run.name: run.view.optimizers[0].label for run in comparison.runs if run.view.optimizers}
    if several:
        firsts = ", ".join(f"{label} of {name}" for name, label in several.items())
        lines.append(f"of several optimizers only the first is compared: {firsts}")
    if any(len(group.runs) > 1 for group in comparison.groups):
        lines.append("a group's figures are means over its runs, lowest and highest in brackets")
    if any(contrast.finding.state == "not shown" for contrast in comparison.contrasts):
        lines.append("no difference shown does not mean none: the true one may be anywhere in the interval")
    judged = [contrast for contrast in comparison.contrasts if contrast.interval is not None]
    sizes = [sorted(len(group.seeds) for group in (one.baseline, one.other)) for one in judged]
    if any(fewer < min(more, ENOUGH_SEEDS) for fewer, more in sizes):
        lines.append(
            f"with unequal groups, one below {ENOUGH_SEEDS} seeds, the interval is wider to keep its level; "
            "equal numbers of seeds show smaller differences"
        )
    if any(len(run.view.comparison.rows) > 1 for run in comparison.runs):
        lines.append("a run in several precisions has no one step time")
    if any(map(has_emulated_steps, comparison.runs)):
        lines.append(
            "emulated FP8 is computed in float32: times and memory say nothing of FP8 and are not compared; "
            "its training time is that of the emulation"
        )
    if any(contrast.speedup is not None for contrast in comparison.contrasts):
        lines.append(
            "load on the machine also makes separate runs differ: `amptui bench` alternates precisions"
        )
    if comparison.target is None:
        lines.append("no time to a loss: not every run has enough steps for one")
    elif not comparison.target_asked:
        target = f"time to {units.loss(comparison.target)}: the highest of the final losses, which every run"
        lines.append(f"{target} reached; --target-loss chooses another")
    return lines


def curve_title(axis: str, *, validation: bool) -> str:
    """``training loss by step, smoothed``."""
    return f"validation loss by {AXES[axis]}" if validation else f"training loss by {AXES[axis]}, smoothed"


def axis_words(axis: str) -> Callable[[float], str]:
    """How values of an axis are written."""
    if axis == "seconds":
        return units.duration
    return lambda value: units.count(round(value)) if abs(value) < 1e6 else units.short_count(value)


def state(run: RunFigures) -> str:
    """How a run stands, in a word or two."""
    if isinstance(run.view.outcome, RunFailed):
        return "failed"
    if isinstance(run.view.outcome, RunFinished):
        return run.view.outcome.reason
    if run.is_live:
        return "paused" if run.view.state == "paused" else "running"
    return "unfinished"


def spread(figure: Spread | None, words: Callable[[float], str]) -> str:
    """``0.512 [0.49–0.53]``; without brackets if they would repeat the mean."""
    if figure is None:
        return units.NOT_AVAILABLE
    mean, low, high = (words(value) for value in (figure.mean, figure.low, figure.high))
    if figure.runs == 1 or low == high == mean:
        return mean
    if _unit(low) == _unit(high):
        low = low.removesuffix(_unit(low))  # it stands behind the other end
    return f"{mean} [{low}–{high}]"


def _unit(words: str) -> str:
    """What stands behind the number: `` GiB``, ``/s``."""
    return words.lstrip("0123456789.,+-−")
