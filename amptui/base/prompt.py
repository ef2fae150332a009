"""Writes lines to standard output and error, whose readers may be gone."""

import os
import sys
from typing import TextIO

from amptui.base.errors import OutputError
from amptui.base.text import NO_ROOM, fall_silent, inert_line, write_line


def replace_closed_streams() -> None:
    """Connect standard streams that are closed to /dev/null, so that no file we open takes their number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Python sets those to None. They stay open until the process ends.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def say(*lines: str, out: TextIO | None = None) -> None:
    """Write lines to ``out``, by default standard output. Raises ``OutputError``."""
    put("".join(inert_line(out or sys.stdout, line) for line in lines), out)


def put(text: str, out: TextIO | None = None) -> None:
    """Write ``text`` unchanged to ``out``, by default standard output; ignore a reader that is gone.

    Raises ``OutputError`` if there is no space for it.
    """
    out = out or sys.stdout
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        fall_silent(out)
        if error.errno in NO_ROOM:
            what = f"cannot write to standard output: {error.strerror}"
            raise OutputError(what, hint="free some space, or do not redirect the output there") from error


def show_traceback(text: str, *, prefix: str = "  ") -> None:
    """Write the lines of a traceback to standard error, each after ``prefix``: none looks like ours."""
    for line in text.splitlines():
        write_line(sys.stderr, f"{prefix}{line}")


def complain(text: str) -> None:
    """Write ``amptui: text`` to standard error."""
    write_line(sys.stderr, f"amptui: {text}")
