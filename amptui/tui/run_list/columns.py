"""What the list of runs says of a run beside its name, on the screen and in plain text."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from amptui.base import units
from amptui.base.table import Cell, Column, Row
from amptui.base.text import printable
from amptui.tui.style import BOLD, Style, precision_style

if TYPE_CHECKING:
    from amptui.runs.kept_run import KeptRun

_MAX_CELL = 24
"""A longer text, such as a name, leaves no room for others: its column is as wide at most."""

STATE_STYLES: Mapping[str, int] = {
    "starting": Style.GOOD,
    "running": Style.GOOD | BOLD,
    "paused": Style.WARNING,
    "stalled": Style.WARNING | BOLD,
    "failed": Style.ERROR,
    "died": Style.ERROR,
    "unreadable": Style.ERROR,
}
"""Those of the others are plain."""


def run_columns(run_of: "Callable[[Row], KeptRun | None]", now: float) -> list[Column[Row]]:
    """Columns that stay where they are, empty for a run that has not been read."""

    def column(title: str, priority: int, cell: "Callable[[KeptRun], Cell]", **options: Any) -> Column[Row]:
        def cell_of(row: Row) -> Cell:
            run = run_of(row)
            return "" if run is None else cell(run)

        return Column(title=title, priority=priority, cell=cell_of, is_optional=False, **options)

    def age(run: "KeptRun") -> str:
        """``now`` also for times in the future after the clock was set back."""
        if run.written is None:
            return ""
        seconds = now - run.written
        return "now" if seconds < units.NOW_SECONDS else f"{units.in_one_unit(seconds)} ago"

    return [
        column("state", 0, _state, align="left", min_width=8, max_width=_MAX_CELL),
        column("model", 7, lambda run: printable(run.model or ""), align="left", max_width=_MAX_CELL),
        column("precision", 4, _precision, align="left", min_width=9, max_width=_MAX_CELL),
        column("progress", 1, _progress),
        column("loss", 3, lambda run: "" if run.loss is None else units.loss(run.loss), min_width=7),
        column("took", 5, _duration, min_width=6),
        column("written", 2, age),
    ]


def _state(run: "KeptRun") -> Cell:
    text = run.state if run.is_here else f"{run.state} on {run.host}"
    return printable(text), STATE_STYLES.get(run.state, Style.TEXT)


def _precision(run: "KeptRun") -> Cell:
    return printable(run.precision or ""), precision_style(run.precision)


def _progress(run: "KeptRun") -> str:
    """``1,200/18,750 6%``; only the step for a run beyond its original goal."""
    if run.step is None:
        return ""
    if not run.total_steps or run.step > run.total_steps:
        return f"{run.step:,}"
    return f"{run.step:,}/{run.total_steps:,} {units.percent(run.step / run.total_steps)}"


def _duration(run: "KeptRun") -> str:
    """How long it was trained; empty for the times of a forged journal."""
    return "" if run.seconds is None or not math.isfinite(run.seconds) else units.in_one_unit(run.seconds)
