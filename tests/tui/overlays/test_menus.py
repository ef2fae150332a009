"""The help and the menu of precisions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import PRECISIONS
from amptui.telemetry.view import EMPTY_VIEW
from amptui.tui.keys import KEYS
from amptui.tui.overlays.menus import MEANINGS, TERMS, Help, PrecisionMenu
from amptui.tui.overlays.overlay import CLOSE, STAY
from tests.tui import views
from tests.tui.overlays.opened import lines


@pytest.mark.parametrize("size", [(80, 12), (80, 24), (120, 40)])
def test_help_lists_every_key_with_its_meaning_and_every_term(size: tuple[int, int]) -> None:
    overlay, view = Help("keys", KEYS), views.compared()
    shown = lines(overlay, view, *size)
    while overlay.press("pagedown", view) == STAY:
        page = lines(overlay, view, *size)
        if page[1:-1] == shown[-len(page) + 2 :]:
            break
        shown += page[1:-1]
    for key in KEYS:
        assert any(key.label in line and key.meaning in line for line in shown), key.label
    assert all(any(term in line and meaning in line for line in shown) for term, meaning in TERMS)
    assert any("run folder  runs/mnist-deep" in line for line in shown)
    for sign in ("■ FP32", "□", "◆", "▲ AMP fp16", "● AMP bf16"):
        assert any(sign in line for line in shown), sign


@pytest.mark.parametrize("columns", [50, 60, 70])
def test_a_narrow_help_wraps_what_does_not_fit(columns: int) -> None:
    shown = "".join(line.strip("│ ") for line in lines(Help("keys", KEYS), views.compared(), columns, 90))
    for meaning in (*(key.meaning for key in KEYS), *(meaning for _, meaning in TERMS)):
        assert meaning.replace(" ", "") in shown.replace(" ", "")


@pytest.mark.parametrize("key", ["question_mark", "escape", "p", "x"])
def test_any_key_closes_help(key: str) -> None:
    assert Help("keys", KEYS).press(key, EMPTY_VIEW) == CLOSE


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
    distance = sum(1 if key in ("down", "j") else -1 for key in keys)
    answer = menu.press("enter", view)
    assert answer.precision == PRECISIONS[(PRECISIONS.index(now) + distance) % len(PRECISIONS)]
    assert answer.close


def test_numbers_choose_and_others_do_nothing() -> None:
    view = views.fp32_only()
    for number, name in enumerate(PRECISIONS, 1):
        assert PrecisionMenu(view).press(str(number), view).precision == name
    for key in ("0", "8", "9", "²", "x"):
        assert PrecisionMenu(view).press(key, view) == STAY
    for key in ("escape", "m", "q"):
        assert PrecisionMenu(view).press(key, view) == CLOSE


def test_a_wide_screen_cuts_no_reason() -> None:
    reason = "NVIDIA A100-SXM4-80GB does not multiply float8, which needs compute capability 8.9"
    view = replace(views.compared(), run=views.run_started(unsupported={"fp8": reason}))
    wide, narrow = (lines(PrecisionMenu(view), view, *size) for size in ((120, 40), (80, 24)))
    assert any(reason in line for line in wide)
    assert not any(reason in line for line in narrow)


def test_before_the_first_record_the_menu_starts_at_its_first_line() -> None:
    assert PrecisionMenu(EMPTY_VIEW).press("enter", EMPTY_VIEW).precision == PRECISIONS[0]
