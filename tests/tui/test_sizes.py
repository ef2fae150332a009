"""No surface of the screen cuts a word, a unit or a number, at any size from 40x12 to 200x60."""

import re
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from amptui.tui.canvas import Canvas, Cells, text_width
from tests.tui.surfaces import SURFACES

SIZES = [(40, 12), (60, 18), (80, 24), (100, 30), (120, 40), (160, 50), (200, 60)]

WORD = re.compile(r"\S*\w\S*")

draw_text, clear, wrap = Canvas.text, Canvas.clear, textwrap.wrap


class Text(NamedTuple):
    """A text that was drawn."""

    text: str
    row: Cells
    """The line of the canvas."""
    x: int
    whole: Cells
    """What the text looks like if nothing is cut."""

    @property
    def is_cut(self) -> bool:
        """Whether a word is there in part, or goes on beyond the edge: nothing says that there is more."""
        x, width = self.x, text_width(self.text.rstrip())
        if x < 0 or (x < len(self.row) < x + width and self.row[-1] != ord("…")):
            return True
        same, seen = np.zeros(len(self.whole), bool), self.row[x : x + len(self.whole)]
        same[: len(seen)] = seen == self.whole[: len(seen)]
        for word in WORD.finditer(self.text):
            start = text_width(self.text[: word.start()])
            visible = same[start : start + text_width(word[0])]
            if visible.any() and not visible.all():
                return True
        return False


def cut_by(draw: Callable[[Canvas], object], size: tuple[int, int]) -> list[str]:
    """The texts of which a word is cut: at an edge, by another text, or where a line is wrapped."""
    texts, broken = list[Text](), list[str]()

    def text_noted(canvas: Canvas, x: int, y: int, text: str, *rest: Any, **options: Any) -> int:
        end = draw_text(canvas, x, y, text, *rest, **options)
        if 0 <= y < canvas.height and text.strip():
            whole = Canvas(text_width(text), 1)
            draw_text(whole, 0, 0, text)
            if options.get("align") == "right":
                x += max(0, int(options.get("width") or 0) - text_width(text))
            texts.append(Text(text, canvas.chars[y], x, whole.chars[0]))
        return end

    def clear_noted(canvas: Canvas) -> None:
        """What a box over it covers is not cut."""

        def is_free(it: Text) -> bool:
            return not np.shares_memory(it.row[max(0, it.x) : max(0, it.x + len(it.whole))], canvas.chars)

        texts[:] = filter(is_free, texts)
        clear(canvas)

    def wrap_noted(text: str, width: int, **options: Any) -> list[str]:
        """A word that is longer than a line is broken."""
        lines, words = wrap(text, width, **options), text.replace("…", " ").split()
        for line in lines:
            last = (line.removesuffix("…").split() or [""])[-1]
            if not last.endswith(("-", "–", "—")) and not any(word.endswith(last) for word in words):
                broken.append(line)
        return lines

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Canvas, "text", text_noted)
        patch.setattr(Canvas, "clear", clear_noted)
        patch.setattr(textwrap, "wrap", wrap_noted)
        draw(Canvas(*size))
    return [*broken, *(it.text for it in texts if it.is_cut)]


@pytest.mark.ci
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_word_is_cut(size: tuple[int, int]) -> None:
    """Of the panels that are enlarged every seventh, at each size others."""
    enlarged = [name for name in SURFACES if name.startswith("enlarged")]
    others = [name for name in SURFACES if not name.startswith("enlarged")]
    names = [*others, *enlarged[SIZES.index(size) :: len(SIZES)]]
    assert {name: cut for name in names if (cut := cut_by(SURFACES[name], size))} == {}
