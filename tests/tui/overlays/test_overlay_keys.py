"""What the keys of each overlay do: answers, selections and pages, which stay while records arrive."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.records.run import PRECISIONS, NonFinite, Note, Printed, Record, RunFailed
from amptui.telemetry.events import event_of
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.keys import KEYS, pages_of
from amptui.tui.overlays.event_browser import EventBrowser, detail_lines
from amptui.tui.overlays.float8_overlay import Float8Operands
from amptui.tui.overlays.menus import Help, PrecisionMenu
from amptui.tui.overlays.metrics_browser import MetricsBrowser
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay
from amptui.tui.overlays.questions import LossScaleQuestion, QuitQuestion
from amptui.tui.overlays.text_browser import ConfigurationBrowser, Line, OutputBrowser, Search
from amptui.tui.overlays.xray_overlay import XRay
from tests.tui import views
from tests.tui.overlays.opened import (
    OPERANDS,
    SCREEN,
    drawn,
    float8_window,
    layer,
    lines,
    text,
    with_float8_window,
    with_float8_xray,
    with_xray,
)
from tests.tui.special_views import at_the_floor, nan_weights

OVERLAYS: dict[str, Callable[[], Overlay]] = {
    "help": lambda: Help("keys", KEYS),
    "quit": lambda: QuitQuestion(attached=False),
    "quit attached": lambda: QuitQuestion(attached=True),
    "menu": lambda: PrecisionMenu(views.compared()),
    "events": EventBrowser,
    "output": OutputBrowser,
    "configuration": ConfigurationBrowser,
    "floor": LossScaleQuestion,
    "x-ray": XRay,
    "float8": Float8Operands,
    "metrics": MetricsBrowser,
}

# ------------------------------------------------------------------------------- of every overlay

ALL_PRESSES = [
    *("up", "down", "pageup", "pagedown", "home", "end", "left", "right", "space", "enter", "s", "o", "x"),
    *("1", "0", "plus", "minus", "slash", "escape", "left_square_bracket", "backspace"),
]
VIEWS = {name: build() for name, build in views.ALL.items()} | {
    "x-ray": with_xray(),
    "float8": OPERANDS,
    "floor": at_the_floor(),
    "NaN weights": nan_weights("step-000000008.pt"),
}


@given(
    name=st.sampled_from(sorted(OVERLAYS)),
    steps=st.lists(
        st.tuples(
            *(st.integers(0, 130), st.integers(0, 50)),
            *(st.sampled_from(ALL_PRESSES), st.sampled_from(sorted(VIEWS))),
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


@pytest.mark.parametrize("keys", [(), ("o",)], ids=str)
@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_ascii_terminal_has_a_replacement_for_every_character(name: str, keys: tuple[str, ...]) -> None:
    overlay = OVERLAYS[name]()
    view = at_the_floor() if name == "floor" else OPERANDS if name == "float8" else with_xray()
    for key in keys:
        overlay.press(key, view)
    shown = "".join(drawn(overlay, view, ascii_only=True).lines())
    assert shown.isascii()
    assert shown.count("?") == "".join(drawn(overlay, view).lines()).count("?")


@pytest.mark.parametrize("name", ["quit", "quit attached", "menu", "floor"])
def test_a_question_leads_to_no_page(name: str) -> None:
    assert not any(OVERLAYS[name]().leads_on(key) for key in pages_of(KEYS))


FLOOR, NAN = at_the_floor(), nan_weights()
WITHOUT_BF16 = at_the_floor(bf16="no bfloat16 on this GPU")


@pytest.mark.parametrize(
    ("name", "view", "presses", "answer"),
    [
        ("help", EMPTY_VIEW, ("question_mark", "escape", "p", "x"), CLOSE),
        ("menu", views.fp32_only(), ("escape", "m", "q"), CLOSE),
        ("menu", views.fp32_only(), ("0", "8", "9", "²", "x"), STAY),
        ("floor", FLOOR, ("b",), Answer(close=True, precision="bf16", action="resume")),
        ("floor", FLOOR, ("f",), Answer(close=True, precision="fp32", action="resume")),
        ("floor", FLOOR, ("g",), Answer(close=True, action="resume")),
        ("floor", FLOOR, ("d",), Answer(close=True, action="detach")),
        ("floor", FLOOR, ("q",), Answer(action="ask_quit")),  # asks first and leaves the choice open
        ("floor", FLOOR, ("escape",), CLOSE),
        ("floor", FLOOR, ("enter", "space", "p", "x", "n"), STAY),
        ("floor", WITHOUT_BF16, ("b",), STAY),
        ("floor", NAN, ("b", "f"), STAY),  # no other precision repairs the weights
        ("floor", NAN, ("g",), Answer(close=True, action="resume")),
        ("floor", NAN, ("d",), Answer(close=True, action="detach")),
        ("quit", EMPTY_VIEW, ("y",), Answer(close=True, action="stop")),
        ("quit", EMPTY_VIEW, ("d",), Answer(close=True, action="detach")),
        ("quit", EMPTY_VIEW, ("enter", "escape", "n", "q", "ctrl+q"), CLOSE),
        ("quit", EMPTY_VIEW, ("p", "space", "s", "esc"), STAY),
        ("quit attached", EMPTY_VIEW, ("y",), Answer(close=True, action="stop")),
        ("quit attached", EMPTY_VIEW, ("enter", "escape", "n"), CLOSE),
        ("events", EMPTY_VIEW, ("e", "q", "escape"), CLOSE),
        ("output", EMPTY_VIEW, ("q", "t", "escape"), CLOSE),
        ("x-ray", with_xray(), ("escape", "q", "ctrl+q"), CLOSE),
        ("x-ray", with_xray(), ("x",), Answer(action="take_xray")),
        ("float8", OPERANDS, ("escape", "q", "f"), CLOSE),
        ("float8", OPERANDS, ("h",), Answer(close=True, action="show_float16")),
    ],
)  # fmt: skip
def test_what_a_key_answers(name: str, view: SessionView, presses: tuple[str, ...], answer: Answer) -> None:
    for press in presses:
        assert OVERLAYS[name]().press(press, view) == answer, press


# -------------------------------------------------------------------------------------- the menu


@given(st.lists(st.sampled_from(["up", "down", "j", "k"])), st.sampled_from(PRECISIONS))
def test_arrows_move_through_the_menu_and_wrap_around(keys: list[str], now: str) -> None:
    view = replace(views.fp32_only(), precision=now)
    menu = PrecisionMenu(view)
    for key in keys:
        assert menu.press(key, view) == STAY
    distance = sum(1 if key in ("down", "j") else -1 for key in keys)
    answer = menu.press("enter", view)
    assert answer.precision == PRECISIONS[(PRECISIONS.index(now) + distance) % len(PRECISIONS)]
    assert answer.close


def test_numbers_choose_and_before_the_first_record_the_menu_starts_at_its_first_line() -> None:
    view = views.fp32_only()
    chosen = [
        PrecisionMenu(view).press(str(number), view).precision for number in range(1, len(PRECISIONS) + 1)
    ]
    assert chosen == list(PRECISIONS)
    assert PrecisionMenu(EMPTY_VIEW).press("enter", EMPTY_VIEW).precision == PRECISIONS[0]


# ------------------------------------------------------------------------ pages over a live session


def note(number: int, rest: str = "") -> Note:
    return Note(time=float(number), severity="info", text=f"note {number}{rest}")


def printed(words: str, *, live: bool = False) -> Printed:
    return Printed(time=views.NOW, stream="stdout", text=words, live=live)


def nan_loss(step: int) -> NonFinite:
    return NonFinite(time=float(step), step=step, what="loss", kind="nan", names=(), count=1)


class Browsing:
    """An overlay over a real session, drawn before each key as on a screen."""

    def __init__(self, browser: Overlay, *records: Record) -> None:
        self.session = Session()
        self.session.fold(records)
        self.browser = browser

    def press(self, *keys: str) -> None:
        for key in keys:
            self.lines()
            assert self.browser.press(key, self.session.view()) == STAY

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        return lines(self.browser, self.session.view(), width, height)

    @property
    def text(self) -> str:
        return "\n".join(self.lines())

    @property
    def chosen(self) -> str:
        """The line with the mark."""
        (line,) = [line for line in self.lines() if "▸" in line]
        return line


def test_the_newest_event_is_selected_until_a_key_moves() -> None:
    browsing = Browsing(EventBrowser(), *[note(i) for i in range(5)])
    assert "note 4" in browsing.chosen
    browsing.session.fold([note(5)])
    assert "note 5" in browsing.chosen


def test_the_selected_event_stays_selected_while_new_ones_arrive() -> None:
    browsing = Browsing(EventBrowser(), *[note(i) for i in range(100)])
    browsing.press("down", "down", "j")
    assert "note 96" in browsing.chosen
    browsing.session.fold([note(i) for i in range(100, 500)])
    assert "note 96" in browsing.chosen
    browsing.press("up")
    assert "note 97" in browsing.chosen
    browsing.session.fold([note(i) for i in range(500, 5000)])
    assert "note" in browsing.chosen, "a dropped one leaves the position"


def test_a_selected_line_whose_count_grows_stays_selected() -> None:
    browsing = Browsing(EventBrowser(), nan_loss(10), note(1))
    browsing.press("down")
    assert "NaN" in browsing.chosen
    browsing.session.fold([nan_loss(11), nan_loss(12), note(2), note(3)])
    assert "3 times (10–12)" in browsing.chosen


def test_home_end_and_pages_move() -> None:
    browsing = Browsing(EventBrowser(), *[note(i) for i in range(300)])
    for keys, number in (
        *((("end",), 0), (("down", "pagedown"), 0), (("home",), 299)),
        *((("pagedown", "pageup", "pageup"), 299), (("G",), 0), (("home",), 299)),
    ):
        browsing.press(*keys)
        assert f"note {number}" in browsing.chosen
    browsing.press("pagedown")
    assert "note 299" not in browsing.chosen


def test_details_are_wrapped_completely_and_scroll() -> None:
    trace = "\n".join(f"  line {i} of the traceback " + "x" * 100 for i in range(40))
    browsing = Browsing(EventBrowser(), RunFailed(time=1.0, step=5, error="boom", traceback=trace))
    texts = set()
    for _ in range(40):
        texts |= {line.strip("│ ") for line in browsing.lines()}
        browsing.press("right")
    assert all(any(f"line {i} of the traceback" in line for line in texts) for i in range(40))
    at_the_end = browsing.lines()
    browsing.press("right")
    assert browsing.lines() == at_the_end
    browsing.press(*["left"] * 80)
    assert "line 0 of" in browsing.text


def test_the_details_of_another_event_start_at_the_top() -> None:
    long = "\n" + "\n".join(f"first {i}" for i in range(60))
    browsing = Browsing(EventBrowser(), note(0, long), note(1, "\nsecond"))
    browsing.press("down", "right", "right")
    assert "first 0" not in browsing.text
    browsing.press("up", "down")
    assert "first 0" in browsing.text


def test_enter_opens_one_event_and_escape_returns() -> None:
    browsing = Browsing(EventBrowser(), note(1), note(2, "\nsecond line"), note(3))
    browsing.press("down", "enter")
    assert "event 2 of 3" in browsing.lines()[0]
    assert "second line" in browsing.text
    assert not any(other in browsing.text for other in ("note 1", "note 3"))
    browsing.session.fold([note(i) for i in range(4, 50)])
    assert "note 2" in browsing.text, "it stays while others arrive"
    for key in ("escape", "enter"):
        browsing.press(key)
        assert "note 2" in browsing.chosen
        browsing.press("enter")
    for key in ("e", "q"):
        assert browsing.browser.press(key, browsing.session.view()) == CLOSE


def test_arrows_and_pages_scroll_a_long_event_to_its_end() -> None:
    browsing = Browsing(EventBrowser(), note(1, "\n" + "\n".join(f"fact {i}" for i in range(1, 101))))
    browsing.press("enter")
    for keys, place in (
        *(((), "1–20"), (("down", "j", "up"), "2–21"), (("pagedown",), "22–41")),
        *((("end", "down", "space"), "83–102"), (("home",), "1–20")),
    ):
        browsing.press(*keys)
        assert f" {place} of 102 lines" in browsing.lines()[-1]


def test_without_an_event_there_is_nothing_to_select_or_open() -> None:
    browsing = Browsing(EventBrowser())
    browsing.press("down", "up", "end", "home", "pagedown", "pageup", "right", "left", "enter", "down")
    assert "events (0)" in browsing.lines()[0]


def test_prose_is_wrapped_between_words_with_its_indent_and_a_traceback_keeps_its_columns() -> None:
    prose = "the gradient of features.13.conv left the range of float16 because the loss scale was too high"
    pieces = detail_lines(event_of(note(1, f"\n  {prose}")), 30)
    assert all(piece.startswith("  ") and len(piece) <= 30 for piece in pieces)
    assert " ".join(piece.strip() for piece in pieces) == prose
    line = "    raise ValueError(  a  ,  b  )" * 3
    failed = RunFailed(time=1.0, step=1, error="failed", traceback=f"Traceback:\n{line}")
    assert "".join(detail_lines(event_of(failed), 30)[1:]) == line


def test_the_newest_output_stays_in_sight_until_somebody_scrolls_and_again_from_the_end_on() -> None:
    browsing = Browsing(OutputBrowser(), *[printed(f"line {i}") for i in range(60)])
    assert [line[3:-3].rstrip() for line in browsing.lines()[1:-1]] == [f"line {i}" for i in range(38, 60)]
    browsing.session.fold([printed("line 60")])
    assert "line 60" in browsing.lines()[-2]
    browsing.press("home")
    browsing.session.fold([printed("line 61")])
    assert "line 0" in browsing.lines()[1]
    browsing.press("end")
    browsing.session.fold([printed("line 62")])
    assert "line 62" in browsing.lines()[-2]


def test_a_progress_bar_is_one_line_that_changes() -> None:
    session = Session()
    session.fold([printed("before"), printed("10%", live=True), printed("20%", live=True)])
    assert [line.text for line in OutputBrowser().lines(session.view())] == ["before", "20%"]


def test_what_is_typed_after_a_slash_selects_lines_and_escape_shows_all_again() -> None:
    browsing = Browsing(OutputBrowser(), printed("loss 0.3"), printed("saved"), printed("Loss 0.2"))
    browsing.press("slash", *"loq", "backspace", "s")
    assert "/los" in browsing.text, "keys that close are characters while somebody types"
    browsing.press("enter")
    assert [word in browsing.text for word in ("loss 0.3", "Loss 0.2", "saved")] == [True, True, False]
    browsing.press("escape")
    assert "saved" in browsing.text
    assert browsing.browser.press("escape", browsing.session.view()) == CLOSE


@given(st.lists(st.text("abAB ", max_size=8), max_size=20), st.text("abAB", min_size=1, max_size=3))
def test_a_search_shows_the_lines_that_hold_it_and_no_others(texts: list[str], searched: str) -> None:
    search = Search()
    for key in ("slash", *searched):
        assert search.press(key)
    shown = search.matching([Line(words) for words in texts])
    assert [line.text for line in shown] == [words for words in texts if searched.lower() in words.lower()]


LETTERS = st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="│")


@given(words=st.text(LETTERS, min_size=1, max_size=300), width=st.integers(12, 80))
@example(words="0" * 8, width=12)
def test_a_long_line_is_cut_into_rows_that_hold_all_of_it(words: str, width: int) -> None:
    browsing = Browsing(OutputBrowser(), printed(words))
    cut, whole = (
        "".join("".join(browsing.lines(w, 60)[1:-1]).replace("│", "").split()) for w in (width, 700)
    )
    assert cut == whole


# ---------------------------------------------------------------------------- the X-ray and float8


def test_arrows_pages_and_ends_scroll_the_layers_and_another_order_begins_at_the_top() -> None:
    view, overlay = (
        with_xray(layers=tuple(layer(f"layer{i:03}", 0.9 + i / 10_000) for i in range(100))),
        XRay(),
    )
    last = lines(overlay, view, 80, 24)[-1]
    page = int(last.split("–")[1].split()[0])
    for key, first in (
        *(("down", 2), ("j", 3), ("up", 2), ("pagedown", 2 + page)),
        *(("end", 101 - page), ("home", 1), ("k", 1), ("end", 101 - page), ("s", 1)),
    ):
        overlay.press(key, view)
        assert f" {first}–{first + page - 1} of 100 " in lines(overlay, view, 80, 24)[-1]
    overlay.press("end", view)
    assert "layer000" in text(overlay, with_xray(layers=view.numerics.xray.layers[:3]), 80, 24)  # type: ignore[union-attr]


def test_an_order_that_another_x_ray_has_not_is_left() -> None:
    overlay = XRay()
    for order in ("model order", "by lost", "by size", "least to bf16"):
        overlay.press("s", with_float8_xray())
        assert f"4 layers, {order}" in text(overlay, with_float8_xray())
    assert "7 layers, worst first" in text(overlay, with_xray())


def test_operators_and_layers_have_orders_of_their_own() -> None:
    overlay = XRay()
    for keys, title in (("o", "4 operators, most frequent first"), ("so", "7 layers, worst first")):
        for key in keys:
            assert overlay.press(key, with_xray()) == STAY
        assert title in text(overlay, with_xray())


def test_all_operands_can_be_selected_and_the_selected_one_stays_so_in_the_next_window() -> None:
    overlay, seen = Float8Operands(), set()
    for number in range(1, 8):
        shown = lines(overlay, OPERANDS)
        assert f"{number} of 7" in shown[-1]
        seen.add(next(line for line in shown if " elements" in line and " in E" in line).strip("│ "))
        overlay.press("down", OPERANDS)
    assert len(seen) == 7
    assert "7 of 7" in lines(overlay, OPERANDS)[-1]
    for key in ("home", "down"):
        overlay.press(key, OPERANDS)
    selected = next(line for line in lines(overlay, OPERANDS) if " in E" in line)
    later = with_float8_window(float8_window(step=1300, layers=tuple(reversed(float8_window().layers))))
    assert selected in lines(overlay, later)
    overlay.press("enter", OPERANDS)
    assert overlay.press("escape", OPERANDS) == STAY
    assert "7 operands, worst first" in text(overlay, OPERANDS)
