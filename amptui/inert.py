"""Text of others made harmless to show, and how a line of it is written.

Names, paths, messages and prints come from model files, journals, drivers and command lines. A terminal that
is sent them as they are obeys what they hide: it is recoloured, retitled, or given a clipboard to paste.
"""

from typing import TextIO
from unicodedata import category

MOST_MARKS = 3
"""Combining marks that one character keeps: Thai needs two, Hindi three; more climb into other lines."""

MOST_CHARACTERS = 10_000
"""Of a line: nobody reads more, and it keeps a terminal busy for seconds."""

INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0")
"""Hangul's fillers: letters by their category, blanks to the eye."""

_REPLACEMENT = "?"


def printable(text: str) -> str:
    """``text`` of the same length, with a ``?`` for each character that is no plain sign on the line.

    That is: control characters, and with them every escape sequence; line breaks; what turns the reading
    direction or has no width; halves of surrogate pairs; combining marks beyond `MOST_MARKS` in a row.
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if category(character).startswith("M") else 0
        inert = character.isprintable() and character not in INVISIBLE and marks <= MOST_MARKS
        shown.append(character if inert else _REPLACEMENT)
    return "".join(shown)


def write_line(out: TextIO | None, text: str) -> bool:
    """Write ``text`` to ``out`` as one line that every terminal may read; false where nobody reads any more.

    What the stream's encoding lacks becomes ``?``; a line that is longer than `MOST_CHARACTERS` is cut.
    ``out`` is None where a standard stream was closed before Python started.
    """
    if out is None:
        return False
    if len(text) > MOST_CHARACTERS:
        text = f"{text[: MOST_CHARACTERS - 1]}…"
    encoding = out.encoding or "utf-8"  # a stream in memory has none
    line = printable(text).encode(encoding, "replace").decode(encoding)
    try:
        out.write(f"{line}\n")
        out.flush()
    except OSError:
        return False
    return True
