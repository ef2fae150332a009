"""The table of a comparison: a row for each group or run, and the columns that have a figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from amptui.base import units
from amptui.diagnosis.speed import EMULATED
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import (
    Compared,
    median_of,
    peak_of,
    process_peak_of,
    rate_of,
    skipped_of,
)
from amptui.reports.compare.groups import Group, has_emulated_steps, seed_of
from amptui.reports.compare.trace import RunFigures

SEVERAL = "several precisions"
"""In place of a step time."""

MAX_NAME = 32
"""Characters of a run's name in a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading, and the cell below it."""

    heading: str
    of_group: Callable[[Group], str]
    of_run: Callable[[RunFigures], str]
    worth: int
    """Where not all fit, the column that is worth least is left out first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells as wide as the heading's; the first cell is the row's name."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    groups: tuple[int, ...]
    """The place of each row's group."""
    worths: tuple[int, ...]
    """One a column, see :class:`Column`."""

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
    columns = _columns(comparison, brief=brief)
    rows = [
        (sentences.group_name(group), *(column.of_group(group) for column in columns))
        for group in comparison.groups
    ]
    return _table("group", columns, rows, range(len(comparison.groups)))


def run_table(comparison: Compared) -> Table:
    """A row for each run, those of a group together."""
    columns = _columns(comparison)
    members = [(place, run) for place, group in enumerate(comparison.groups) for run in group.runs]
    rows = [
        (
            f"{comparison.groups[place].letter} {shortened(run.name)}",
            *(column.of_run(run) for column in columns),
        )
        for place, run in members
    ]
    columns[0] = replace(columns[0], heading="seed")
    return _table("run", columns, rows, [place for place, _ in members])


def shortened(name: str) -> str:
    """``name`` cut in its middle, where names of runs are least apart."""
    half = (MAX_NAME - 1) // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"


def _table(
    name: str, columns: Sequence[Column], rows: Sequence[tuple[str, ...]], groups: Sequence[int]
) -> Table:
    """Without the columns in which nothing was measured."""
    table = Table(
        head=(name, *(column.heading for column in columns)),
        rows=tuple(rows),
        groups=tuple(groups),
        worths=(100, *(column.worth for column in columns)),
    )
    places = [i for i in range(len(table.head)) if any(row[i] not in _NOTHING for row in rows)]
    return table.only(places)


_NOTHING = ("", units.NOT_AVAILABLE, EMULATED)


def _columns(comparison: Compared, *, brief: bool = False) -> list[Column]:
    target = "time to a loss" if comparison.target is None else f"time to {units.loss(comparison.target)}"
    # The losses that are compared matter most.
    training, validation = (70, 75) if comparison.validation else (80, 60)
    figure = partial(_figure, brief=brief)
    return [
        Column(
            heading="seeds",
            of_group=lambda group: units.count(len(group.seeds)),
            of_run=lambda run: units.NOT_AVAILABLE if seed_of(run) is None else str(seed_of(run)),
            worth=90,
        ),
        Column(heading="state", of_group=_states, of_run=sentences.state, worth=58),
        figure("steps", lambda run: run.view.step, units.count, 50),
        figure("samples", lambda run: run.samples, units.count, 30),
        _not_of_emulated(
            Column(
                heading="median step",
                of_group=lambda group: _medians(group, brief=brief),
                of_run=_median,
                worth=85,
            )
        ),
        _not_of_emulated(figure("samples/s", rate_of, units.rate, 52)),
        _not_of_emulated(figure("peak allocated", peak_of, units.number_of_bytes, 65)),
        _not_of_emulated(figure("process peak", process_peak_of, units.number_of_bytes, 20)),
        figure("skipped", skipped_of, units.count, 45),
        _figure("final training loss", lambda run: run.final_training, units.loss, training),
        figure("best training loss", lambda run: run.best_training, units.loss, training - 35),
        _figure("final validation loss", lambda run: run.final_validation, units.loss, validation),
        figure("best validation loss", lambda run: run.best_validation, units.loss, validation - 35),
        _not_of_emulated(figure(target, comparison.seconds_to_target, _time, 56)),
        figure("training time", lambda run: run.seconds, _time, 54),
    ]


def _figure(
    heading: str,
    value_of: Callable[[RunFigures], float | None],
    words: Callable[[float | None], str],
    worth: int,
    *,
    brief: bool = False,
) -> Column:
    def of_group(group: Group) -> str:
        text = sentences.spread(group.spread(value_of), words, brief=brief)
        have = sum(value_of(run) is not None for run in group.runs)
        return text if have in (0, len(group.runs)) else f"{text} ({have} of {len(group.runs)})"

    return Column(heading=heading, of_group=of_group, of_run=lambda run: words(value_of(run)), worth=worth)


def _not_of_emulated(column: Column) -> Column:
    """The column with the word in place of a figure that emulated FP8 does not have."""

    def of_run(run: RunFigures) -> str:
        cell = column.of_run(run)
        return EMULATED if cell == units.NOT_AVAILABLE and has_emulated_steps(run) else cell

    def of_group(group: Group) -> str:
        cell = column.of_group(group)
        emulated = cell == units.NOT_AVAILABLE and any(map(has_emulated_steps, group.runs))
        return EMULATED if emulated else cell

    return replace(column, of_run=of_run, of_group=of_group)


def _time(seconds: float | None) -> str:
    """Tenths below ten minutes: short runs differ in them."""
    if seconds is None or not 0 <= seconds < 600:
        return units.duration(seconds)
    return f"{seconds:.1f} s"


def _median(run: RunFigures) -> str:
    if len(run.view.comparison.rows) > 1:
        return SEVERAL
    return units.milliseconds(median_of(run))


def _medians(group: Group, *, brief: bool) -> str:
    if group.precision is None and any(run.view.comparison.rows for run in group.runs):
        return SEVERAL
    return sentences.spread(group.spread(median_of), units.milliseconds, brief=brief)


def _states(group: Group) -> str:
    states = [sentences.state(run) for run in group.runs]
    if len(set(states)) == 1:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
