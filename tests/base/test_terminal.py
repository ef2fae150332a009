"""What is known of the terminal before anything is drawn on it, and how it is told something."""

import io
import os
import pty
import sys
from typing import TextIO

import pytest

from amptui.base.notification import MAX_CHARACTERS, notification, notify
from amptui.base.terminal import MAX_COLUMNS, MAX_LINES, can_show_a_screen, terminal_size
from amptui.base.text import terminal_speaks_utf8
from tests.poison import STEERING, is_plain


@pytest.mark.parametrize(
    ("term", "stdin", "stdout", "wanted"),
    [
        ("xterm", "terminal", "terminal", True),
        ("dumb", "terminal", "terminal", False),
        ("xterm", "null", "terminal", False),
        ("xterm", "closed", "terminal", False),
        ("xterm", "terminal", "null", False),
    ],
)
def test_the_screen_is_for_a_person_at_a_terminal(
    term: str, stdin: str, stdout: str, monkeypatch: pytest.MonkeyPatch, *, wanted: bool
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(master), os.fdopen(slave) as terminal, open(os.devnull) as null:  # noqa: PTH123
        streams: dict[str, TextIO | None] = {"terminal": terminal, "null": null, "closed": None}
        monkeypatch.setattr(sys, "stdin", streams[stdin])
        monkeypatch.setattr(sys, "stdout", streams[stdout])
        monkeypatch.setenv("TERM", term)
        assert can_show_a_screen() is wanted


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({}, True),
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "POSIX"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "de_DE.ISO-8859-1", "LC_ALL": ""}, False),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, False),
    ],
    ids=str,
)
def test_the_locale_says_whether_the_terminal_speaks_utf8(
    environment: dict[str, str], *, speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert terminal_speaks_utf8() is speaks


@pytest.mark.parametrize(
    ("terminal", "environment", "drawn"),
    [
        ((120, 40), {}, (120, 40)),
        ((120, 40), {"COLUMNS": "100", "LINES": "30"}, (100, 30)),
        ((120, 40), {"COLUMNS": "100000", "LINES": "100000"}, (120, 40)),
        ((0, 0), {"COLUMNS": "100000", "LINES": "100000"}, (MAX_COLUMNS, MAX_LINES)),
        ((0, 0), {}, (80, 24)),
        (None, {}, (80, 24)),
        ((120, 40), {"COLUMNS": "-5", "LINES": "x"}, (120, 40)),
    ],
)
def test_it_is_as_large_as_it_is_or_as_asked_but_never_larger(
    terminal: tuple[int, int] | None,
    environment: dict[str, str],
    drawn: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def size_of(_descriptor: int) -> os.terminal_size:
        if terminal is None:
            raise OSError
        return os.terminal_size(terminal)

    monkeypatch.setattr(os, "get_terminal_size", size_of)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert terminal_size() == drawn


# ------------------------------------------------------------------------------------ notifications
OSC_9 = "\x1b]9;amptui: done\x07"
OSC_777 = "\x1b]777;notify;amptui;done\x07"


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"TERM": "xterm-256color"}, OSC_9),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, OSC_777),
        ({"TERM": "rxvt-unicode-256color"}, OSC_777),
        ({"TERM": "screen-256color", "TMUX": "tmux,1,0"}, f"\x1bPtmux;\x1b{OSC_9}\x1b\\"),
        ({"TERM": "screen.xterm-256color"}, f"\x1bP{OSC_9}\x1b\\"),
        ({"TERM": "linux"}, ""),
        ({"TERM": "dumb"}, ""),
        ({}, ""),
    ],
)
def test_each_terminal_gets_the_bell_and_the_one_sequence_that_it_may_know(
    environ: dict[str, str], command: str
) -> None:
    assert notification("done", environ) == f"\a{command}"


def test_no_text_ends_the_sequence_or_begins_another() -> None:
    for text in (*STEERING, "\x07", "a\x1b\\b", "long " * 1000):
        said = notification(text, {"TERM": "xterm"})
        body = said.removeprefix("\a\x1b]9;amptui: ").removesuffix("\a")
        assert len(said) - len(body) == len(OSC_9) - len("done") + 1
        assert all(is_plain(sign) for sign in body)
        assert 0 < len(body) <= MAX_CHARACTERS


def test_a_stream_that_is_no_terminal_gets_nothing() -> None:
    out = io.StringIO()
    notify(out, "done")
    assert out.getvalue() == ""
