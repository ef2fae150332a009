"""Makes untrusted text safe to print.

Names, paths, messages and output come from model files, journals, drivers and command lines. Escape sequences
in them could change the terminal's colours, its title or the clipboard.
"""

import errno
import os
import textwrap
from contextlib import suppress
from typing import TextIO
from unicodedata import category

MAX_MARKS = 3
"""Combining marks that one character keeps: Thai needs two, Hindi three; more would cover other lines."""

MAX_CHARACTERS = 10_000
"""Limit of a line: longer ones keep a terminal busy for seconds."""

INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0")
"""Hangul fillers: letters by category, but invisible."""

_REPLACEMENT = "?"

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a file that cannot grow; any other error of a stream means that its reader is gone."""


_LOCALE_NAMES = ("LC_ALL", "LC_CTYPE", "LANG")

ASCII_REPLACEMENTS = str.maketrans(
    "─│╭╮╰╯├┤┬┴┼━╸╺═▔▁▂▃▄▅▆▇█▏▰▱■░▒▓▞◆●○⚠✖✔×→←↑↓…·±°µ▸▾⏸▶⋮–—−≥≤",
    "-|+++++++++==-=-_..:::##|#.#-=%/*o0!xvx><^v~.~ u>v=>:---><",
)
"""One character for each, for terminals without UTF-8: no column moves."""


def one_line(text: str) -> str:
    """``text`` without line breaks, 500 characters at most."""
    return " ".join(text.split())[:500]


def wrapped(text: str, width: int | None, first: str = "", rest: str = "") -> list[str]:
    """``text`` in lines of ``width``, or in a single one, that begin so; words such as paths stay whole."""
    if width is None:
        return [first + text]
    fill = textwrap.TextWrapper(max(20, width), first, rest, break_long_words=False, break_on_hyphens=False)
    return fill.wrap(text) or [""]


def printable(text: str) -> str:
    """``text`` with a ``?`` for each character that could disturb the line; its length does not change.

    Those are control characters (and thus escape sequences), line breaks, invisible and bidirectional
    characters, lone surrogates, and combining marks beyond `MAX_MARKS` in a row.
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


def terminal_speaks_utf8() -> bool:
    """Whether the locale says so; true if it is not set, as in most containers.

    False on the Linux console, whose fonts have at most 512 glyphs (console_codes(4)), and no braille.
    """
    if os.environ.get("TERM") == "linux":
        return False
    locale = next((value for name in _LOCALE_NAMES if (value := os.environ.get(name))), "UTF-8")
    return "utf" in locale.lower()


def write_line(out: TextIO | None, text: str) -> bool:
    """Write ``text`` to ``out`` as one safe line; return False if its reader is gone.

    Characters that the stream cannot encode become ``?``; a line longer than `MAX_CHARACTERS` is cut.
    ``out`` is None if a standard stream was closed before Python started; a model may close it later.
    """
    if out is None or out.closed:
        return False
    try:
        out.write(inert_line(out, text))
        out.flush()
    except OSError as error:
        if error.errno in NO_ROOM:
            return True  # the rest stays in the stream's buffer and is written with the next line
        fall_silent(out)
        return False
    return True


def inert_line(out: TextIO, text: str) -> str:
    """``text`` as :func:`write_line` writes it, with its line break."""
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS - 1]}…"
    if not text.isascii() and out.isatty() and not terminal_speaks_utf8():
        text = text.translate(ASCII_REPLACEMENTS).encode("ascii", "replace").decode("ascii")
    encoding = out.encoding or "utf-8"  # a stream in memory has none
    return printable(text).encode(encoding, "replace").decode(encoding) + "\n"


def fall_silent(out: TextIO) -> None:
    """Discard what is buffered in ``out`` and everything written to it later: its reader is gone.

    Otherwise Python would write it again at exit, and print an error.
    """
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, out.fileno())
        os.close(nothing)
