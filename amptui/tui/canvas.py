"""A grid of characters and styles that panels draw on, and its changes since the last frame.

Panels write to numpy arrays and do not know Textual: tests read the lines back. One widget then sends only
the cells that changed, because over SSH the bytes are the cost of a frame: Textual's compositor sends whole
spans of a widget that has changed, 14.4 KB/s for frames that take 1.7 so.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal
from unicodedata import category, normalize

import numpy as np
import numpy.typing as npt
from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.style import Style as RichStyle

from amptui.base.text import ASCII_REPLACEMENTS, INVISIBLE, MAX_CHARACTERS
from amptui.tui.style import STYLES, Style

BLANK = ord(" ")
"""The character of an empty cell."""

CONTINUED = 0
"""The second cell of a character that is two cells wide."""

BRAILLE = 0x2800
"""From here on 256 characters are dots of curves."""

_LAST_ASCII = 0x7E

_REPLACEMENT = "?"

_MAX_CACHED_CHARACTERS = 200
"""Longer texts are drawn too seldom to keep their cells."""

_JOIN_WITHIN = 6
"""Moving the cursor takes about as many bytes as so many unchanged cells."""

Cells = npt.NDArray[np.uint32]

_LETTERS = {0x1F1E6 + i: chr(ord("A") + i) for i in range(26)}
"""Regional indicators as plain letters: terminals disagree on the width of flags."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A part of the screen, in cells."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Span:
    """Cells ``[start, stop)`` of one line."""

    y: int
    start: int
    stop: int


