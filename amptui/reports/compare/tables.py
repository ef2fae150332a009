"""Every sentence of a comparison, made from its numbers, and its tables: plain text and one JSON object."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from amptui.base import units
from amptui.base.table import Column, table_lines, table_width
from amptui.base.text import wrapped
from amptui.diagnosis.finding_fields import times_speed
from amptui.diagnosis.labels import data_label
from amptui.diagnosis.words import long_words
from amptui.records.run import RunFailed, RunFinished
from amptui.reports.compare.contrasts import Compared, Contrast, rate_of
from amptui.reports.compare.groups import Group, Spread, options, seed_of, stats_of
from amptui.reports.compare.trace import FINAL_SHARE, MEAN_STEPS, RunFigures

ONE_GROUP = "only one group: these runs differ only in the seed, so there is nothing to compare"


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


def how_measured(comparison: Compared) -> list[str]:
    """What the figures of the table are."""
    share = units.percent(FINAL_SHARE)
    final = f"final training loss: mean of the last {share} of the steps, {MEAN_STEPS} at least"
    lines = [
        f"{final}; best: lowest mean of {MEAN_STEPS} steps in a row",
        "training time: sum of all step times, without validation and pauses",
    ]
    if any(run.view.optimizers for run in comparison.runs):
        lines.append("of several optimizers only the first is compared")
    if any(len(group.runs) > 1 for group in comparison.groups):
        lines.append("a group's figures are means over its runs, lowest and highest in brackets")
    if any(contrast.finding.state == "not shown" for contrast in comparison.contrasts):
        lines.append("no difference shown does not mean none: the true one may be anywhere in the interval")
    if any(len(run.view.comparison.rows) > 1 for run in comparison.runs):
        lines.append("a run in several precisions has no one step time")
    if any(contrast.speedup is not None for contrast in comparison.contrasts):
        lines.append(
            "load on the machine also makes separate runs differ: `amptui bench` alternates precisions"
        )
    if comparison.target is not None and not comparison.target_asked:
        target = f"time to {units.loss(comparison.target)}: the highest of the final losses, which every run"
        lines.append(f"{target} reached; --target-loss chooses another")
    return lines


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


# ------------------------------------------------------------------------------------ tables

MAX_NAME = 32
"""Characters of a run's name in a table."""

Member: TypeAlias = tuple[Group, RunFigures]
"""A run and the group that it is in."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a run: a column of the table, and a field of the JSON object."""

    name: str
    """In JSON; empty where the run itself has the field."""
    title: str
    value_of: Callable[[RunFigures], float | None]
    words: Callable[[float | None], str]
    priority: int
    """That of its column."""

    def of_run(self, run: RunFigures) -> str:
        """The cell of a run."""
        value = self.value_of(run)
        return units.NOT_AVAILABLE if value is None else self.words(value)

    def of_group(self, group: Group) -> str:
        """The cell of a group: the mean, the range, and how many runs have it if not all do."""
        have = sum(self.value_of(run) is not None for run in group.runs)
        if not have:
            return units.NOT_AVAILABLE
        text = spread(group.spread(self.value_of), self.words)
        return text if have == len(group.runs) else f"{text} ({have} of {len(group.runs)})"


def figures(comparison: Compared) -> tuple[Figure, ...]:
    """All that is measured of a run, in the order of the table's columns."""
    target = "time to a loss" if comparison.target is None else f"time to {units.loss(comparison.target)}"
    memory, milliseconds = units.number_of_bytes, units.milliseconds
    # The losses that are compared matter most.
    losses = (
        {"training": 30, "validation": 25} if comparison.validation else {"training": 20, "validation": 40}
    )

    def median_of(run: RunFigures) -> float | None:
        return None if (stats := stats_of(run)) is None else stats.median_step_seconds

    def peak_of(run: RunFigures) -> int | None:
        return max((row.peak_allocated_bytes or 0 for row in run.view.comparison.rows), default=0) or None

    def skipped_of(run: RunFigures) -> int:
        return sum(row.skipped for row in run.view.comparison.rows)

    def seconds_to_target(run: RunFigures) -> float | None:
        if comparison.target is None:
            return None
        return run.seconds_to(comparison.target, validation=comparison.validation)

    return (
        Figure("", "steps", lambda run: run.view.step, units.count, 50),
        Figure("", "samples", lambda run: run.samples, units.count, 70),
        Figure("median_step_seconds", "median step", median_of, milliseconds, 15),
        Figure("samples_per_second", "samples/s", rate_of, units.rate, 48),
        Figure("peak_allocated_bytes", "peak allocated", peak_of, memory, 35),
        Figure("skipped", "skipped", skipped_of, units.count, 55),
        *(
            Figure(
                f"{which}_{kind}_loss",
                f"{which} {kind} loss",
                partial(
                    lambda which, kind, run: getattr(run, which)(validation=kind == "validation"), which, kind
                ),
                units.loss,
                priority + more,
            )
            for kind, priority in losses.items()
            for which, more in (("final", 0), ("best", 35))
        ),
        Figure("seconds_to_target_loss", target, seconds_to_target, _time, 44),
        Figure("training_seconds", "training time", lambda run: run.seconds, _time, 46),
    )


