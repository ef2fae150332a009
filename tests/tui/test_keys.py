"""The tables of keys: a key has one meaning on all screens, and the footer and a run have those that work."""

from collections import defaultdict

from amptui.records.answers import REQUEST_KINDS
from amptui.records.run import PRECISIONS
from amptui.reports.compare import compare_frame
from amptui.tui.canvas import Canvas
from amptui.tui.keys import KEYS, footer_hints, keys_of
from amptui.tui.overlays.menus import WORDS, Help
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.replay.screen import REPLAY_KEYS
from amptui.tui.run_list import frame as run_list
from tests.tui import views

TABLES = (KEYS, REPLAY_KEYS, run_list.KEYS, compare_frame.KEYS)

MOVES = {"up", "down", "left", "right", "home", "end", "pageup", "pagedown", "enter", "escape"}
"""Wherever something can be moved in, opened or left, these do that."""


def test_a_key_has_one_meaning_on_all_screens() -> None:
    actions = defaultdict(set)
    for table in TABLES:
        presses = [press for key in table for press in key.presses]
        assert len(presses) == len(set(presses))
        for key in table:
            for press in set(key.presses) - MOVES:
                actions[press].add(key.action.partition("(")[0])
    assert {press: names for press, names in actions.items() if len(names) > 1} == {}


def test_all_keys_stand_on_one_page_of_a_small_terminal_and_the_readme_s_first() -> None:
    canvas = Canvas(80, 24)
    Help("keys", KEYS, WORDS).draw(canvas, views.compared(), ScreenState())
    lines = [line for line in canvas.lines() if line.strip()]
    assert [line.split()[1] for line in lines[1:6]] == ["p", "c", "f", "x", "d"]
    assert "scroll" not in lines[-1]
    assert {label for key in KEYS for label in key.label.split()} <= set(" ".join(lines).split())


def test_the_footer_names_what_p_switches_to() -> None:
    unknown, in_amp = dict(footer_hints(KEYS)), dict(footer_hints(KEYS, switches_to="fp32"))
    assert (unknown["p"], in_amp["p"]) == ("AMP", "FP32")
    assert {**in_amp, "p": "AMP"} == unknown
    words = [dict(footer_hints(KEYS, switches_to=name))["p"] for name in PRECISIONS]
    assert words == ["FP32", "FP32 (TF32 off)", "TF32", "fp16", "bf16", "FP8", "FP8"]


def test_a_run_has_the_keys_of_what_it_takes() -> None:
    assert keys_of(REQUEST_KINDS) == KEYS
    left_out = {key.label for key in KEYS} - {key.label for key in keys_of(frozenset({"stop"}))}
    assert left_out == {"p", "space", "s", "m", "c", "x", "n"}
    assert {key.label for key in keys_of(frozenset({"precision"}))} >= {"p", "m", "d", "q"}