class Canvas:
    """A grid of ``height`` by ``width`` cells; drawing outside of it is clipped."""

    def __init__(self, width: int, height: int) -> None:
        self.chars: npt.NDArray[np.uint32] = np.full((height, width), BLANK, np.uint32)
        self.styles: npt.NDArray[np.uint8] = np.zeros((height, width), np.uint8)

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.chars.shape[1])

    @property
    def height(self) -> int:
        """Lines."""
        return int(self.chars.shape[0])

    def part(self, rect: Rect) -> "Canvas":
        """The canvas of ``rect``, clipped to this one. They share their cells."""
        x, y = max(0, rect.x), max(0, rect.y)
        part = object.__new__(Canvas)
        part.chars = self.chars[y : max(y, rect.y + rect.height), x : max(x, rect.x + rect.width)]
        part.styles = self.styles[y : max(y, rect.y + rect.height), x : max(x, rect.x + rect.width)]
        return part

    def rows(self, y: int, height: int | None = None) -> "Canvas":
        """The canvas of ``height`` whole lines from line ``y`` on, or of all lines from there."""
        return self.part(Rect(0, y, self.width, self.height - y if height is None else height))

    def columns(self, x: int, width: int | None = None) -> "Canvas":
        """The canvas of ``width`` whole columns from column ``x`` on, or of all columns from there."""
        return self.part(Rect(x, 0, self.width - x if width is None else width, self.height))

    def copy(self) -> "Canvas":
        """A canvas with the same cells, not shared."""
        copied = Canvas(self.width, self.height)
        copied.put(self)
        return copied

    def put(self, other: "Canvas") -> None:
        """Copy the cells of ``other``, of the same size."""
        self.chars[...] = other.chars
        self.styles[...] = other.styles

    def clear(self) -> None:
        """Blank every cell."""
        self.chars.fill(BLANK)
        self.styles.fill(Style.TEXT)

    def text(
        self,
        x: int,
        y: int,
        text: str,
        style: int = Style.TEXT,
        *,
        width: int | None = None,
        align: Literal["left", "right"] = "left",
    ) -> int:
        """Write ``text`` at column ``x`` of line ``y``; return the column after it.

        With ``width`` the text is cut (the last cell becomes ``…``) or padded to that many cells. Characters
        that could control the terminal or move columns are replaced: see `_cells`.
        """
        cells = _cells(text, width, align)
        end = x + len(cells)
        left, right = max(0, x), min(end, self.width)
        if 0 <= y < self.height and left < right:
            row = self.chars[y]
            _cut_wide(row, left, right)
            row[left:right] = cells[left - x : right - x]
            if row[left] == CONTINUED:
                row[left] = BLANK
            if right < end and cells[right - x] == CONTINUED:
                row[right - 1] = BLANK
            self.styles[y, left:right] = style
        return end

    def fill(self, rect: Rect, character: str, style: int = Style.TEXT) -> None:
        """Set every cell of ``rect`` to one character of one cell."""
        part = self.part(rect)
        if part.width:
            left = max(0, rect.x)
            for row in self.chars[max(0, rect.y) :][: part.height]:
                _cut_wide(row, left, left + part.width)
        part.chars[...] = ord(character)
        part.styles[...] = style

    def make_ascii(self) -> None:
        """Put an ASCII character into every other cell, for terminals without UTF-8.

        Once all is drawn: nobody who draws need know.
        """
        chars = self.chars
        chars[chars == CONTINUED] = ord(_REPLACEMENT)
        dots = (chars >= BRAILLE) & (chars < BRAILLE + 256)
        chars[dots] = np.where(self.styles[dots] == Style.DIM, ord("."), ord("*"))
        for other in np.unique(chars[chars > _LAST_ASCII]).tolist():
            chars[chars == other] = ASCII_REPLACEMENTS.get(other, ord(_REPLACEMENT))

    def lines(self) -> list[str]:
        """The lines as text, with all blanks."""
        return [self.line_text(y, 0, self.width) for y in range(self.height)]

    def line_text(self, y: int, start: int, stop: int) -> str:
        """Cells ``[start, stop)`` of line ``y`` as text."""
        row = self.chars[y, start:stop]
        return str(row[row != CONTINUED].astype("<u4").tobytes(), "utf-32-le")

    def runs(self, y: int) -> Iterator[tuple[str, int]]:
        """Line ``y`` as texts of one style each."""
        styles = self.styles[y]
        edges = np.flatnonzero(np.diff(styles)) + 1
        for start, stop in pairwise([0, *edges.tolist(), len(styles)]):
            if start < stop:
                yield self.line_text(y, start, stop), int(styles[start])

    def changes_since(self, previous: "Canvas") -> list[Span]:
        """The spans that differ from ``previous`` (of the same size), near ones joined.

        No span begins or ends within a wide character of either canvas.
        """
        recoloured = (self.styles != previous.styles) & (self.chars != BLANK)  # a blank's colour is not seen
        different = (self.chars != previous.chars) | recoloured
        second_half = ((self.chars == CONTINUED) | (previous.chars == CONTINUED))[:, 1:]
        different[:, 1:] |= different[:, :-1] & second_half
        different[:, :-1] |= different[:, 1:] & second_half
        lines, columns = different.nonzero()
        if not len(lines):
            return []
        # Positions in one sequence, with lines so far apart that no span joins the next line's.
        apart = lines * (self.width + _JOIN_WITHIN + 1) + columns
        breaks = (apart[1:] - apart[:-1] > _JOIN_WITHIN + 1).nonzero()[0]
        first, last = np.append(0, breaks + 1), np.append(breaks, len(lines) - 1)
        edges = zip(lines[first].tolist(), columns[first].tolist(), columns[last].tolist(), strict=True)
        return [Span(y, start, end + 1) for y, start, end in edges]


def _cut_wide(row: npt.NDArray[np.uint32], left: int, right: int) -> None:
    """Blank the other halves of wide characters before ``[left, right)`` is overwritten.

    A remaining half would make the line longer or shorter than the canvas.
    """
    if left > 0 and row[left] == CONTINUED:
        row[left - 1] = BLANK
    if right < len(row) and row[right] == CONTINUED:
        row[right] = BLANK


def _cells(text: str, width: int | None = None, align: str = "left") -> Cells:
    """One code point for each cell; a wide character is followed by ``CONTINUED``. Read-only: it is cached.

    Control characters become ``?``. Marks that cannot be composed with their letter are left out: a cell has
    one code point, and terminals disagree on the width of marks. ``width`` sets the number of cells.
    """
    if len(text) > _MAX_CACHED_CHARACTERS:
        return _new_cells(text[:MAX_CHARACTERS], width, align)  # no screen is as wide
    return _cached_cells(text, width, align)


