"""What is known of the terminal before anything is drawn on it."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from amptui.base.terminal import MAX_COLUMNS, MAX_LINES
from amptui.base.text import terminal_speaks_utf8

ASKS = """
import sys
from amptui.base.terminal import can_show_a_screen
print(can_show_a_screen(), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": ""}, False),
        ({"stdin": "null"}, False),
        ({"stdin": "closed"}, False),
        ({"stdout": "pipe"}, False),
    ],
    ids=str,
)
def test_the_screen_is_for_a_person_at_a_terminal(where: dict[str, str], *, wanted: bool) -> None:
    master, slave = pty.openpty()
    redirect = {"null": "< /dev/null", "closed": "<&-"}.get(where.get("stdin", ""), "")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {redirect}', sys.executable, ASKS],
        stdin=slave,
        stdout=subprocess.PIPE if "stdout" in where else slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": where.get("TERM", "xterm")},
        text=True,
        check=True,
    )
    os.close(master)
    os.close(slave)
    assert done.stderr.strip() == str(wanted)


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({}, True),
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "C.utf8"}, True),
        ({"LANG": "C"}, False),
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


SIZE = """
import sys
from amptui.base.terminal import terminal_size
print(*terminal_size(), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("terminal", "environment", "drawn"),
    [
        ((120, 40), {}, (120, 40)),
        ((120, 40), {"COLUMNS": "100", "LINES": "30"}, (100, 30)),
        ((120, 40), {"COLUMNS": "100000", "LINES": "100000"}, (120, 40)),
        ((0, 0), {"COLUMNS": "100000", "LINES": "100000"}, (MAX_COLUMNS, MAX_LINES)),
        ((60000, 60000), {}, (MAX_COLUMNS, MAX_LINES)),
        ((0, 0), {}, (80, 24)),
        ((120, 40), {"COLUMNS": "-5", "LINES": "x"}, (120, 40)),
    ],
)
def test_it_is_as_large_as_it_is_or_as_asked_but_never_larger(
    terminal: tuple[int, int], environment: dict[str, str], drawn: tuple[int, int]
) -> None:
    columns, lines = terminal
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    done = subprocess.run(
        [sys.executable, "-c", SIZE],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**kept, **environment},
        text=True,
        check=True,
    )
    os.close(master)
    os.close(slave)
    assert tuple(map(int, done.stderr.split())) == drawn
