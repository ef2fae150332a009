"""A notification reaches the terminal that shows it, whatever stands between, and says no more."""

import io

import pytest

from amptui.base.notification import MAX_CHARACTERS, notification, notify
from tests.poison import STEERING, is_plain

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
