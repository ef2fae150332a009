"""Keys: whatever bytes a terminal sends, those that were pressed and nothing else; each with one meaning."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.message import Message

from amptui.records.answers import REQUEST_KINDS
from amptui.records.run import PRECISIONS
from amptui.tui.canvas import Canvas
from amptui.tui.keyboard import BackgroundReported, Keyboard
from amptui.tui.keys import KEYS, footer_hints, keys_of
from amptui.tui.overlays.menus import WORDS, Help
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.replay.screen import REPLAY_KEYS
from amptui.tui.run_list import frame as run_list
from tests.tui import views

LONG_SECONDS = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def names(heard: list[Message]) -> list[str]:
    return [message.key for message in heard if isinstance(message, events.Key)]


def pressed(*pieces: bytes, silence_seconds: float = LONG_SECONDS) -> list[str]:
    """The keys of pieces that arrive one right after the other, and then nothing."""
    clock = Clock()
    keyboard = Keyboard(clock)
    heard = [message for piece in pieces for message in keyboard.take(piece)]
    clock.now += silence_seconds
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
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\x1b\x03", ["escape", "ctrl+c"]),
        (b"\x1b[A\x1bOB\x1b[6~", ["up", "down", "pagedown"]),
        (b"\x1b[1;5A\x1b[3;2~", ["ctrl+up", "shift+delete"]),
        (b"\x1bOP\x1b[[A\x1b[11~", ["f1", "f1", "f1"]),
        (b"\x1bx\x1b q", ["q"]),  # with Alt there are none
        # Kitty's protocol: press, release, text.
        (b"\x1b[113u", ["q"]),
        (b"\x1b[113;1:3u\x1b[1;1:3A\x1b[27;1:3u", []),
        (b"\x1b[99;5u\x1b[113;;113u", ["ctrl+c", "q"]),
        (b"\x1b[27u\x1b[57376u", ["escape", "f13"]),
    ],
)
def test_keys(sent: bytes, keys: list[str]) -> None:
    assert pressed(sent) == keys


NO_KEYS = {
    "focus comes": b"\x1b[I",
    "a mouse's press": b"\x1b[<0;10;20M",
    "an old mouse report": b"\x1b[M !p",
    "urxvt's mouse report": b"\x1b[32;10;20M",
    "a size of its own": b"\x1b[48;99999;99999;1;1t",
    "a size of no digits": "\x1b[48;٣;٣;1;1t".encode(),
    "what it is": b"\x1b[?62;22;52c",
    "a colour": b"\x1b]11;rgb:1818/1818/2525\x07",
    "F18, of which the parser makes a space": b"\x1b[32~\x1b[113~",
    "a paste": b"\x1b[200~q\rp\x03\x1b[A\x1b[201~",
    "no code point": b"\x1b[1114112u",
    "more digits than an int may have": b"\x1b[" + b"9" * 5000 + b"u",
    "a string with no end": b"\x1b]0;" + b"q" * 5000,
}


@pytest.mark.parametrize("name", NO_KEYS)
def test_no_keys(name: str) -> None:
    assert not set(pressed(NO_KEYS[name])) & {press for key in KEYS for press in key.presses}
    assert pressed(NO_KEYS[name] + b"\x1b\\") == []


@pytest.mark.parametrize(
    ("begun", "silence_seconds", "after", "keys"),
    [
        (b"\x1b[1;", 2.0, b"q", ["q"]),
        (b"\x1b]0;title", 2.0, b"q", ["q"]),
        (b"\x1b[200~q\r", 2.0, b"q", ["q"]),
        (b"\x1b[", 1.0, b"A", ["up"]),
        (b"\x1b", 0.05, b"[A", ["up"]),
        (b"\x1b", 0.2, b"q", ["escape", "q"]),
    ],
    ids=["sequence", "string", "paste", "a late packet", "an early packet", "escape"],
)
def test_silence_ends_an_incomplete_sequence(
    begun: bytes, silence_seconds: float, after: bytes, keys: list[str]
) -> None:
    clock = Clock()
    keyboard = Keyboard(clock)
    heard = keyboard.take(begun)
    clock.now += silence_seconds
    assert names([*heard, *keyboard.expire(), *keyboard.take(after)]) == keys


def test_an_escape_is_a_key_while_an_answer_is_expected() -> None:
    clock = Clock()
    keyboard = Keyboard(clock)
    keyboard.expect_answer()
    assert names(keyboard.take(b"\x1b")) == []
    clock.now += 0.3
    assert names(keyboard.expire()) == []  # it may begin the answer
    clock.now += 5.0
    assert names(keyboard.expire()) == ["escape"]
    assert keyboard.answered.is_set()


@given(st.lists(st.integers(0, 60), max_size=8), st.sampled_from(["", "q", "l\x1b[A"]))
def test_no_piece_of_an_answer_is_a_key(cuts: list[int], keys: str) -> None:
    clock = Clock()
    keyboard = Keyboard(clock)
    keyboard.expect_answer()
    sent = keys.encode() + NO_KEYS["a colour"] + NO_KEYS["what it is"] + b"q"
    edges = [0, *sorted(cut for cut in cuts if len(keys) <= cut < len(sent)), len(sent)]
    heard: list[Message] = []
    for start, stop in pairwise(edges):
        heard += keyboard.take(sent[start:stop])
        clock.now += 0.55
        heard += keyboard.expire()
    assert names(heard) == [*pressed(keys.encode()), "q"]
    assert [it.background for it in heard if isinstance(it, BackgroundReported)] == ["dark"]
    assert keyboard.answered.is_set()


# ------------------------------------------------------------------------------------------- laws

NAMED = (
    *(b"\xff", b"\x9b", b"\xe9", b"\xe6\xbc", b"\xf0\x9f\x98", b"\xc0\x80", b"\xed\xa0\x80", b"\x00"),
    *(b"\x1b[113;1:3u", b"\x1b[1:3;5~", b"\x1b[;;u", b"\x1b[:u", b"\x1b[99999999999u", b"\x1b[1;1;99999999u"),
    *(b"\x1b[M\xff\xff\xff", b"\x1b[<;;M", b"\x1b[<99999999999;1;1M", b"\x1b[48;9999999;9999999;1;1t"),
    *(b"\x1b[200~" + b"\xff" * 100, b"\x1b]52;c;" + b"A" * 9000, b"\x1bP\x1b\x1b\x1b", b"\x1b" * 50),
    *NO_KEYS.values(),
)
"""Known to have ended a screen, or of the same kind."""

parameters = st.text(st.sampled_from("0123456789:;<?-$ "), max_size=20).map(str.encode)
sequences = st.builds(
    lambda opener, inside, end: opener + inside + end,
    st.sampled_from(
        [b"\x1b[", b"\x1bO", b"\x1b]", b"\x1bP", b"\x1b", b"\x9b", b"\xc2\x9b", b"\x1b[<", b"\x1b[M"]
    ),
    parameters,
    st.sampled_from([b"u", b"~", b"A", b"M", b"m", b"R", b"t", b"c", b"\x07", b"\x1b\\", b"$y", b""]),
)
mutated = st.builds(
    lambda sequence, at, what: (
        sequence[: at % (len(sequence) + 1)] + what + sequence[at % (len(sequence) + 1) + 1 :]
    ),
    st.sampled_from(NAMED),
    st.integers(0, 200),
    st.binary(max_size=3),
)
hostile = st.lists(st.one_of(st.binary(), st.sampled_from(NAMED), sequences, mutated)).map(b"".join)


@given(hostile)
def test_every_key_works_after_any_bytes_and_a_silence(sent: bytes) -> None:
    clock = Clock()
    keyboard = Keyboard(clock)
    for message in keyboard.take(sent):
        assert isinstance(message, Message)
    clock.now += LONG_SECONDS
    keyboard.expire()
    keyboard.expire()
    assert names(keyboard.take(b"q\x03\x1b[A")) == ["q", "ctrl+c", "up"]


@given(hostile, st.lists(st.integers(0, 400), max_size=8))
def test_how_bytes_are_cut_into_packets_does_not_matter(sent: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    pieces = [sent[start:stop] for start, stop in pairwise(edges)]
    assert pressed(*pieces) == pressed(sent)


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
