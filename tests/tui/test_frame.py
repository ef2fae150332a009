"""The whole screen: what a frame sends, what stays in its place, and that any size and view can be drawn."""

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Painter, Rect
from amptui.tui.frame import Frame
from amptui.tui.layout import RANKED_PANELS, arrange
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.step_window import steps_ahead
from amptui.tui.style import Background, styles_on
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step
from tests.tui import numerics_views, special_views, views

HINTS = (("p", "precision"), ("space", "pause"), ("tab", "panels"), ("?", "help"), ("q", "quit"))
SCREEN = ScreenState(now=views.NOW, hints=HINTS)


def drawn(view: SessionView, width: int, height: int, screen: ScreenState = SCREEN) -> Canvas:
    canvas = Canvas(width, height)
    Frame().draw(canvas, view, screen)
    return canvas


def quick_run(seconds: int, *, precision: str = "fp32") -> Iterator[SessionView]:
    """What a screen sees twice a second of a noisy run of 480 steps a second."""
    session, noise = Session("runs/x"), np.random.default_rng(0)
    session.fold([started(precision=precision, total_steps=100_000, steps_per_epoch=10_000)])
    for frame in range(2 * seconds):
        records = [
            step(
                number,
                time=100 + number / 480,
                precision=precision,
                loss=2 * math.exp(-number / 900) + 0.3 + 0.1 * noise.random(),
                step_seconds=(1.9 + 0.4 * noise.random()) / 1000,
            )
            for number in range(240 * frame + 1, 240 * frame + 241)
        ]
        session.fold(records)
        yield session.view()


@pytest.mark.ci
@pytest.mark.parametrize("background", ["dark", "light"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_quick_run_is_shown_in_three_kilobytes_a_second(precision: str, background: Background) -> None:
    painter = Painter(styles_on(background, has_256_colours=True))
    frame, shown, written, ahead = Frame(), Canvas(120, 40), 0, 0
    for view in quick_run(8, precision=precision):
        ahead = steps_ahead(ahead, view.step_seconds)
        canvas = Canvas(120, 40)
        frame.draw(canvas, view, ScreenState(hints=HINTS, steps_ahead=ahead))
        written += len(painter.paint(canvas, canvas.changes_since(shown)).encode())
        shown = canvas
    assert written / 8 < 3000


def test_the_same_view_twice_changes_no_cell() -> None:
    frame, view = Frame(), views.with_skips()
    first, second = Canvas(120, 40), Canvas(120, 40)
    frame.draw(first, view, SCREEN)
    frame.draw(second, view, SCREEN)
    assert second.changes_since(first) == []


VIEWS = {
    name: build()
    for some in (views.ALL, numerics_views.ALL, special_views.RANKED, special_views.TIMED)
    for name, build in some.items()
}


@given(
    st.tuples(st.integers(0, 200), st.integers(0, 200)),
    st.sampled_from(sorted(VIEWS)),
    st.none() | st.sampled_from(RANKED_PANELS),
    st.booleans(),
    st.integers(0, 12),
    st.none() | st.integers(-9, 2000),
)
def test_no_size_or_view_is_an_error(
    size: tuple[int, int],
    name: str,
    focus: str | None,
    log_y: bool,
    zoom: int,
    cursor: int | None,
) -> None:
    screen = ScreenState(now=views.NOW, focus=focus, log_y=log_y, zoom=zoom, hints=HINTS, cursor=cursor)
    canvas = Canvas(*size)
    Frame().draw(canvas, VIEWS[name], screen)
    assert all(len(line) <= size[0] for line in canvas.lines())


# --------------------------------------------------------------------------- the places of panels

widths, heights = st.integers(1, 250), st.integers(1, 80)
focuses = st.none() | st.sampled_from(RANKED_PANELS)
devices = st.sampled_from([(), ("scale",), ("memory",), ("scale", "memory")])
banners = st.integers(0, 3)
ranks = st.just(0) | st.integers(5, 20)
others = st.integers(0, 1)


def overlap(a: Rect, b: Rect) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


@given(widths, heights, focuses, banners, ranks, others, devices)
def test_places_fill_the_screen_without_overlapping(
    width: int,
    height: int,
    focus: str | None,
    banner_lines: int,
    rank_lines: int,
    optimizer_lines: int,
    device: tuple[str, ...],
) -> None:
    places = arrange(
        *(width, height, focus),
        banner_lines=banner_lines,
        rank_lines=rank_lines,
        optimizer_lines=optimizer_lines,
        device=device,
    )
    for place in places:
        assert min(place.rect.width, place.rect.height) >= 1
        assert min(place.rect.x, place.rect.y) >= 0
        assert place.rect.x + place.rect.width <= width
        assert place.rect.y + place.rect.height <= height
    for one, other in combinations(places, 2):
        assert not overlap(one.rect, other.rect)
    assert sum(place.rect.width * place.rect.height for place in places) == width * height
