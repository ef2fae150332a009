"""Finds words that a drawing cuts: at an edge, at a width, by another text, or where a line is wrapped."""

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from amptui.tui.canvas import Canvas, text_width

_WORD = re.compile(r"\S*\w\S*")


class _Text(NamedTuple):
    """A text that was written: in which cells, from which column on."""

    text: str
    cells: npt.NDArray[np.uint32]
    """The line of the canvas."""
    x: int
    drawn: npt.NDArray[np.uint32]
    """What it looks like if nothing is cut."""


class Search:
    """What was written since :func:`searching` began."""

    def __init__(self) -> None:
        self._texts: list[_Text] = []
        self._broken: list[str] = []

    def add(self, canvas: Canvas, x: int, y: int, text: str) -> None:
        """Note that ``text`` is written."""
        if not 0 <= y < canvas.height or not text.strip():
            return
        whole = Canvas(text_width(text), 1, ascii_only=canvas.ascii_only)
        Search.write(whole, 0, 0, text)
        self._texts.append(_Text(text, canvas.chars[y], x, whole.chars[0]))

    def add_wrapped(self, text: str, lines: list[str]) -> None:
        """Note words of ``text`` that are broken in two lines because they are longer than one."""
        words = set(text.split())
        for line in lines:
            last = (line.removesuffix("…").split() or [""])[-1]
            if not last.endswith(("-", "–", "—")) and not any(word.endswith(last) for word in words):
                self._broken.append(f"{text} -> {line}|")

    def forget(self, canvas: Canvas) -> None:
        """What a box over it covers is not cut: drop the texts of which ``canvas`` has a part."""
        self._texts = [text for text in self._texts if not np.shares_memory(_cells_of(text), canvas.chars)]

    def cut(self) -> list[str]:
        """The texts of which a part of a word is missing, each with what is seen of it."""
        return [*self._broken, *filter(None, (_seen(text) for text in self._texts))]

    write = staticmethod(Canvas.text)


def _cells_of(written: _Text) -> npt.NDArray[np.uint32]:
    """The cells that the text takes on the canvas."""
    return written.cells[max(0, written.x) : max(0, written.x + len(written.drawn))]


def _seen(written: _Text) -> str:
    """``text -> what is seen of it``; empty if each of its words is there as a whole or not at all.

    One that goes on beyond the edge of its canvas is cut as well: nothing says that there is more.
    """
    text, row, x, drawn = written
    seen = "".join(chr(c) for c in row[max(0, x) : max(0, x) + len(drawn)] if c)
    width = text_width(text.rstrip())
    if x < 0 or (x < len(row) < x + width and row[-1] != ord("…")):
        return f"{text} -> {seen}|"
    inside = slice(max(0, -x), max(0, min(len(drawn), len(row) - x)))
    same = np.zeros(len(drawn), bool)
    same[inside] = row[x + inside.start : x + inside.stop] == drawn[inside]
    for word in _WORD.finditer(text):
        start = text_width(text[: word.start()])
        visible = same[start : start + text_width(word[0])]
        if visible.any() and not visible.all():
            return f"{text} -> {seen}|"
    return ""


@contextmanager
def searching() -> Iterator[Search]:
    """Note every text that is drawn or wrapped within."""
    search, wrap, clear = Search(), textwrap.wrap, Canvas.clear

    def text_noted(canvas: Canvas, x: int, y: int, text: str, *rest: Any, **options: Any) -> int:
        end = Search.write(canvas, x, y, text, *rest, **options)
        begin = x
        if options.get("align") == "right":
            begin += max(0, int(options.get("width") or 0) - text_width(text))
        search.add(canvas, begin, y, text)
        return end

    def clear_noted(canvas: Canvas) -> None:
        search.forget(canvas)
        clear(canvas)

    def wrap_noted(text: str, width: int, **options: Any) -> list[str]:
        lines = wrap(text, width, **options)
        search.add_wrapped(text, lines)
        return lines

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Canvas, "text", text_noted)
        patch.setattr(Canvas, "clear", clear_noted)
        patch.setattr(textwrap, "wrap", wrap_noted)
        yield search
