"""Lines for a person at the prompt, on streams whose other end may be gone."""

import os
import sys
from typing import TextIO

from amptui.errors import OutputError
from amptui.inert import NO_ROOM, fall_silent, inert_line, write_line


def replace_closed_streams() -> None:
    """Let standard streams that were closed before we started lead nowhere, and not into files of ours."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Python has none for those. They live as long as the process.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def say(*lines: str) -> None:
    """Write lines to standard output. Raises ``OutputError``."""
    put("".join(inert_line(sys.stdout, line) for line in lines))


def put(text: str, out: TextIO | None = None) -> None:
    """Write ``text`` as it is, to standard output if not told otherwise; a reader that is gone is no trouble.

    Raises ``OutputError`` where there is no room for it.
    """
    out = out or sys.stdout
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        fall_silent(out)
        if error.errno in NO_ROOM:
            what = f"standard output cannot be written: {error.strerror}"
            raise OutputError(what, mend="make room there, or leave out the redirection") from error


def complain(text: str) -> None:
    """Write ``amptui: text`` to standard error."""
    write_line(sys.stderr, f"amptui: {text}")
