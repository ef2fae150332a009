"""A curve over the steps of a run, with the ribbon of precisions; enlarged, a cursor reads it."""

from collections.abc import Sequence

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import step_cursor
from amptui.tui.panels.metric_charts import Chart, panel_chart
from amptui.tui.panels.phrases import Phrase, fitting, phrase, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.panels.step_cursor import Cursor, Extent
from amptui.tui.renderables.plot import CurvePlot, draw_ribbon, draw_step_axis
from amptui.tui.renderables.step_window import GUTTER, visible_window
from amptui.tui.style import Style

CURVES = {"loss": "loss", "throughput": "samples/s"}
"""The chart of each panel that is a curve when it is enlarged."""


def extent_of(view: SessionView, screen: ScreenState, width: int) -> Extent | None:
    """The curve of the enlarged panel on a screen of ``width`` columns; None of a panel without one."""
    name = CURVES.get(screen.focus or "")
    if name is None:
        return None
    return chart_extent(panel_chart(view, name), view, screen, width - 4)


def chart_extent(chart: Chart, view: SessionView, screen: ScreenState, width: int) -> Extent:
    """A chart of ``width`` columns with its labels."""
    live = visible_window(view.loss, screen.zoom, ahead=screen.steps_ahead)
    whole = visible_window(view.loss, 0, ahead=screen.steps_ahead)
    return Extent(chart.read(), live, whole, max(1, width - GUTTER))


def draw_curve(
    canvas: Canvas,
    chart: Chart,
    plot: CurvePlot,
    view: SessionView,
    screen: ScreenState,
    *,
    cursor: Cursor | None = None,
    below: Sequence[Phrase] = (),
) -> None:
    """The curve, the ribbon of precisions and skips, the axis of steps; last what the cursor reads.

    ``below`` is in that line while there is no cursor; without either there is no such line.
    """
    series = chart.read()
    live = visible_window(view.loss, screen.zoom, ahead=screen.steps_ahead)
    window = live if cursor is None else cursor.window_in(live)
    rows = max(0, canvas.height - (3 if below or cursor else 2))
    chart.draw(plot, canvas.rows(0, rows), view, screen, window)
    ribbon = canvas.rows(rows, 1)
    draw_ribbon(ribbon, window=window, switches=view.switches, skips=view.skips, nonfinite=series)
    draw_step_axis(canvas.rows(rows + 1, 1), window=window)
    if cursor is not None:
        step_cursor.draw_cursor(canvas.rows(0, rows), cursor.step, window)
        below = step_cursor.cursor_line(view, series, cursor.step, chart.look.format_value)
    write(canvas.rows(rows + 2), 0, 0, fitting(below, canvas.width))


def draw_enlarged(
    canvas: Canvas, plot: CurvePlot, view: SessionView, screen: ScreenState, *, panel: str
) -> None:
    """The curve of the panel that is enlarged, with the cursor or the keys that get one."""
    keys = [phrase(f"{key} {words}", Style.DIM) for key, words in step_cursor.CURSOR_KEYS]
    chart = panel_chart(view, CURVES[panel])
    draw_curve(canvas, chart, plot, view, screen, cursor=screen.cursor, below=keys)
