"""Every overlay with any size, key and view, also on ASCII terminals."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.canvas import Canvas, Rect
from amptui.tui.keys import KEYS as ALL_KEYS
from amptui.tui.keys import pages_of
from amptui.tui.overlays.event_browser import EventBrowser
from amptui.tui.overlays.menus import Help, PrecisionMenu
from amptui.tui.overlays.metrics_browser import MetricsBrowser
from amptui.tui.overlays.overlay import Overlay
from amptui.tui.overlays.questions import LossScaleQuestion, QuitQuestion
from amptui.tui.overlays.text_browser import ConfigurationBrowser, OutputBrowser
from amptui.tui.overlays.xray_overlay import XRay
from tests.tui import views
from tests.tui.overlays.opened import SCREEN, drawn, with_xray
from tests.tui.overlays.test_questions import at_the_floor, nan_weights

KEYS = [
    "up", "down", "pageup", "pagedown", "home", "end", "left", "right", "space", "enter", "s", "o", "x",
    "1", "0", "plus", "minus", "slash", "escape", "left_square_bracket", "backspace",
]  # fmt: skip
OVERLAYS: dict[str, Callable[[], Overlay]] = {
    "help": lambda: Help("keys", ALL_KEYS),
    "quit": lambda: QuitQuestion(attached=False),
    "quit attached": lambda: QuitQuestion(attached=True),
    "menu": lambda: PrecisionMenu(views.compared()),
    "events": EventBrowser,
    "output": OutputBrowser,
    "configuration": ConfigurationBrowser,
    "floor": LossScaleQuestion,
    "x-ray": XRay,
    "metrics": MetricsBrowser,
}
VIEWS = {name: build() for name, build in views.ALL.items()} | {
    "x-ray": with_xray(),
    "floor": at_the_floor(),
    "NaN weights": nan_weights("step-000000008.pt"),
}


@given(
    name=st.sampled_from(sorted(OVERLAYS)),
    steps=st.lists(
        st.tuples(
            st.integers(0, 130), st.integers(0, 50), st.sampled_from(KEYS), st.sampled_from(sorted(VIEWS))
        ),
        max_size=6,
    ),
)
def test_no_size_key_or_view_is_an_error(name: str, steps: list[tuple[int, int, str, str]]) -> None:
    overlay = OVERLAYS[name]()
    for width, height, key, view in steps:
        canvas = drawn(overlay, VIEWS[view], width, height)
        assert canvas.chars.shape == (height, width)
        overlay.press(key, VIEWS[view])


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_overlay_that_covers_all_hides_everything(name: str) -> None:
    overlay, canvas = OVERLAYS[name](), Canvas(80, 24)
    canvas.fill(Rect(0, 0, 80, 24), "#")
    overlay.draw(canvas, with_xray(), SCREEN)
    assert overlay.covers_all is not any("#" in line for line in canvas.lines())


@pytest.mark.parametrize("name", ["quit", "quit attached", "menu", "floor"])
def test_a_question_leads_to_no_page(name: str) -> None:
    assert not any(OVERLAYS[name]().leads_on(key) for key in pages_of(ALL_KEYS))


@pytest.mark.parametrize("keys", [(), ("o",)], ids=str)
@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_ascii_terminal_has_a_replacement_for_every_character(name: str, keys: tuple[str, ...]) -> None:
    overlay = OVERLAYS[name]()
    view = at_the_floor() if name == "floor" else with_xray()
    for key in keys:
        overlay.press(key, view)
    shown = "".join(drawn(overlay, view, ascii_only=True).lines())
    assert shown.isascii()
    assert shown.count("?") == "".join(drawn(overlay, view).lines()).count("?")
