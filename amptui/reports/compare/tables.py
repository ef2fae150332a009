"""A comparison as tables, with a row for each group or run, as lines of plain text and as one JSON object."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from amptui.base import strictjson, units
from amptui.diagnosis.speed import EMULATED
from amptui.diagnosis.summary import table
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import (
    Compared,
    median_of,
    peak_of,
    process_peak_of,
    rate_of,
    skipped_of,
)
from amptui.reports.compare.groups import Group, has_emulated_steps, options, seed_of
from amptui.reports.compare.trace import RunFigures

MAX_NAME = 32
"""Characters of a run's name in a table."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a run: a column of the table, and a field of the JSON object."""

    name: str
    """In JSON; empty where the run itself has the field."""
    heading: str
    value_of: Callable[[RunFigures], float | None]
    words: Callable[[float | None], str]
    worth: int
    """Where not all columns fit, the one that is worth least is left out first."""
    has_range: bool = False
    """Whether also a brief table shows its range over the runs of a group."""
    is_of_fp8: bool = True
    """Whether emulated FP8 has it, too."""

    def of_run(self, run: RunFigures) -> str:
        """The cell of a run."""
        value = self.value_of(run)
        return self._absent([run]) if value is None else self.words(value)

    def of_group(self, group: Group, *, brief: bool) -> str:
        """The cell of a group: the mean, the range, and how many runs have it if not all do."""
        have = sum(self.value_of(run) is not None for run in group.runs)
        if not have:
            return self._absent(group.runs)
        text = sentences.spread(group.spread(self.value_of), self.words, brief=brief and not self.has_range)
        return text if have == len(group.runs) else f"{text} ({have} of {len(group.runs)})"

    def _absent(self, runs: Sequence[RunFigures]) -> str:
        if self.value_of is median_of and any(len(run.view.comparison.rows) > 1 for run in runs):
            return "several precisions"
        return EMULATED if not self.is_of_fp8 and any(map(has_emulated_steps, runs)) else units.NOT_AVAILABLE


