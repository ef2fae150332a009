"""A comparison as tables, with a row for each group or run, as lines of plain text and as one JSON object."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from amptui.base import units
from amptui.base.table import Column, table_lines, table_width
from amptui.diagnosis.words import long_words
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import (
    Compared,
    median_of,
    peak_of,
    process_peak_of,
    rate_of,
    skipped_of,
)
from amptui.reports.compare.groups import Group, options, seed_of
from amptui.reports.compare.trace import RunFigures

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
        text = sentences.spread(group.spread(self.value_of), self.words)
        return text if have == len(group.runs) else f"{text} ({have} of {len(group.runs)})"


def figures(comparison: Compared) -> tuple[Figure, ...]:
    """All that is measured of a run, in the order of the table's columns."""
    target = "time to a loss" if comparison.target is None else f"time to {units.loss(comparison.target)}"
    memory, milliseconds = units.number_of_bytes, units.milliseconds
    # The losses that are compared matter most.
    losses = (
        {"training": 30, "validation": 25} if comparison.validation else {"training": 20, "validation": 40}
    )
    return (
        Figure("", "steps", lambda run: run.view.step, units.count, 50),
        Figure("", "samples", lambda run: run.samples, units.count, 70),
        Figure("median_step_seconds", "median step", median_of, milliseconds, 15),
        Figure("samples_per_second", "samples/s", rate_of, units.rate, 48),
        Figure("peak_allocated_bytes", "peak allocated", peak_of, memory, 35),
        Figure("peak_process_bytes", "process peak", process_peak_of, memory, 80),
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
        Figure("seconds_to_target_loss", target, comparison.seconds_to_target, _time, 44),
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
        Column(title="state", cell=lambda member: sentences.state(member[1]), priority=42),
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
    states = [sentences.state(run) for run in group.runs]
    if len(set(states)) == 1:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


# --------------------------------------------------------------------------- plain text and JSON


def plain_lines(comparison: Compared, width: int | None = None) -> list[str]:
    """The whole comparison, the verdict last; with a ``width`` in lines of so many cells.

    Tables that are too wide then have the columns that fit.
    """
    about = [sentences.heading(comparison), ""]
    for group in comparison.groups:
        names = ", ".join(run.name for run in group.runs)
        about.append(f"{group.name}: {sentences.seeds(group)}: {names}")
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
    words = ["", *sentences.how_measured(comparison)]
    if comparison.differences:
        words += ["", "what differs:", *(f"  {line}" for line in sentences.difference_lines(comparison))]
    words += ["", *(f"note: {check.words}" for check in comparison.checks)]
    words += [text for contrast in comparison.contrasts if (text := sentences.speed(contrast))]
    words += [] if comparison.contrasts else [sentences.ONE_GROUP]
    words += [long_words(contrast.finding) for contrast in comparison.contrasts]
    return [*_wrapped(about, width), *tables, *_wrapped(words, width)]


def _wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    if width is None:
        return [*lines]
    fill = partial(textwrap.wrap, width=width, subsequent_indent="    ", break_on_hyphens=False)
    return [part for line in lines for part in fill(line) or [""]]


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
        "checks": [{"kind": check.kind, "text": check.words} for check in comparison.checks],
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
                "state": sentences.state(run),
                "steps": run.view.step,
                "samples": run.samples,
                "resumed": run.resumed,
                "options": options(run),
                "passed_over": run.passed_over,
                **{name: value_of(run) for name, value_of in named.items()},
            }
            for run in group.runs
        ],
    }
