"""All logged values as charts: a page of them, found by name, and each on the whole screen with a cursor."""

from typing import ClassVar

from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.keys import KEYS
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Page, open_box, pages_beside, write_edge
from amptui.tui.panels.curve import (
    CURSOR_KEYS,
    ZOOM_KEYS,
    Extent,
    cursor_line,
    draw_curve,
    extent_of,
    press,
    takes,
)
from amptui.tui.panels.metric_charts import SMALLEST_CHART, Chart, charts_of
from amptui.tui.panels.phrases import Phrase, quiet
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.plot import CurvePlot, draw_ribbon, draw_step_axis
from amptui.tui.renderables.step_window import visible_window
from amptui.tui.style import BOLD, Style

_GAP = 2
"""Blank columns right of a chart."""

_PAGE_SECONDS = 2.0
"""A page of charts follows the run this often: it takes much longer to draw than other frames."""

_ACTIONS = {
    press: key.action.format(press=press)
    for key in KEYS
    for press in key.presses
    if key.action.startswith("zoom") or key.action == "toggle_log"
}
"""Keys of the screen that charts follow too."""

_GRID_KEYS = (("esc", "back"), ("enter", "enlarge"), ("/", "find"), ("pgup pgdn", "page"))
_TYPING_KEYS = (("enter", "done"), ("esc", "all"))
_CHART_KEYS = (("esc", "charts"), *CURSOR_KEYS, ("↑ ↓", "other charts"), ("+ -", "zoom"))


