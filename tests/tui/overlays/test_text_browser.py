"""What a run printed and what it is, scrolled and searched."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.records.run import Printed, Record, RunFailed
from amptui.telemetry.eventlog import PRINTS
from amptui.telemetry.session import Session
from amptui.tui.overlays.overlay import CLOSE, STAY
from amptui.tui.overlays.text_browser import ConfigurationBrowser, Line, OutputBrowser, Search, TextBrowser
from tests.tui import views
from tests.tui.overlays.opened import lines, text


def printed(words: str, *, live: bool = False) -> Printed:
    return Printed(time=views.NOW, stream="stdout", text=words, live=live)


def press(browser: TextBrowser, session: Session, *keys: str) -> None:
    for key in keys:
        lines(browser, session.view(), 80, 24)
        assert browser.press(key, session.view()) == STAY


def of(*records: Record) -> Session:
    session = Session()
    session.fold(records)
    return session


def test_lines_stand_in_the_order_in_which_they_were_printed_and_the_newest_stays_in_sight() -> None:
    session, browser = of(*[printed(f"line {i}") for i in range(60)]), OutputBrowser()
    shown = lines(browser, session.view(), 80, 24)
    assert [line[3:-3].rstrip() for line in shown[1:-1]] == [f"line {i}" for i in range(38, 60)]
    session.fold([printed("line 60")])
    assert "line 60" in lines(browser, session.view(), 80, 24)[-2]


def test_what_was_scrolled_to_stays_while_lines_are_added_until_the_end_is_in_sight_again() -> None:
    session, browser = of(*[printed(f"line {i}") for i in range(60)]), OutputBrowser()
    press(browser, session, "home")
    session.fold([printed("line 60")])
    assert "line 0" in lines(browser, session.view(), 80, 24)[1]
    press(browser, session, "end")
    session.fold([printed("line 61")])
    assert "line 61" in lines(browser, session.view(), 80, 24)[-2]


def test_a_progress_bar_is_one_line_that_changes() -> None:
    session = of(printed("before"), printed("10%", live=True), printed("20%", live=True))
    assert [line.text for line in OutputBrowser().lines(session.view())] == ["before", "20%"]


def test_a_failed_run_ends_with_its_traceback() -> None:
    trace = "Traceback:\n  File x\nValueError: bad\n"
    failed = RunFailed(time=views.NOW, step=3, error="ValueError: bad", traceback=trace)
    session = of(printed("before"), failed)
    shown = [line.text for line in OutputBrowser().lines(session.view())]
    assert shown == ["before", "", "Traceback:", "  File x", "ValueError: bad", "ValueError: bad"]


def test_a_traceback_that_the_script_printed_itself_is_not_shown_twice() -> None:
    trace = "Traceback:\n  File x\nValueError: bad\n"
    failed = RunFailed(time=views.NOW, step=3, error="ValueError: bad", traceback=trace)
    session = of(printed("before"), *map(printed, trace.splitlines()), failed)
    shown = [line.text for line in OutputBrowser().lines(session.view())]
    assert shown == ["before", "Traceback:", "  File x", "ValueError: bad", "ValueError: bad"]


def test_old_lines_are_dropped_and_the_text_says_where_they_are() -> None:
    session = of(*[printed(f"line {i}") for i in range(PRINTS + 5)])
    shown = [line.text for line in OutputBrowser().lines(session.view())]
    assert len(shown) == PRINTS + 1
    assert "output.log" in shown[0]
    assert shown[1] == "line 5"


def test_what_is_typed_after_a_slash_selects_lines_and_escape_shows_all_again() -> None:
    session, browser = of(printed("loss 0.3"), printed("saved"), printed("Loss 0.2")), OutputBrowser()
    press(browser, session, "slash", *"loq", "backspace", "s", "enter")
    shown = text(browser, session.view(), 80, 24)
    assert "loss 0.3" in shown
    assert "Loss 0.2" in shown
    assert "saved" not in shown
    press(browser, session, "escape")
    assert "saved" in text(browser, session.view(), 80, 24)
    assert browser.press("escape", session.view()) == CLOSE


@pytest.mark.parametrize("key", ["q", "t", "escape"])
def test_keys_that_close_are_characters_while_somebody_types(key: str) -> None:
    session, browser = of(printed("quit")), OutputBrowser()
    assert browser.press(key, session.view()) == CLOSE
    press(browser, session, "slash", *("q", "t"))
    assert "/qt" in text(browser, session.view(), 80, 24)


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
    session = of(printed(words))
    shown = lines(OutputBrowser(), session.view(), width, 60)[1:-1]
    expected = lines(OutputBrowser(), session.view(), 700, 60)[1:-1]
    assert whole(shown) == whole(expected)


def whole(rows: Sequence[str]) -> str:
    """What stands within a box, without blanks."""
    return "".join("".join(rows).replace("│", "").split())


def test_the_configuration_shows_every_option_version_and_variable() -> None:
    view = views.compared()
    assert view.run is not None
    run = replace(view.run, environment={"OMP_NUM_THREADS": "3"})
    shown = [(line.label, line.text) for line in ConfigurationBrowser().lines(replace(view, run=run))]
    for group in (run.versions, run.environment):
        assert set(group.items()) <= set(shown)
    assert set(run.config) | set(run.hardware) <= {label for label, _ in shown}
    assert ("", "environment") in shown


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not set"),
        (True, "true"),
        (0.1, "0.1"),
        ("none", "none"),
        ([], "none"),
        (["--lr", "0.1", "--name", "a run"], "--lr 0.1 --name 'a run'"),
    ],
)
def test_the_configuration_says_a_value_as_a_user_writes_it(value: object, words: str) -> None:
    view = views.compared()
    assert view.run is not None
    run = replace(view.run, config={"option": value}, hardware={"processor": None})
    shown = [(line.label, line.text) for line in ConfigurationBrowser().lines(replace(view, run=run))]
    assert ("option", words) in shown
    assert ("processor", "n/a") in shown


def test_values_of_the_configuration_are_wrapped_between_words() -> None:
    shown = [line[3:-3].strip() for line in lines(ConfigurationBrowser(), views.compared(), 40, 24)]
    at = shown.index("model  mnist-deep, 1,199,882")
    assert shown[at + 1] == "parameters"


def test_before_training_there_is_no_configuration() -> None:
    view = Session().view()
    assert ConfigurationBrowser().lines(view) == []
    assert ConfigurationBrowser.nothing in text(ConfigurationBrowser(), view)
