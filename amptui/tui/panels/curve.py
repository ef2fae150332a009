"""A curve over the steps of a run, with the ribbon of precisions; enlarged, a cursor reads it."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from amptui.base import units
from amptui.telemetry.view import Series, SessionView
from amptui.tui.canvas import BLANK, BRAILLE, Canvas
from amptui.tui.panels.metric_charts import Chart, panel_chart
from amptui.tui.panels.phrases import Phrase, Word, fitting, labelled, phrase, precision_word, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.plot import CurvePlot, draw_ribbon, draw_step_axis
from amptui.tui.renderables.step_window import GUTTER, Window, visible_window
from amptui.tui.style import BOLD, Style

CURVES = ("loss", "throughput")
"""The panels that are a curve when they are enlarged."""

_MOVES: Mapping[str, int] = {
    "left": -1,
    "right": 1,
    "left_square_bracket": -10,
    "right_square_bracket": 10,
    "home": -(10**9),
    "end": 10**9,
}
"""Columns that a key moves the cursor by."""

CURSOR_KEYS = (("← →", "values"), ("[ ]", "10 times as far"))
"""For the lower edge of an enlarged chart."""

ZOOM_KEYS = (("esc", "no cursor"), *CURSOR_KEYS, ("+ -", "zoom"))
"""The same while there is a cursor."""


class Extent(NamedTuple):
    """The chart that a cursor moves on: its cells across show a window."""

    series: Series
    window: Window
    columns: int


def extent_of(chart: Chart, view: SessionView, screen: ScreenState, cursor: int | None, width: int) -> Extent:
    """A chart of ``width`` columns with its labels."""
    return Extent(chart.read(), _window(view, screen, cursor), max(1, width - GUTTER))


def _window(view: SessionView, screen: ScreenState, cursor: int | None) -> Window:
    """The newest steps, as many as the zoom shows; as many around a cursor that is not among them."""
    newest = visible_window(view.loss, screen.zoom, ahead=screen.steps_ahead)
    if cursor is None or cursor in newest:
        return newest
    return newest.centred_on(cursor).within(visible_window(view.loss, 0, ahead=screen.steps_ahead))


def takes(cursor: int | None, key: str) -> bool:
    """Whether an enlarged chart takes this key: its cursor, a step, moves or goes."""
    return key in _MOVES or (key == "escape" and cursor is not None)


def press(cursor: int | None, key: str, extent: Extent) -> int | None:
    """The cursor after a key that a chart takes; the first is at the newest step in sight.

    An arrow moves it a column, or a step where these are wider, and on to the next step with a value.
    """
    steps = extent.series.measured_steps()
    if key == "escape" or not len(steps):
        return None if key == "escape" else cursor
    if cursor is None and abs(_MOVES[key]) < _MOVES["end"]:
        return int(steps[max(0, int(steps.searchsorted(extent.window.last_step, "right")) - 1)])
    by = _MOVES[key] * max(1, extent.window.steps // extent.columns)
    step = (cursor or 0) + by
    reading = extent.series.at(step)
    if reading is not None and reading.mean is not None:
        return step
    # The next one with a value, or the last in that direction.
    place = int(steps.searchsorted(step)) if by > 0 else int(steps.searchsorted(step, "right")) - 1
    return int(steps[max(0, min(place, len(steps) - 1))])


def draw_curve(
    canvas: Canvas,
    chart: Chart,
    plot: CurvePlot,
    view: SessionView,
    screen: ScreenState,
    *,
    cursor: int | None = None,
    below: Sequence[Phrase] = (),
) -> None:
    """The curve, the ribbon of precisions and skips, the axis of steps; last what the cursor reads.

    ``below`` is in that line while there is no cursor; without either there is no such line.
    """
    series, window = chart.read(), _window(view, screen, cursor)
    rows = max(0, canvas.height - (2 if cursor is None and not below else 3))
    area = canvas.rows(0, rows)
    chart.draw(plot, area, view, screen, window)
    ribbon = canvas.rows(rows, 1)
    draw_ribbon(ribbon, window=window, switches=view.switches, skips=view.skips, nonfinite=series)
    draw_step_axis(canvas.rows(rows + 1, 1), window=window)
    if cursor is not None:
        _draw_cursor(area.columns(GUTTER), cursor, window)
        below = cursor_line(view, series, cursor, chart.look.format_value)
    write(canvas.rows(rows + 2), 0, 0, fitting(below, canvas.width))


def draw_panel(canvas: Canvas, plot: CurvePlot, view: SessionView, screen: ScreenState, name: str) -> None:
    """The curve of a panel, one of ``CURVES``; enlarged, with the cursor or the keys that get one."""
    cursor, keys = None, list[Phrase]()
    if screen.focus == name:
        cursor = screen.cursor
        keys = [phrase(f"{key} {words}", Style.DIM) for key, words in CURSOR_KEYS]
    draw_curve(canvas, panel_chart(view, name), plot, view, screen, cursor=cursor, below=keys)


def _draw_cursor(area: Canvas, step: int, window: Window) -> None:
    """Draw a vertical line at ``step`` across a plot; the curve stays visible, bold."""
    if not area.width or step not in window:
        return
    column = window.column_of(step, area.width)
    chars, styles = area.chars[:, column], area.styles[:, column]
    free = (chars == BLANK) | ((styles == Style.DIM) & (chars >= BRAILLE))
    chars[free] = ord("│")
    styles[free] = Style.TEXT
    styles[~free] |= BOLD


def cursor_line(
    view: SessionView, series: Series, step: int, format_value: Callable[[float | None], str]
) -> list[Phrase]:
    """The step, the series' value there and its spread, the precision and the loss scale of that step."""
    phrases, reading = [labelled("step", units.count(step), 0)], series.at(step)
    if reading is None or reading.mean is None:
        phrases.append(phrase("not measured", Style.DIM, 1))
    elif math.isfinite(reading.mean):
        phrases.append(phrase(format_value(reading.mean), Style.STRONG, 1))
        steps = reading.last_step - reading.first_step + 1
        if steps > 1:
            spread = f"{format_value(reading.minimum)} to {format_value(reading.maximum)}"
            phrases.append(Phrase((Word(f"mean of {steps:,} steps, ", Style.DIM), Word(spread)), 4))
        if reading.nonfinite:
            phrases.append(phrase(f"{reading.nonfinite:,} NaN or Inf", Style.ERROR, 5))
    else:
        phrases.append(phrase("NaN or Inf", Style.ERROR, 1))
    place = bisect_right(view.switches, step, key=attrgetter("step"))
    if place:  # else it ran before the first known switch
        phrases.append(Phrase((precision_word(view.switches[place - 1].precision),), 2))
    scale = view.loss_scale.at(step)
    if scale is not None and scale.mean is not None:
        words = units.count(scale.mean)
        if scale.minimum != scale.maximum:
            words = f"{units.count(scale.minimum)} to {units.count(scale.maximum)}"
        phrases.append(labelled("loss scale", words, 3))
    return phrases
