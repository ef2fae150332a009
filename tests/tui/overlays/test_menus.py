"""The help, the question before a screen closes, and the menu of precisions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import PRECISIONS
from amptui.telemetry.view import EMPTY_VIEW
from amptui.tui.keys import KEYS
from amptui.tui.overlays.menus import MEANINGS, Help, PrecisionMenu, QuitQuestion
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer
from amptui.tui.style import Style
from tests.tui import views
from tests.tui.overlays.opened import drawn, lines, text


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_help_lists_every_key_with_its_meaning(size: tuple[int, int]) -> None:
    shown = lines(Help("keys", KEYS), views.compared(), *size)
    for key in KEYS:
        assert any(key.label in line and key.meaning in line for line in shown), key.label
    assert any("run folder  runs/mnist-deep" in line for line in shown)
    for sign in ("■ FP32", "□", "◆", "▲ AMP fp16", "● AMP bf16"):
        assert any(sign in line for line in shown), sign


@pytest.mark.parametrize("key", ["question_mark", "escape", "p", "x"])
def test_any_key_closes_help(key: str) -> None:
    assert Help("keys", KEYS).press(key, EMPTY_VIEW) == CLOSE


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_question_names_the_step_and_all_answers(size: tuple[int, int], *, attached: bool) -> None:
    shown = text(QuitQuestion(attached=attached), views.compared(), *size)
    for words in ("step 1,204", "Stop it", "checkpoint and journal are kept", "esc  go back"):
        assert words in shown
    assert "detach: close the screen, training continues" in shown


@pytest.mark.parametrize(
    ("attached", "first", "second"),
    [
        (False, "enter  stop after this step", "    d  detach"),
        (True, "enter  detach", "    y  stop the run for all screens"),
    ],
)
def test_what_enter_does_is_first_and_bold(first: str, second: str, *, attached: bool) -> None:
    canvas = drawn(QuitQuestion(attached=attached), views.compared())
    lines = canvas.lines()
    (y,) = (y for y, line in enumerate(lines) if first in line)
    assert second in lines[y + 1]
    assert canvas.styles[y, lines[y].index(first) + len("enter  ")] == Style.STRONG
    assert canvas.styles[y + 1, lines[y + 1].index(second) + len("enter  ")] == Style.TEXT


@pytest.mark.parametrize("attached", [False, True])
def test_the_question_during_a_pause_promises_no_training(*, attached: bool) -> None:
    shown = text(QuitQuestion(attached=attached), views.paused())
    assert "the run stays paused" in shown
    assert "training continues" not in shown


@pytest.mark.parametrize(
    ("key", "ours", "attached"),
    [
        ("enter", "stop", "detach"),
        ("y", "stop", "stop"),
        ("d", "detach", "detach"),
        ("escape", "", ""),
        ("n", "", ""),
        ("q", "", ""),
        ("ctrl+q", "", ""),
    ],
)
def test_only_a_clear_yes_stops(key: str, ours: str, attached: str) -> None:
    for is_attached, action in ((False, ours), (True, attached)):
        question = QuitQuestion(attached=is_attached)
        assert question.press(key, EMPTY_VIEW) == Answer(close=True, action=action)


@pytest.mark.parametrize("key", ["p", "space", "s", "esc"])
def test_another_key_leaves_the_question_open(key: str) -> None:
    assert QuitQuestion(attached=False).press(key, EMPTY_VIEW) == STAY


def test_the_menu_explains_every_precision_or_why_it_is_unsupported() -> None:
    run = views.run_started(unsupported={"tf32": "no TF32 on this GPU"})
    shown = lines(PrecisionMenu(views.compared()), replace(views.compared(), run=run))
    for name in PRECISIONS:
        meaning = "no TF32 on this GPU" if name == "tf32" else MEANINGS[name]
        assert any(meaning in line for line in shown)
    assert any("▸" in line and "AMP fp16" in line and "(now)" in line for line in shown)


@given(st.lists(st.sampled_from(["up", "down", "j", "k"])), st.sampled_from(PRECISIONS))
def test_arrows_move_through_the_menu_and_wrap_around(keys: list[str], now: str) -> None:
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


def test_before_the_first_record_the_menu_starts_at_its_first_line() -> None:
    assert PrecisionMenu(EMPTY_VIEW).press("enter", EMPTY_VIEW).precision == PRECISIONS[0]
