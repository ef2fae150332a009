"""Draws the whole screen: each panel in its place."""

from collections.abc import Callable
from functools import partial

from amptui.diagnosis.event_words import run_ended
from amptui.records.run import RunFailed
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.layout import TITLES, Layout, arrange, draw_backdrop
from amptui.tui.panels import (
    answer_panel,
    event_list,
    footer,
    header,
    loss,
    memory_panel,
    numerics_panel,
    precision_table,
    rank_table,
    throughput,
)
from amptui.tui.panels.curve import CURVES
from amptui.tui.panels.metric_charts import panel_chart
from amptui.tui.panels.phrases import Phrase, fitting, line_width, wrapped, write, write_folded
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style

_BANNER_LINES = 3
"""Lines for an error and its hint: enough at 80 columns."""

Draw = Callable[[Canvas, SessionView, ScreenState], object]
Headline = Callable[[SessionView, ScreenState], list[Phrase]]


def _framed_panels() -> dict[str, tuple[Headline, Draw]]:
    """The headline in the upper edge of each framed panel, and its body; curves have no limits yet."""
    loss_plot, throughput_plot = (panel_chart(EMPTY_VIEW, name).new_plot() for name in CURVES)
    return {
        "loss": (loss.headline, partial(loss.draw, plot=loss_plot)),
        "throughput": (throughput.headline, partial(throughput.draw, plot=throughput_plot)),
        "numerics": (_no_headline, numerics_panel.draw),
        "memory": (memory_panel.headline, memory_panel.draw),
        "comparison": (_no_headline, precision_table.draw),
        "ranks": (rank_table.headline, rank_table.draw),
        "events": (_no_headline, event_list.draw),
    }


def _no_headline(*_: object) -> list[Phrase]:
    """Of panels whose sum stands in the lines above all panels."""
    return []


class Frame:
    """Draws frame after frame. It keeps the limits of the curves, so that they do not jump."""

    def __init__(self) -> None:
        self._front = ""
        self._framed = _framed_panels()
        self._unframed: dict[str, Draw] = {
            "header": header.draw,
            "amp": answer_panel.draw_line,
            "banner": _draw_banner,
            "optimizers": header.draw_optimizers,
            "footer": footer.draw,
            "notice": lambda canvas, *_: footer.has_room(canvas),
            "loss": loss.draw_line,
            "throughput": lambda canvas, *rest: write_folded(
                canvas, "throughput", throughput.headline(*rest)
            ),
            "scale": memory_panel.draw_scale_line,
            "memory": memory_panel.draw_line,
            "comparison": precision_table.draw_line,
            "ranks": rank_table.draw_line,
            # With the margin of a frame.
            "events": lambda canvas, *rest: event_list.draw(canvas.columns(1, canvas.width - 2), *rest),
        }
        self._last_backdrop: tuple[Layout, Canvas] | None = None

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """Draw ``view`` over the whole of ``canvas``."""
        if view.front != self._front:
            # Another optimizer's curves have nothing in common with the limits of these.
            self._front, self._framed = view.front, _framed_panels()
        layout = arrange(
            canvas.width,
            canvas.height,
            screen.focus,
            banner_lines=len(_banner(view, canvas.width)),
            rank_lines=rank_table.wanted_height(view),
            optimizer_lines=int(bool(view.optimizers)),
            device=memory_panel.device_panels(view),
        )
        # Boxes and titles, kept from frame to frame: they take a third of its time.
        if self._last_backdrop is None or self._last_backdrop[0] != layout:
            backdrop = Canvas(canvas.width, canvas.height)
            draw_backdrop(backdrop, layout)
            self._last_backdrop = layout, backdrop
        canvas.put(self._last_backdrop[1])
        for place in layout:
            part = canvas.part(place.rect)
            if not place.framed:
                self._unframed[place.name](part, view, screen)
                continue
            headline, draw = self._framed[place.name]
            title = TITLES[place.name]
            if place.name == "loss" and (label := header.front_label(view)):
                title = f"{title} of {label}"
                part.text(1, 0, f" {title} ")
            _draw_headline(part, title, headline(view, screen))
            draw(part.part(Rect(2, 1, part.width - 4, part.height - 2)), view, screen)
        if screen.message and len(layout) > 1:  # else there is only a notice that the terminal is too small
            lines = footer.NOTICE_LINES
            above = canvas.rows(canvas.height - 1 - lines, lines)
            footer.draw_notice(above, screen, framed=layout[-2].framed)


def _draw_headline(canvas: Canvas, title: str, headline: list[Phrase]) -> None:
    """Write a panel's headline at the right end of its upper edge."""
    room = canvas.width - len(title) - 8
    phrases = fitting(headline, room)
    width = line_width(phrases)
    if not phrases or width > room:
        return
    start = canvas.width - 3 - width
    canvas.text(start - 1, 0, " " * (width + 2))
    write(canvas, start, 0, phrases)
    # Blanks that keep numbers in place become part of the edge again.
    text = canvas.line_text(0, start, start + width)
    canvas.text(start - 1, 0, "─" * (len(text) - len(text.lstrip())), Style.FRAME)
    trailing = len(text) - len(text.rstrip())
    canvas.text(start + width + 1 - trailing, 0, "─" * trailing, Style.FRAME)


def _banner(view: SessionView, width: int) -> list[str]:
    """Why the run failed, wrapped."""
    if not isinstance(view.outcome, RunFailed):
        return []
    return wrapped(f"✖ {run_ended(view.outcome)}", width - 2, lines=_BANNER_LINES)


def _draw_banner(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    for y, line in enumerate(_banner(view, canvas.width)):
        canvas.text(1, y, line, Style.ERROR | BOLD)
