"""What opens over the panels: all keys, the choices, the question, every event."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records import PRECISIONS, NonFinite, Note, Record, RunFailed
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.keys import KEYS
from amptui.tui.overlays import (
    CLOSE,
    MEANINGS,
    STAY,
    EventBrowser,
    Help,
    Overlay,
    PrecisionMenu,
    QuitQuestion,
)
from tests.tui import views


def lines(overlay: Overlay, view: SessionView, width: int = 120, height: int = 40) -> list[str]:
    canvas = Canvas(width, height)
    overlay.draw(canvas, view)
    return canvas.lines()


def text(overlay: Overlay, view: SessionView, width: int = 120, height: int = 40) -> str:
    return "\n".join(lines(overlay, view, width, height))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_help_lists_every_key_with_its_meaning(size: tuple[int, int]) -> None:
    shown = lines(Help(), views.compared(), *size)
    for key in KEYS:
        assert any(key.label in line and key.meaning in line for line in shown), key.label
    assert any("run folder runs/mnist-deep" in line for line in shown)
    for sign in ("■ FP32", "□", "◆", "▲ AMP fp16", "● AMP bf16"):
        assert any(sign in line for line in shown), sign


@pytest.mark.parametrize("key", ["question_mark", "escape", "p", "x"])
def test_any_key_closes_help(key: str) -> None:
    assert Help().press(key, EMPTY_VIEW) == CLOSE


def test_the_question_names_the_step_and_both_answers() -> None:
    shown = text(QuitQuestion(), views.compared())
    for words in ("step 1,204", "enter", "keep the journal", "esc", "training goes on"):
        assert words in shown


@pytest.mark.parametrize(
    ("key", "action", "closes"),
    [
        ("enter", "stop", True),
        ("y", "stop", True),
        ("escape", "", True),
        ("n", "", True),
        ("q", "", True),
        ("p", "", False),
    ],
)
def test_only_a_clear_yes_stops(key: str, action: str, *, closes: bool) -> None:
    answer = QuitQuestion().press(key, EMPTY_VIEW)
    assert (answer.action, answer.close, answer.precision) == (action, closes, "")


def test_the_menu_has_every_precision_with_what_it_is_or_why_it_cannot_be() -> None:
    run = views.run_started(unsupported={"tf32": "no TF32 on this GPU"})
    shown = lines(PrecisionMenu(views.compared()), replace(views.compared(), run=run))
    for name in PRECISIONS:
        meaning = "no TF32 on this GPU" if name == "tf32" else MEANINGS[name]
        assert any(meaning in line for line in shown)
    assert any("▸" in line and "AMP fp16" in line and "(now)" in line for line in shown)


@given(st.lists(st.sampled_from(["up", "down", "j", "k"])), st.sampled_from(PRECISIONS))
def test_arrows_walk_round_the_menu(keys: list[str], now: str) -> None:
    view = replace(views.fp32_only(), precision=now)
    menu = PrecisionMenu(view)
    for key in keys:
        assert menu.press(key, view) == STAY
    moved = sum(1 if key in ("down", "j") else -1 for key in keys)
    answer = menu.press("enter", view)
    assert answer.precision == PRECISIONS[(PRECISIONS.index(now) + moved) % len(PRECISIONS)]
    assert answer.close


def test_numbers_choose_and_others_do_nothing() -> None:
    view = views.fp32_only()
    for number, name in enumerate(PRECISIONS, 1):
        assert PrecisionMenu(view).press(str(number), view).precision == name
    for key in ("0", "6", "9", "²", "x"):
        assert PrecisionMenu(view).press(key, view) == STAY
    for key in ("escape", "m", "q"):
        assert PrecisionMenu(view).press(key, view) == CLOSE


def test_a_menu_before_the_first_record_begins_at_its_first_line() -> None:
    assert PrecisionMenu(EMPTY_VIEW).press("enter", EMPTY_VIEW).precision == PRECISIONS[0]


# -------------------------------------------------------------------------------------- events


def note(number: int, rest: str = "") -> Note:
    return Note(time=float(number), severity="info", text=f"note {number}{rest}")


def nan_loss(step: int) -> NonFinite:
    return NonFinite(time=float(step), step=step, what="loss", kind="nan", names=(), count=1)


class Browsing:
    """A browser over a real session."""

    def __init__(self, *records: Record) -> None:
        self.session = Session()
        self.session.fold(records)
        self.browser = EventBrowser()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.lines()
            assert self.browser.press(key, self.session.view()) == STAY

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        return lines(self.browser, self.session.view(), width, height)

    @property
    def chosen(self) -> str:
        """The line with the mark."""
        (line,) = [line for line in self.lines() if "▸" in line]
        return line


def test_the_newest_is_chosen_until_one_moves() -> None:
    browsing = Browsing(*[note(i) for i in range(5)])
    assert "note 4" in browsing.chosen
    browsing.session.fold([note(5)])
    assert "note 5" in browsing.chosen


def test_the_chosen_event_stays_chosen_while_new_ones_arrive() -> None:
    browsing = Browsing(*[note(i) for i in range(100)])
    browsing.press("down", "down", "j")
    assert "note 96" in browsing.chosen
    browsing.session.fold([note(i) for i in range(100, 500)])
    assert "note 96" in browsing.chosen
    browsing.press("up")
    assert "note 97" in browsing.chosen


def test_a_chosen_line_that_counts_on_stays_chosen() -> None:
    browsing = Browsing(nan_loss(10), note(1))
    browsing.press("down")
    assert "NaN" in browsing.chosen
    browsing.session.fold([nan_loss(11), nan_loss(12), note(2), note(3)])
    assert "3 times (10–12)" in browsing.chosen


def test_a_chosen_event_that_was_forgotten_leaves_the_place() -> None:
    browsing = Browsing(note(0), note(1))
    browsing.press("down")
    browsing.session.fold([note(i) for i in range(2, 2000)])
    assert "note" in browsing.chosen


def test_ends_and_pages_are_reached() -> None:
    browsing = Browsing(*[note(i) for i in range(300)])
    browsing.press("end")
    assert "note 0" in browsing.chosen
    browsing.press("down", "pagedown")
    assert "note 0" in browsing.chosen
    browsing.press("home")
    assert "note 299" in browsing.chosen
    browsing.press("pagedown")
    assert "note 299" not in browsing.chosen
    browsing.press("pageup", "pageup")
    assert "note 299" in browsing.chosen
    browsing.press("G")
    assert "note 0" in browsing.chosen
    browsing.press("g")
    assert "note 299" in browsing.chosen


def test_details_are_wrapped_whole_and_scrolled() -> None:
    trace = "\n".join(f"  line {i} of the traceback " + "x" * 100 for i in range(40))
    browsing = Browsing(RunFailed(time=1.0, step=5, error="boom", traceback=trace))
    seen = set()
    for _ in range(40):
        seen |= {line.strip("│ ") for line in browsing.lines()}
        browsing.press("right")
    joined = "\n".join(seen)
    assert all(f"line {i} of the traceback" in joined for i in range(40))
    assert max(map(len, browsing.lines())) == 80
    at_the_end = browsing.lines()
    browsing.press("right")
    assert browsing.lines() == at_the_end
    browsing.press(*["left"] * 80)
    assert any("line 0 of" in line for line in browsing.lines())


def test_another_event_s_details_begin_at_their_top() -> None:
    browsing = Browsing(note(0, "\n" + "\n".join(f"first {i}" for i in range(60))), note(1, "\nsecond"))
    browsing.press("down", "right", "right")
    assert not any("first 0" in line for line in browsing.lines())
    browsing.press("up", "down")
    assert any("first 0" in line for line in browsing.lines())


def test_without_an_event_there_is_nothing_to_choose() -> None:
    browsing = Browsing()
    browsing.press("down", "up", "end", "home", "pagedown", "pageup", "right", "left")
    assert any("events (0)" in line for line in browsing.lines())
    assert EventBrowser().press("escape", EMPTY_VIEW) == CLOSE


KEYS_OF_ALL = ["up", "down", "pageup", "pagedown", "home", "end", "left", "right", "x", "1"]
OVERLAYS: dict[str, Callable[[], Overlay]] = {
    "help": Help,
    "quit": QuitQuestion,
    "menu": lambda: PrecisionMenu(views.compared()),
    "events": EventBrowser,
}
VIEWS = {name: build() for name, build in views.ALL.items()}


@given(
    name=st.sampled_from(sorted(OVERLAYS)),
    steps=st.lists(
        st.tuples(
            st.integers(0, 130),
            st.integers(0, 50),
            st.sampled_from(KEYS_OF_ALL),
            st.sampled_from(sorted(VIEWS)),
        ),
        max_size=6,
    ),
)
def test_no_size_no_key_and_no_view_is_ever_an_error(
    name: str, steps: list[tuple[int, int, str, str]]
) -> None:
    overlay = OVERLAYS[name]()
    for width, height, key, view in steps:
        shown = lines(overlay, VIEWS[view], width, height)
        assert len(shown) == height
        overlay.press(key, VIEWS[view])
