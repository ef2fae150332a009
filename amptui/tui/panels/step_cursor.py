"""The cursor of an enlarged chart: a step, a window around it that may end anywhere, and what it reads."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from amptui.base import units
from amptui.telemetry.view import Counts, Series, SessionView
from amptui.tui.canvas import BLANK, Canvas
from amptui.tui.panels.phrases import Phrase, Word, labelled, phrase, precision_word
from amptui.tui.renderables.step_window import GUTTER, Window
from amptui.tui.style import BOLD, Style

MOVES: Mapping[str, int] = {
    "left": -1,
    "right": 1,
    "left_square_bracket": -10,
    "right_square_bracket": 10,
}
"""Columns that a key moves the cursor by."""

ZOOMS: Mapping[str, int] = {"plus": 1, "equals_sign": 1, "minus": -1}
"""Whether a key shows half as much, or twice as much."""

CURSOR_KEYS = (("← →", "values"), ("[ ]", "10 times as far"))
"""For the lower edge of an enlarged chart."""

ZOOM_KEYS = (("esc", "no cursor"), *CURSOR_KEYS, ("+ -", "zoom"))
"""The same while there is a cursor."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The chart that a cursor moves on."""

    series: Series
    live: Window
    """What it shows without a cursor."""
    whole: Window
    """The whole run."""
    columns: int
    """Cells across, at least 1."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A step that stays where it is while the run goes on."""

    step: int
    window: Window | None = None
    """What the chart shows since the cursor zoomed or left the window; None follows the run."""

    def window_in(self, live: Window) -> Window:
        """What the chart shows: always with the cursor."""
        window = live if self.window is None else self.window
        return window if self.step in window else window.centred_on(self.step)


def press(cursor: Cursor | None, key: str, extent: Extent) -> Cursor | None:
    """The cursor after a key press; the same one for a key that is not its own.

    An arrow moves it a column, or a step where these are wider, and on to the next step with a value.
    """
    steps = extent.series.measured_steps()
    if cursor is None:
        return _begin(key, extent, steps)
    if key == "escape" or not len(steps):
        return None if key == "escape" else cursor
    window, step = cursor.window_in(extent.live), cursor.step
    if key in ZOOMS:
        count = window.steps // 2 if ZOOMS[key] > 0 else window.steps * 2
        window = window.zoomed(step, count)
    elif key == "0":
        window = extent.whole
    elif key in ("home", "end"):
        step = int(steps[0 if key == "home" else -1])
    elif key in MOVES:
        by = MOVES[key] * max(1, window.steps // extent.columns)
        step, reading = step + by, extent.series.at(step + by)
        if reading is None or reading.mean is None:
            # The next one with a value, or the last in that direction.
            place = int(steps.searchsorted(step)) if by > 0 else int(steps.searchsorted(step, "right")) - 1
            step = int(steps[max(0, min(place, len(steps) - 1))])
    else:
        return cursor
    return _shown(step, window, extent)


def _begin(key: str, extent: Extent, steps: Counts) -> Cursor | None:
    """A cursor at the newest step in sight with a value, or at the first of the run."""
    if not len(steps) or (key not in MOVES and key not in ("home", "end")):
        return None
    newest = max(0, int(steps.searchsorted(extent.live.last_step, "right")) - 1)
    return _shown(int(steps[0 if key == "home" else newest]), extent.live, extent)


def _shown(step: int, window: Window, extent: Extent) -> Cursor:
    """At ``step``, in ``window`` or, if the step is not in it, in as many steps around it."""
    if step not in window:
        window = window.centred_on(step)
    window = window.within(extent.whole)
    return Cursor(step, None if window == extent.live else window)


def is_cursor_key(cursor: Cursor | None, key: str) -> bool:
    """Whether an enlarged chart takes this key."""
    if key in MOVES or key in ("home", "end"):
        return True
    return cursor is not None and (key in ZOOMS or key in ("0", "escape"))


_BRAILLE = 0x2800
"""From here on characters are dots of curves."""


def draw_cursor(canvas: Canvas, step: int, window: Window) -> None:
    """Draw a vertical line at ``step`` across a plot; the curve stays visible, bold."""
    area = canvas.columns(GUTTER)
    if not area.width or step not in window:
        return
    column = window.column_of(step, area.width)
    chars, styles = area.chars[:, column], area.styles[:, column]
    free = (chars == BLANK) | ((styles == Style.DIM) & (chars >= _BRAILLE))
    chars[free] = area.code_point("│")
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
