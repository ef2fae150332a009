"""Makes untrusted text safe to show, and writes lines of it.

Names, paths, messages and prints come from model files, journals, drivers and command lines. Sent to a
terminal unchanged, escape sequences in them could change its colours, its title or the clipboard.
"""

import errno
import os
from contextlib import suppress
from typing import TextIO
from unicodedata import category

MAX_MARKS = 3
"""Combining marks that one character keeps: Thai needs two, Hindi three; more climb into other lines."""

MAX_CHARACTERS = 10_000
"""Of a line: nobody reads more, and it keeps a terminal busy for seconds."""

INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0")
"""Hangul's fillers: letters by their category, blanks to the eye."""

_REPLACEMENT = "?"

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a file says that cannot grow; all else that a stream says means that nobody reads it any more."""


def printable(text: str) -> str:
    """``text`` of the same length, with a ``?`` for each character that is no plain sign on the line.

    That is: control characters, and with them every escape sequence; line breaks; what turns the reading
    direction or has no width; halves of surrogate pairs; combining marks beyond `MAX_MARKS` in a row.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if category(character).startswith("M") else 0
        inert = character.isprintable() and character not in INVISIBLE and marks <= MAX_MARKS
        shown.append(character if inert else _REPLACEMENT)
    return "".join(shown)


def write_line(out: TextIO | None, text: str) -> bool:
    """Write ``text`` to ``out`` as one line that every terminal may read; false where nobody reads any more.

    What the stream's encoding lacks becomes ``?``; a line that is longer than `MAX_CHARACTERS` is cut.
    ``out`` is None where a standard stream was closed before Python started.
    """
    if out is None:
        return False
    try:
        out.write(inert_line(out, text))
        out.flush()
    except OSError as error:
        if error.errno in NO_ROOM:
            return True  # what could not be written stays in the stream, and comes with the next line
        fall_silent(out)
        return False
    return True


def inert_line(out: TextIO, text: str) -> str:
    """``text`` as :func:`write_line` writes it, with its line break."""
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS - 1]}…"
    encoding = out.encoding or "utf-8"  # a stream in memory has none
    return printable(text).encode(encoding, "replace").decode(encoding) + "\n"


def fall_silent(out: TextIO) -> None:
    """Nobody reads ``out`` any more: what is still in it goes nowhere.

    Otherwise it would be tried again, and complained about, at the interpreter's end.
    """
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, out.fileno())
        os.close(nothing)