class MetricsBrowser(Page):
    """A page of charts; enter gives the selected one the whole box."""

    name: ClassVar[str] = "metrics"
    opened_by: ClassVar[str] = "g"

    def __init__(self) -> None:
        super().__init__()
        self._selected: tuple[str, str] | None = None
        """The key of the selected chart; None for the first."""
        self._is_enlarged = False
        self._cursor: int | None = None
        self._extent: Extent | None = None
        """Of the enlarged chart, as drawn last."""
        self._columns, self._rows = 1, 1
        self._plots: dict[tuple[tuple[str, str], bool], CurvePlot] = {}
        """Plots keep the limits of their axes, of the page and of the enlarged chart."""
        self._drawn: tuple[object, Canvas] | None = None
        """The page as it was drawn last: with what, and its charts."""

    # ---------------------------------------------------------------------------------- drawing

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        charts = self._charts(view)
        self._extent = None
        if self._is_enlarged and charts:
            self._draw_one(canvas, charts[self._index(charts)], view, screen)
        else:
            self._draw_page(canvas, charts, view, screen)

    def _charts(self, view: SessionView) -> list[Chart]:
        """Those that the filter leaves."""
        words = self._search.text.casefold().split()
        return [chart for chart in charts_of(view) if all(word in chart.title.casefold() for word in words)]

    def _index(self, charts: list[Chart]) -> int:
        """The place of the selected chart; the first if it is not among them."""
        return next((place for place, chart in enumerate(charts) if chart.key == self._selected), 0)

    def _draw_page(self, canvas: Canvas, charts: list[Chart], view: SessionView, screen: ScreenState) -> None:
        text, types, count = self._search.text, self._search.is_typing, len(charts)
        typed = f": /{text}{'_' if types else ''}" if text or types else ""
        inner = open_box(canvas, f"metrics{typed} ({count:,})")
        # As many columns and rows as fit and are needed.
        self._columns = min(max(1, inner.width // SMALLEST_CHART[0]), max(1, count))
        self._rows = min(max(1, (inner.height - 2) // SMALLEST_CHART[1]), -(-max(1, count) // self._columns))
        if not charts:
            quiet(inner, "no metric with that name" if text else "nothing is logged yet")
        index, size = self._index(charts), self._columns * self._rows
        top = index // size * size
        self._draw_charts(inner, charts[top : top + size], index - top, view, screen)
        right = f"page {top // size + 1:,} of {-(-count // size):,}" if count > size else ""
        if view.metrics_left_out:
            right = f"{right}, more are not kept" if right else "more are not kept"
        keys = _TYPING_KEYS if types else (*_GRID_KEYS, pages_beside("g"))
        write_edge(canvas, keys, screen, right=right)

    def _draw_charts(
        self, inner: Canvas, page: list[Chart], selected: int, view: SessionView, screen: ScreenState
    ) -> None:
        """The charts of a page, and below each column of them the precisions and steps that all show."""
        window = visible_window(view.loss, screen.zoom, ahead=screen.steps_ahead)
        height, kept = max(0, inner.height - 2) // self._rows, self._drawn
        places = (divmod(place, self._columns) for place in range(len(page)))
        cells = [self._column(inner, column).rows(row * height, height) for row, column in places]
        size, keys = (inner.width, inner.height), [chart.key for chart in page]
        drawn_as = size, keys, window, screen.log_y, view.front, view.switches, screen.now // _PAGE_SECONDS
        if kept is not None and kept[0] == drawn_as:
            inner.put(kept[1])
        else:
            for chart, cell in zip(page, cells, strict=True):
                chart.draw_titled(self._plot(chart), cell, view, screen, window)
            self._drawn = drawn_as, inner.copy()
        for place, cell in enumerate(cells):
            cell.text(0, 0, "▸" if place == selected else " ", Style.KEY | BOLD)
        for column in range(min(self._columns, len(page))):
            below = self._column(inner, column).rows(inner.height - 2)
            draw_ribbon(below, window=window, switches=view.switches, skips=view.skips)
            draw_step_axis(below.rows(1), window=window)

    def _column(self, inner: Canvas, column: int) -> Canvas:
        width = inner.width // self._columns
        return inner.columns(column * width, max(0, width - (_GAP if self._columns > 1 else 0)))

    def _draw_one(self, canvas: Canvas, chart: Chart, view: SessionView, screen: ScreenState) -> None:
        """One chart with ribbon and axis; the last line reads the step of the cursor, or the newest."""
        inner = open_box(canvas, chart.title)
        self._extent = extent_of(chart, view, screen, self._cursor, inner.width)
        below, step = list[Phrase](), chart.newest_step()
        if step is not None:
            below = cursor_line(view, chart.read(), step, chart.look.format_value)
        draw_curve(inner, chart, self._plot(chart), view, screen, cursor=self._cursor, below=below)
        write_edge(canvas, _CHART_KEYS if self._cursor is None else ZOOM_KEYS, screen)

    def _plot(self, chart: Chart) -> CurvePlot:
        place = (chart.key, self._is_enlarged)
        if place not in self._plots:
            self._plots[place] = chart.new_plot()
        return self._plots[place]

    # ------------------------------------------------------------------------------------- keys

    def press(self, key: str, view: SessionView) -> Answer:
        """Letters go into the filter while it is typed; a cursor takes its keys first."""
        if self._is_enlarged:
            return self._press_enlarged(key, view)
        if self._search.press(key):
            return STAY
        if self.closes(key):
            return CLOSE
        charts, page = self._charts(view), self._columns * self._rows
        moves = {"left": -1, "right": 1, "up": -self._columns, "down": self._columns}
        moves |= {"pageup": -page, "pagedown": page, "home": -len(charts), "end": len(charts)}
        if key == "enter":
            self._is_enlarged = bool(charts)
        elif charts and key in moves:
            index = max(0, min(self._index(charts) + moves[key], len(charts) - 1))
            self._selected = charts[index].key
        return Answer(action=_ACTIONS.get(key, ""))

    def _press_enlarged(self, key: str, view: SessionView) -> Answer:
        if self._extent is not None and takes(self._cursor, key):
            self._cursor = press(self._cursor, key, self._extent)
            return STAY
        if key in ("escape", "enter", "slash"):
            self._is_enlarged, self._cursor = False, None
            self._search.is_typing = key == "slash"
        elif self.closes(key):
            return CLOSE
        elif key in ("up", "down", "pageup", "pagedown") and (charts := self._charts(view)):
            # The chart before or after this one; a cursor stays at its step.
            by = 1 if key in ("down", "pagedown") else -1
            self._selected = charts[(self._index(charts) + by) % len(charts)].key
        return Answer(action=_ACTIONS.get(key, ""))
