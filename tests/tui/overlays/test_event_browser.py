"""The list of all events, and one of them in full."""

from dataclasses import replace

import pytest

from amptui.records.run import NonFinite, Note, Record, RunFailed
from amptui.telemetry.events import Event, event_of
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW
from amptui.tui.overlays.event_browser import EventBrowser, detail_lines
from amptui.tui.overlays.overlay import CLOSE, STAY
from amptui.tui.style import BOLD, Style
from tests.tui import views
from tests.tui.overlays.opened import drawn, lines
from tests.tui.panels.drawing import style_of


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


def test_the_newest_is_selected_until_a_key_moves() -> None:
    browsing = Browsing(*[note(i) for i in range(5)])
    assert "note 4" in browsing.chosen
    browsing.session.fold([note(5)])
    assert "note 5" in browsing.chosen


def test_the_selected_event_stays_selected_while_new_ones_arrive() -> None:
    browsing = Browsing(*[note(i) for i in range(100)])
    browsing.press("down", "down", "j")
    assert "note 96" in browsing.chosen
    browsing.session.fold([note(i) for i in range(100, 500)])
    assert "note 96" in browsing.chosen
    browsing.press("up")
    assert "note 97" in browsing.chosen


def test_a_selected_line_whose_count_grows_stays_selected() -> None:
    browsing = Browsing(nan_loss(10), note(1))
    browsing.press("down")
    assert "NaN" in browsing.chosen
    browsing.session.fold([nan_loss(11), nan_loss(12), note(2), note(3)])
    assert "3 times (10–12)" in browsing.chosen


def test_a_selected_event_that_was_dropped_leaves_the_position() -> None:
    browsing = Browsing(note(0), note(1))
    browsing.press("down")
    browsing.session.fold([note(i) for i in range(2, 2000)])
    assert "note" in browsing.chosen


def test_home_end_and_pages_move() -> None:
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
    browsing.press("home")
    assert "note 299" in browsing.chosen


def test_details_are_wrapped_completely_and_scroll() -> None:
    trace = "\n".join(f"  line {i} of the traceback " + "x" * 100 for i in range(40))
    browsing = Browsing(RunFailed(time=1.0, step=5, error="boom", traceback=trace))
    texts = set()
    for _ in range(40):
        texts |= {line.strip("│ ") for line in browsing.lines()}
        browsing.press("right")
    joined = "\n".join(texts)
    assert all(f"line {i} of the traceback" in joined for i in range(40))
    assert max(map(len, browsing.lines())) == 80
    at_the_end = browsing.lines()
    browsing.press("right")
    assert browsing.lines() == at_the_end
    browsing.press(*["left"] * 80)
    assert any("line 0 of" in line for line in browsing.lines())


def test_the_details_of_another_event_start_at_the_top() -> None:
    browsing = Browsing(note(0, "\n" + "\n".join(f"first {i}" for i in range(60))), note(1, "\nsecond"))
    browsing.press("down", "right", "right")
    assert not any("first 0" in line for line in browsing.lines())
    browsing.press("up", "down")
    assert any("first 0" in line for line in browsing.lines())


def test_without_an_event_there_is_nothing_to_select() -> None:
    browsing = Browsing()
    browsing.press("down", "up", "end", "home", "pagedown", "pageup", "right", "left")
    assert any("events (0)" in line for line in browsing.lines())
    assert EventBrowser().press("escape", EMPTY_VIEW) == CLOSE


# ------------------------------------------------------------------------------- one in full


PROSE = "the gradient of features.13.conv left the range of float16 because the loss scale was too high"


def test_enter_opens_one_event_and_escape_returns() -> None:
    browsing = Browsing(note(1), note(2, f"\n{PROSE}\nsecond line"), note(3))
    browsing.press("down", "enter")
    shown = browsing.lines()
    assert "event 2 of 3" in shown[0]
    assert "second line" in "\n".join(shown)
    assert not any("note 1" in line or "note 3" in line for line in shown)
    for key in ("escape", "enter"):
        browsing.press(key)
        assert "note 2" in browsing.chosen
        browsing.press("enter")


def test_an_open_event_stays_while_new_ones_arrive() -> None:
    browsing = Browsing(note(1))
    browsing.press("enter")
    browsing.session.fold([note(i) for i in range(2, 50)])
    assert any("note 1" in line for line in browsing.lines())
    assert "event 49 of 49" in browsing.lines()[0]


def test_arrows_and_pages_scroll_a_long_event_to_its_end() -> None:
    browsing = Browsing(note(1, "\n" + "\n".join(f"fact {i}" for i in range(1, 101))))
    browsing.press("enter")
    assert "1–20 of 102 lines" in browsing.lines()[-1]
    browsing.press("down", "j", "up")
    assert "2–21 of 102 lines" in browsing.lines()[-1]
    browsing.press("pagedown")
    assert "22–41 of 102 lines" in browsing.lines()[-1]
    browsing.press("end", "down", "space")
    assert any("fact 100 " in line for line in browsing.lines())
    browsing.press("home")
    assert any("note 1" in line for line in browsing.lines())


@pytest.mark.parametrize("key", ["e", "q"])
def test_the_browser_closes_from_the_list_and_from_an_event(key: str) -> None:
    browsing = Browsing(note(1))
    assert EventBrowser().press(key, EMPTY_VIEW) == CLOSE
    browsing.press("enter")
    assert browsing.browser.press(key, browsing.session.view()) == CLOSE


def test_without_an_event_there_is_nothing_to_open() -> None:
    browsing = Browsing()
    browsing.press("enter", "down")
    assert "events (0)" in browsing.lines()[0]


def test_events_with_details_are_marked() -> None:
    browsing = Browsing(note(1), note(2, "\nmore"), note(3))
    marked = [line for line in browsing.lines() if "+ " in line]
    assert len(marked) == 1
    assert "note 2" in marked[0]


def test_an_open_event_has_the_style_of_its_kind() -> None:
    browsing = Browsing(RunFailed(time=1.0, step=5, error="boom", traceback="the trace"))
    browsing.press("enter")
    canvas = drawn(browsing.browser, browsing.session.view(), 80, 24)
    assert style_of(canvas, "✖") == Style.ERROR
    assert style_of(canvas, "failed: boom") == Style.ERROR | BOLD
    assert style_of(canvas, "the trace") == Style.TEXT
    assert "step 5" in "\n".join(canvas.lines())


def test_prose_is_wrapped_between_words_with_its_indent() -> None:
    pieces = detail_lines(noted(f"title\n  {PROSE}"), 30)
    assert all(piece.startswith("  ") and len(piece) <= 30 for piece in pieces)
    assert " ".join(piece.strip() for piece in pieces) == PROSE


def test_a_traceback_keeps_its_columns() -> None:
    line = "    raise ValueError(  a  ,  b  )" * 3
    failed = RunFailed(time=1.0, step=1, error="failed", traceback=f"Traceback:\n{line}")
    assert "".join(detail_lines(event_of(failed), 30)[1:]) == line


def test_wide_characters_are_not_cut_off_at_the_right() -> None:
    browsing = lines_of(noted("日" * 60 + "\n  " + "本" * 60))
    assert sum(line.count("日") for line in browsing) == 60
    assert sum(line.count("本") for line in browsing) == 60


def noted(text: str) -> Event:
    return event_of(Note(time=1.0, severity="info", text=text))


def lines_of(event: Event) -> list[str]:
    view = replace(views.compared(), events=(event,))
    browser = EventBrowser()
    browser.press("enter", view)
    return lines(browser, view, 80, 24)