def _new_cells(text: str, width: int | None, align: str) -> Cells:
    if text.isascii() and text.isprintable():
        cells = list(text.encode("ascii"))
    else:
        text = normalize("NFC", text).translate(_LETTERS)
        cells = [cell for character in text for cell in _cells_of(character)]
    return np.array(cells if width is None else _fitted(cells, width, align), np.uint32)


_cached_cells = lru_cache(maxsize=4096)(_new_cells)
"""Most texts of a frame were in the one before."""


@lru_cache(maxsize=4096)
def _cells_of(character: str) -> tuple[int, ...]:
    """The cells of one character: none, one or two."""
    size = 0 if category(character).startswith("M") else get_character_cell_size(character)
    if not character.isprintable() or character in INVISIBLE:
        return (ord(_REPLACEMENT),) * max(1, size)
    return (ord(character), *[CONTINUED] * (size - 1)) if size else ()


def _fitted(cells: list[int], width: int, align: str) -> list[int]:
    """Cut or pad ``cells`` to ``width``."""
    if len(cells) <= width:
        pad = [BLANK] * (width - len(cells))
        return pad + cells if align == "right" else cells + pad
    if width <= 0:
        return []
    cut = cells[: width - 1]
    if cells[width - 1] == CONTINUED and cut:
        cut[-1] = BLANK
    return [*cut, ord("…")]


def text_width(text: str) -> int:
    """How many cells ``text`` takes on a canvas."""
    if text.isascii() and text.isprintable():
        return min(len(text), MAX_CHARACTERS)
    return len(_cells(text))


_ESCAPE = "\x1b["


class Painter:
    """Turns spans of a canvas into cursor moves, colours and characters.

    ``styles`` are those of the terminal; with ``no_color`` only bold is left of them.
    """

    def __init__(self, styles: Mapping[int, RichStyle] = STYLES, *, no_color: bool = False) -> None:
        self._styles = {
            style: rich_style.without_color if no_color else rich_style
            for style, rich_style in styles.items()
        }
        self._changes: dict[tuple[int, int], str] = {}

    def paint(self, canvas: Canvas, spans: Iterable[Span]) -> str:
        """What to write to show ``spans``. No colour is set at its end."""
        pieces: list[str] = []
        style, line, column = int(Style.TEXT), -1, 0
        for span in spans:
            if span.y == line and span.start > column:
                pieces.append(f"{_ESCAPE}{span.start - column}C")
            else:
                pieces.append(f"{_ESCAPE}{span.y + 1};{span.start + 1}H")
            line, column = span.y, span.stop
            chars = canvas.chars[span.y, span.start : span.stop].tolist()
            styles = canvas.styles[span.y, span.start : span.stop].tolist()
            for char, char_style in zip(chars, styles, strict=True):
                if char == CONTINUED:
                    continue
                # The colour of a blank is not seen.
                if char_style != style and char != BLANK:
                    pieces.append(self._change(style, char_style))
                    style = char_style
                pieces.append(chr(char))
        if style != Style.TEXT:
            pieces.append(f"{_ESCAPE}m")
        return "".join(pieces)

    def _change(self, before: int, after: int) -> str:
        """The shortest code that turns one style into another."""
        if (before, after) not in self._changes:
            old, new = self._styles[before], self._styles[after]
            sheds = (old.bold and not new.bold) or (old.color is not None and new.color is None)
            codes = _codes(new)
            change = "" if codes == _codes(old) else f"{_ESCAPE}{'0;' if sheds and codes else ''}{codes}m"
            self._changes[before, after] = change
        return self._changes[before, after]


def _codes(rich_style: RichStyle) -> str:
    """The SGR codes of a style, as ``1;33``; empty for plain text."""
    rendered = rich_style.render("x", color_system=ColorSystem.EIGHT_BIT)
    return rendered[len(_ESCAPE) : rendered.index("m")] if rendered.startswith(_ESCAPE) else ""