def figures(comparison: Compared) -> tuple[Figure, ...]:
    """All that is measured of a run, in the order of the table's columns."""
    target = "time to a loss" if comparison.target is None else f"time to {units.loss(comparison.target)}"
    memory, milliseconds = units.number_of_bytes, units.milliseconds
    # The losses that are compared matter most.
    losses = (
        {"training": 70, "validation": 75} if comparison.validation else {"training": 80, "validation": 60}
    )
    return (
        Figure("", "steps", lambda run: run.view.step, units.count, 50),
        Figure("", "samples", lambda run: run.samples, units.count, 30),
        Figure("median_step_seconds", "median step", median_of, milliseconds, 85, is_of_fp8=False),
        Figure("samples_per_second", "samples/s", rate_of, units.rate, 52, is_of_fp8=False),
        Figure("peak_allocated_bytes", "peak allocated", peak_of, memory, 65, is_of_fp8=False),
        Figure("peak_process_bytes", "process peak", process_peak_of, memory, 20, is_of_fp8=False),
        Figure("skipped", "skipped", skipped_of, units.count, 45),
        *(
            Figure(
                f"{which}_{kind}_loss",
                f"{which} {kind} loss",
                attrgetter(f"{which}_{kind}"),
                units.loss,
                worth - less,
                has_range=True,
            )
            for kind, worth in losses.items()
            for which, less in (("final", 0), ("best", 35))
        ),
        Figure("seconds_to_target_loss", target, comparison.seconds_to_target, _time, 56, is_of_fp8=False),
        Figure("training_seconds", "training time", lambda run: run.seconds, _time, 54),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells as wide as the heading's; the first cell is the row's name."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    groups: tuple[int, ...]
    """The place of each row's group."""
    worths: tuple[int, ...]
    """One a column, see :class:`Figure`."""

    @property
    def widths(self) -> list[int]:
        """The widest cell of each column."""
        return [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]

    def within(self, width: int, *, gap: int = 2) -> "Table":
        """The columns that fit in ``width`` cells, the most valuable ones; the name always stays."""
        widths = self.widths
        places: set[int] = set()
        used_width = -gap
        for place in sorted(range(len(self.head)), key=lambda i: -self.worths[i]):
            if not places or used_width + gap + widths[place] <= width:
                places.add(place)
                used_width += gap + widths[place]
        return self.only(sorted(places))

    def turned(self) -> "Table":
        """Its rows as columns, and its columns as rows."""
        columns = tuple(zip(self.head, *self.rows, strict=True))
        return Table(head=columns[0], rows=columns[1:], groups=(), worths=(100, *[0] * len(self.rows)))

    def only(self, places: Sequence[int]) -> "Table":
        """The columns at ``places``."""
        return Table(
            head=tuple(self.head[i] for i in places),
            rows=tuple(tuple(row[i] for i in places) for row in self.rows),
            groups=self.groups,
            worths=tuple(self.worths[i] for i in places),
        )


def group_table(comparison: Compared, *, brief: bool = False) -> Table:
    """A row for each group; ``brief`` shows the range over its runs for final losses only."""
    columns = figures(comparison)
    rows = [
        (
            sentences.group_name(group),
            units.count(len(group.seeds)),
            _states(group),
            *(column.of_group(group, brief=brief) for column in columns),
        )
        for group in comparison.groups
    ]
    return _table(("group", "seeds"), columns, rows, range(len(comparison.groups)))


def run_table(comparison: Compared) -> Table:
    """A row for each run, those of a group together."""
    columns = figures(comparison)
    members = [(place, run) for place, group in enumerate(comparison.groups) for run in group.runs]
    rows = [
        (
            f"{comparison.groups[place].letter} {shortened(run.name)}",
            units.NOT_AVAILABLE if seed_of(run) is None else str(seed_of(run)),
            sentences.state(run),
            *(column.of_run(run) for column in columns),
        )
        for place, run in members
    ]
    return _table(("run", "seed"), columns, rows, [place for place, _ in members])


def shortened(name: str) -> str:
    """``name`` cut in its middle, where names of runs are least apart."""
    half = (MAX_NAME - 1) // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"


def _table(
    names: tuple[str, str],
    columns: Sequence[Figure],
    rows: Sequence[tuple[str, ...]],
    groups: Sequence[int],
) -> Table:
    """Without the columns in which nothing was measured."""
    whole = Table(
        head=(*names, "state", *(column.heading for column in columns)),
        rows=tuple(rows),
        groups=tuple(groups),
        worths=(100, 90, 58, *(column.worth for column in columns)),
    )
    nothing = ("", units.NOT_AVAILABLE, EMULATED)
    places = [i for i in range(len(whole.head)) if any(row[i] not in nothing for row in rows)]
    return whole.only(places)


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
    """The whole comparison; with a ``width`` the table of runs has the columns that fit in so many cells."""
    every_run = run_table(comparison)
    runs = every_run if width is None else every_run.within(width)
    lines = [sentences.heading(comparison), ""]
    for group in comparison.groups:
        names = ", ".join(run.name for run in group.runs)
        lines.append(f"{sentences.group_name(group)}: {sentences.seeds(group)}: {names}")
    groups = group_table(comparison).turned()
    lines += ["", *table(groups.head, groups.rows), "", *table(runs.head, runs.rows), ""]
    lines += [] if comparison.contrasts else [sentences.ONE_GROUP]
    lines += [sentences.verdict(contrast, comparison) for contrast in comparison.contrasts]
    lines += [text for contrast in comparison.contrasts if (text := sentences.speed(contrast))]
    lines += [f"note: {sentences.check(check)}" for check in comparison.checks]
    if comparison.differences:
        lines += ["", "what differs:", *(f"  {line}" for line in sentences.difference_lines(comparison))]
    return [*lines, "", *sentences.how_measured(comparison)]


def as_json(comparison: Compared) -> dict[str, Any]:
    """The same as JSON values; non-finite numbers are strings, those not measured null."""
    letters = [group.letter for group in comparison.groups]
    content = {
        "type": "Comparison",
        "final_loss_is": "validation" if comparison.validation else "training",
        "target_loss": comparison.target,
        "groups": [_group(group, comparison) for group in comparison.groups],
        "contrasts": [
            {
                "baseline": contrast.baseline.letter,
                "other": contrast.other.letter,
                "outcome": contrast.outcome,
                "difference": contrast.difference,
                "interval": contrast.interval,
                "detectable": contrast.detectable,
                "speedup": contrast.speedup,
                "text": sentences.verdict(contrast, comparison),
            }
            for contrast in comparison.contrasts
        ],
        "differences": {
            option.name: dict(zip(letters, option.values, strict=True)) for option in comparison.differences
        },
        "checks": [
            {
                "kind": check.kind,
                "about": check.groups,
                "values": check.values,
                "text": sentences.check(check),
            }
            for check in comparison.checks
        ],
    }
    plain: dict[str, Any] = strictjson.plain(content)
    return plain


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
