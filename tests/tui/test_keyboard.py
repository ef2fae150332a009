"""Keys: whatever bytes a terminal sends, those that were pressed and nothing else; each with one meaning."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest
import textual._parser
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.message import Message

from amptui.records.answers import REQUEST_KINDS
from amptui.records.run import PRECISIONS
from amptui.tui.canvas import Canvas
from amptui.tui.keys import KEYS, footer_hints, keys_of
from amptui.tui.overlays.help import Help
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.replay import REPLAY_KEYS
from amptui.tui.run_list import frame as run_list
from amptui.tui.terminal_driver import BackgroundReported, Keyboard
from tests.loops.clock import Clock
from tests.tui import views

LONG_SECONDS = 60.0


@pytest.fixture(scope="module")
def clock() -> Iterator[Clock]:
    """That of the keyboard and of Textual's parser."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textual._parser, "get_time", clock)
        yield clock


def names(heard: list[Message]) -> list[str]:
    return [message.key for message in heard if isinstance(message, events.Key)]


def pressed(clock: Clock, *pieces: bytes) -> list[str]:
    """The keys of pieces that arrive one right after the other, and then nothing."""
    keyboard = Keyboard(clock)
    heard = [message for piece in pieces for message in keyboard.take(piece)]
    clock.now += LONG_SECONDS
    return names(heard + keyboard.expire())


# ------------------------------------------------------------------------------------ what keys are


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"?", ["question_mark"]),
        (b"\x03", ["ctrl+c"]),
        (b"\r\t\x7f", ["enter", "tab", "backspace"]),
        ("é漢".encode(), ["é", "漢"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A\x1bOB\x1b[6~", ["up", "down", "pagedown"]),
        (b"\x1b[99;5u\x1b[113;;113u", ["ctrl+c", "q"]),  # Kitty's protocol
    ],
)
def test_keys(sent: bytes, keys: list[str], clock: Clock) -> None:
    assert pressed(clock, sent) == keys
    assert pressed(clock, sent[:1], sent[1:]) == keys


DA1, COLOUR = b"\x1b[?62;22;52c", b"\x1b]11;rgb:1818/1818/2525\x07"

NO_KEYS = {
    "focus comes": b"\x1b[I",
    "a mouse's press": b"\x1b[<0;10;20M",
    "an answer about pictures": b"\x1b_Gi=1;OK\x1b\\",
    "a size of its own": b"\x1b[48;99999;99999;1;1t",
    "what it is": DA1,
    "a colour": COLOUR,
    "a title": b"\x1b]0;q pcs\x1b\\",
    "a paste": b"\x1b[200~q\rp\x03\x1b[201~",
}


@pytest.mark.parametrize("name", NO_KEYS)
def test_no_keys(name: str, clock: Clock) -> None:
    assert pressed(clock, NO_KEYS[name]) == []


def test_an_escape_is_a_key_while_an_answer_is_expected(clock: Clock) -> None:
    keyboard = Keyboard(clock)
    keyboard.expect_answer()
    assert names(keyboard.take(b"\x1b")) == []
    clock.now += 0.3
    assert names(keyboard.expire()) == []  # it may begin the answer
    clock.now += 5.0
    keyboard.expire()
    clock.now += 0.3
    assert names(keyboard.expire()) == ["escape"]
    assert keyboard.answered.is_set()


@given(st.lists(st.integers(0, 60), max_size=8), st.sampled_from(["", "q", "l\x1b[A"]))
def test_no_piece_of_an_answer_is_a_key(clock: Clock, cuts: list[int], keys: str) -> None:
    keyboard = Keyboard(clock)
    keyboard.expect_answer()
    sent = keys.encode() + COLOUR + DA1 + b"q"
    edges = [0, *sorted(cut for cut in cuts if len(keys) <= cut < len(sent)), len(sent)]
    heard: list[Message] = []
    for start, stop in pairwise(edges):
        heard += keyboard.take(sent[start:stop])
        clock.now += 0.5
        heard += keyboard.expire()
    assert names(heard) == [*pressed(clock, keys.encode()), "q"]
    assert [it.background for it in heard if isinstance(it, BackgroundReported)] == ["dark"]
    assert keyboard.answered.is_set()


BROKEN = (
    *(b"\xff", b"\x9b", b"\xe6\xbc", b"\xed\xa0\x80", b"\x00", b"\x1bP\x1b\x1b\x1b", b"\x1b" * 50, b"\x1b[M"),
    *(b"\x1b[1114112u", b"\x1b[" + b"9" * 5000 + b"u", b"\x1b[:u", b"\x1b[1;1;99999999u", b"\x1b[1:3;5~"),
    *("\x1b[48;٣;٣;1;1t".encode(), b"\x1b[<;;M", b"\x1b[48;9999999;9999999;1;1t", b"\x1b]0;" + b"q" * 5000),
    *(b"\x1b[200~", b"\x1b[200~q\x1b[201"),
)
"""Known to have ended a screen, or of the same kind."""


@given(st.lists(st.binary(max_size=9) | st.sampled_from(BROKEN)).map(b"".join))
def test_every_key_works_after_any_bytes_and_a_silence(clock: Clock, sent: bytes) -> None:
    keyboard = Keyboard(clock)
    keyboard.take(sent)
    clock.now += LONG_SECONDS
    keyboard.expire()
    assert names(keyboard.take(b"q\x03\x1b[A"))[-3:] == ["q", "ctrl+c", "up"]


# ------------------------------------------------------------------------------- the tables of keys
TABLES = (KEYS, REPLAY_KEYS, run_list.KEYS)

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
    Help("keys", KEYS, glossary=True).draw(canvas, views.compared(), ScreenState())
    lines = [line for line in canvas.lines() if line.strip()]
    assert [line.split()[1] for line in lines[1:6]] == ["p", "c", "f", "x", "d"]
    assert {label for key in KEYS for label in key.label.split()} <= set(" ".join(lines).split())


def test_the_footer_names_what_p_switches_to() -> None:
    unknown, in_amp = dict(footer_hints(KEYS)), dict(footer_hints(KEYS, switches_to="fp32"))
    assert (unknown["p"], in_amp["p"]) == ("AMP", "FP32")
    assert {**in_amp, "p": "AMP"} == unknown
    words = [dict(footer_hints(KEYS, switches_to=name))["p"] for name in PRECISIONS]
    assert words == ["FP32", "FP32 (TF32 off)", "TF32", "fp16", "bf16", "FP8"]


def test_a_run_has_the_keys_of_what_it_takes() -> None:
    assert keys_of(REQUEST_KINDS) == KEYS
    left_out = {key.label for key in KEYS} - {key.label for key in keys_of(frozenset({"stop"}))}
    assert left_out == {"p", "space", "s", "m", "c", "x", "n"}
    assert {key.label for key in keys_of(frozenset({"precision"}))} >= {"p", "m", "d", "q"}
