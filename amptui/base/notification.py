"""A bell and a desktop notification as bytes of a terminal: what rings where somebody looks elsewhere."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

from amptui.base.text import printable

MAX_CHARACTERS = 160
"""Of a notification: desktops show two lines, and GNU screen takes at most 768 bytes of passthrough."""

_BEL = "\a"
_TITLE = "amptui"


def notification(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The bell and, where the terminal may know one, a notification that says ``text``; moves no cursor.

    One of two sequences, since terminals that know both would show both: OSC 777 for rxvt, foot and VTE; for
    all others OSC 9, which came with iTerm2. Passed through tmux (it needs ``allow-passthrough on``) and GNU
    screen. The Linux console and terminals of no known kind get the bell only.
    """
    environ = os.environ if environ is None else environ
    term = environ.get("TERM", "")
    if term in ("", "dumb", "linux"):
        return _BEL
    safe = printable(text)
    if len(safe) > MAX_CHARACTERS:
        safe = f"{safe[: MAX_CHARACTERS - 1]}…"
    if term.startswith(("rxvt", "foot")) or environ.get("VTE_VERSION"):
        command = f"\x1b]777;notify;{_TITLE};{safe}{_BEL}"
    else:
        # The title keeps a text that begins with digits from being one of ConEmu's commands, as 9;4.
        command = f"\x1b]9;{_TITLE}: {safe}{_BEL}"
    # For the terminal around a multiplexer. Over SSH, TERM alone tells of a tmux.
    if environ.get("TMUX") or term.startswith("tmux"):
        escaped = command.replace("\x1b", "\x1b\x1b")
        command = f"\x1bPtmux;{escaped}\x1b\\"
    elif environ.get("STY") or term.startswith("screen"):
        command = f"\x1bP{command}\x1b\\"
    return _BEL + command


def notify(out: TextIO, text: str) -> None:
    """Write the notification to ``out`` if that is a terminal, never to a pipe or a file."""
    with suppress(OSError, ValueError):  # whoever reads it is gone, or the stream was closed
        if out.isatty():
            encoding = out.encoding or "utf-8"
            out.write(notification(text).encode(encoding, "replace").decode(encoding))
            out.flush()