def group_columns(comparison: Compared) -> list[Column[Group]]:
    """Of a table of the groups."""
    columns: list[Column[Group]] = [
        Column(title="group", cell=lambda group: group.name, align="left"),
        Column(title="seeds", cell=lambda group: units.count(len(group.seeds)), priority=10),
        Column(title="state", cell=_states, priority=42),
    ]
    columns += [
        Column(title=figure.title, cell=figure.of_group, priority=figure.priority)
        for figure in figures(comparison)
        if any(figure.of_group(group) != units.NOT_AVAILABLE for group in comparison.groups)
    ]
    return columns


def run_columns(comparison: Compared) -> list[Column[Member]]:
    """Of a table of the runs."""
    columns: list[Column[Member]] = [
        Column(
            title="run", cell=lambda member: f"{member[0].letter} {shortened(member[1].name)}", align="left"
        ),
        Column(title="seed", cell=lambda member: _seed(member[1]), priority=10),
        Column(title="state", cell=lambda member: state(member[1]), priority=42),
    ]
    for figure in figures(comparison):
        if any(figure.of_run(run) != units.NOT_AVAILABLE for run in comparison.runs):
            cell = partial(lambda figure, member: figure.of_run(member[1]), figure)
            columns.append(Column(title=figure.title, cell=cell, priority=figure.priority))
    return columns


def members(comparison: Compared) -> list[Member]:
    """The rows of a table of the runs, those of a group together."""
    return [(group, run) for group in comparison.groups for run in group.runs]


def shortened(name: str) -> str:
    """``name`` cut in its middle, where names of runs are least apart."""
    half = (MAX_NAME - 1) // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"


def _seed(run: RunFigures) -> str:
    seed = seed_of(run)
    return units.NOT_AVAILABLE if seed is None else str(seed)


def _time(seconds: float | None) -> str:
    """Tenths below ten minutes: short runs differ in them."""
    if seconds is None or not 0 <= seconds < 600:
        return units.duration(seconds)
    return f"{seconds:.1f} s"


def _states(group: Group) -> str:
    states = [state(run) for run in group.runs]
    if len(set(states)) == 1:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


# --------------------------------------------------------------------------- plain text and JSON


def plain_lines(comparison: Compared, width: int | None = None) -> list[str]:
    """The whole comparison, the verdict last; with a ``width`` in lines of so many cells.

    Tables that are too wide then have the columns that fit.
    """
    about = [heading(comparison), ""]
    for group in comparison.groups:
        names = ", ".join(run.name for run in group.runs)
        about.append(f"{group.name}: {seeds(group)}: {names}")
    # A line for each figure: there may be many, and few groups.
    columns = first, *others = group_columns(comparison)
    turned: list[Column[Column[Group]]] = [
        Column(title=first.title, cell=attrgetter("title"), align="left"),
        *(
            Column(title=first.cell(group), cell=partial(lambda group, column: column.cell(group), group))
            for group in comparison.groups
        ),
    ]
    tables = ["", *table_lines(turned, others)]
    if width is not None and table_width(turned, others) > width:
        tables = ["", *table_lines(columns, comparison.groups, width)]
    tables += ["", *table_lines(run_columns(comparison), members(comparison), width)]
    words = ["", *how_measured(comparison)]
    if comparison.differences:
        words += ["", "what differs:"]
    for name, values in comparison.differences.items():
        pairs = zip(comparison.groups, values, strict=True)
        words.append(f"  {name}: " + "; ".join(f"{group.letter} {value or 'none'}" for group, value in pairs))
    words += ["", *(f"note: {text}" for text in comparison.checks.values())]
    words += [text for contrast in comparison.contrasts if (text := speed(contrast))]
    words += [] if comparison.contrasts else [ONE_GROUP]
    words += [long_words(contrast.finding) for contrast in comparison.contrasts]
    about, words = (
        [part for line in lines for part in wrapped(line, width, rest=" " * 4)] for lines in (about, words)
    )
    return [*about, *tables, *words]


def as_json(comparison: Compared) -> dict[str, Any]:
    """The same as one JSON object; what was not measured is null."""
    letters = [group.letter for group in comparison.groups]
    return {
        "type": "Comparison",
        "final_loss_is": "validation" if comparison.validation else "training",
        "target_loss": comparison.target,
        "groups": [_group(group, comparison) for group in comparison.groups],
        "contrasts": [
            {
                "baseline": contrast.baseline.letter,
                "other": contrast.other.letter,
                "outcome": contrast.finding.state,
                "difference": contrast.finding.numbers["difference"],
                "interval": contrast.interval,
                "speedup": contrast.speedup,
                "text": long_words(contrast.finding),
            }
            for contrast in comparison.contrasts
        ],
        "differences": {
            name: dict(zip(letters, values, strict=True)) for name, values in comparison.differences.items()
        },
        "checks": [{"kind": kind, "text": text} for kind, text in comparison.checks.items()],
    }


def _group(group: Group, comparison: Compared) -> dict[str, Any]:
    named = {figure.name: figure.value_of for figure in figures(comparison) if figure.name}
    return {
        "letter": group.letter,
        "label": group.label,
        "seeds": group.seeds,
        "figures": {name: group.spread(value_of) for name, value_of in named.items()},
        "runs": [
            {
                "name": run.name,
                "folder": run.folder,
                "seed": seed_of(run),
                "state": state(run),
                "steps": run.view.step,
                "samples": run.samples,
                "options": options(run),
                "passed_over": run.passed_over,
                **{name: value_of(run) for name, value_of in named.items()},
            }
            for run in group.runs
        ],
    }
