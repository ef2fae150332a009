"""The cursor of a comparison reads what the plot draws at its position, at any zoom."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from amptui.base import units
from amptui.reports.compare.axis_cursor import AxisCursor, Extent, cursor_line, draw_cursor, press
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.grid import Grid, grid
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import Line, Word
from amptui.tui.panels.step_cursor import MOVES, ZOOMS
from tests.reports.compare.compared_runs import figures, started, trained, validated, whole_run

KEYS = [*MOVES, *ZOOMS, "0", "home", "end"]

some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=12)
axes = st.sampled_from(["steps", "samples", "seconds"])
losses = st.lists(st.floats(-100, 100) | st.none() | st.just(math.nan), min_size=1, max_size=90)
few_runs = st.lists(losses, min_size=1, max_size=3)


def runs_of(losses: Sequence[Sequence[float | None]]) -> Compared:
    """Runs with different seeds."""
    return compared(
        [figures(whole_run(list(one), seed=place), name=f"run{place}") for place, one in enumerate(losses)]
    )


def drawn_grid(
    comparison: Compared, axis: str, columns: int, cursor: AxisCursor | None, *, validation: bool = False
) -> Grid:
    look = None if cursor is None else cursor.look
    return grid(comparison, axis, columns, validation=validation, look=look)


def pressed(
    comparison: Compared,
    keys: Sequence[str],
    *,
    axis: str = "steps",
    cells: int = 60,
    across: int = 2,
    validation: bool = False,
    cursor: AxisCursor | None = None,
) -> tuple[AxisCursor, Extent]:
    """The cursor after ``keys``, and the plot that it is then drawn on."""
    extent = None
    for key in (*keys, None):
        curves = drawn_grid(comparison, axis, cells * across, cursor, validation=validation)
        extent = Extent(curves, cells * across, across, range(5))
        if key is not None:
            cursor = press(cursor, key, extent)
    assert cursor is not None
    assert extent is not None
    return cursor, extent


def words(line: Line) -> str:
    return "  ".join("".join(word.text for word in it.words if isinstance(word, Word)) for it in line)


def read(comparison: Compared, cursor: AxisCursor, extent: Extent, **how: object) -> str:
    how = {"by_run": False, "smoothed": True, "width": 500} | how
    return words(cursor_line(comparison, cursor, extent, **how))  # type: ignore[arg-type]


@given(st.data(), st.lists(st.floats(0.01, 100), min_size=8, max_size=40), st.integers(0, 4))
def test_at_a_validation_it_reads_its_loss_at_any_zoom(
    data: st.DataObject, validation_losses: list[float], zoom: int
) -> None:
    results = [validated(12 * number, loss) for number, loss in enumerate(validation_losses, 1)]
    comparison = compared([figures([started(), *trained([1.0] * 12 * len(results)), *results])])
    place = data.draw(st.integers(0, len(results) - 1))
    begin = AxisCursor(12.0 * (place + 1))
    cursor, extent = pressed(comparison, ["plus"] * zoom, cursor=begin, validation=True, cells=300)
    assert (extent.grid.shown == extent.grid.whole) == (zoom == 0)
    line = read(comparison, cursor, extent, smoothed=False)
    assert line == f"step {12 * (place + 1)}  A {units.loss(validation_losses[place])}"


# ------------------------------------------------------------------------------------- the keys


@given(few_runs, axes, some_keys, st.integers(1, 300), st.sampled_from([1, 2]))
def test_the_cursor_is_in_sight_between_the_first_and_the_last_value(
    all_losses: list[list[float | None]], axis: str, keys: list[str], cells: int, across: int
) -> None:
    comparison = runs_of(all_losses)
    cursor, extent = pressed(comparison, keys, axis=axis, cells=cells, across=across)
    curves = extent.grid
    assert cursor.position in curves.shown
    assert cursor.position in curves.measured
    assert curves.whole.low <= curves.shown.low < curves.shown.high <= curves.whole.high
    assert curves.shown.width >= 0.999 * curves.min_width
    canvas = Canvas(cells + 8, 5)
    draw_cursor(canvas, cursor, extent)
    column = curves.shown.column_of(cursor.position, extent.columns) // across
    assert {line[8 + column] for line in canvas.lines()[:-1]} == {"│"}
