"""Turns changed cells into as few bytes as a terminal needs to show them.

Textual's compositor writes a line from its first column to the last changed one, with a reset after each
colour.
"""

from collections.abc import Iterable, Mapping

from rich.color import ColorSystem
from rich.style import Style as RichStyle

from amptui.tui.canvas import BLANK, CONTINUED, Canvas, Span
from amptui.tui.style import STYLES, Style

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
