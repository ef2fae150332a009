"""Lines of words in several styles, and what to leave out if a line is too narrow."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from amptui.tui.canvas import Canvas, text_width
from amptui.tui.renderables.gauges import draw_bar, draw_progress
from amptui.tui.style import Style

GAP = 2
"""Blanks between two phrases."""


class Word(NamedTuple):
    """Text in one style."""

    text: str
    style: int = Style.TEXT


class Gauge(NamedTuple):
    """A bar within a line: blocks for a fill level, a thin line for progress."""

    width: int
    fraction: float | None
    style: int
    kind: Literal["full", "progress"] = "progress"


class Phrase(NamedTuple):
    """Words that are shown together or not at all; the lowest ``rank`` matters most."""

    words: tuple[Word | Gauge, ...]
    rank: int = 0
    goes_on: bool = False
    """Whether its sentence continues on the next line."""

    @property
    def width(self) -> int:
        """How many cells the words take."""
        return sum(word.width if isinstance(word, Gauge) else text_width(word.text) for word in self.words)


Line: TypeAlias = list[Phrase]
"""Phrases side by side."""


class Block(NamedTuple):
    """Lines on one subject, at least ``least`` of them or none; the lowest ``rank`` matters most."""

    lines: list[Line]
    rank: int
    least: int = 1


def line_width(phrases: Sequence[Phrase]) -> int:
    """How many cells ``write`` takes for these."""
    return sum(each.width for each in phrases) + GAP * max(0, len(phrases) - 1)


def fitting(phrases: Iterable[Phrase], width: int) -> Line:
    """Those that fit in ``width`` cells, chosen by rank and shown in the order given; one always stays."""
    kept: dict[int, Phrase] = {}
    used = -GAP
    # Among equal ranks the first wins: phrases are in order of importance.
    for i, each in sorted(enumerate(phrases), key=lambda item: item[1].rank):
        needed = GAP + each.width
        if not kept or used + needed <= width:
            kept[i] = each
            used += needed
    return [kept[i] for i in sorted(kept)]


def fitting_lines(blocks: Sequence[Block], height: int) -> list[Line]:
    """The lines to show in ``height``, in the order given: as many blocks as fit, then more of each."""
    taken: dict[int, int] = {}
    ranked = sorted(range(len(blocks)), key=lambda i: blocks[i].rank)
    for i in ranked:
        least = min(blocks[i].least, len(blocks[i].lines))
        taken[i] = least if sum(taken.values()) + least <= height else 0
    for i in ranked:
        if taken[i]:
            taken[i] += min(len(blocks[i].lines) - taken[i], height - sum(taken.values()))
    return [line for i, block in enumerate(blocks) for line in _cut(block.lines, taken[i])]


def _cut(lines: list[Line], count: int) -> list[Line]:
    """The first ``count`` lines; a sentence that is cut ends in ``…``."""
    kept = lines[:count]
    if 0 < count < len(lines) and kept[-1][-1].goes_on:
        *phrases, last = kept[-1]
        kept[-1] = [*phrases, last._replace(words=(*last.words, Word("…", last.words[-1].style)))]
    return kept


def flowed(phrases: Iterable[Phrase], width: int) -> list[Line]:
    """Phrases in as many lines of ``width`` cells as they need, in order."""
    lines: list[Line] = []
    for each in phrases:
        if lines and line_width([*lines[-1], each]) <= width:
            lines[-1].append(each)
        else:
            lines.append([each])
    return lines


def wrapped(text: str, width: int, *, lines: int) -> list[str]:
    """``text`` in at most ``lines`` lines of ``width`` cells; what does not fit ends in ``…``."""
    if width < 1 or lines < 1:
        return []
    return [line.rstrip() for line in textwrap.wrap(text, width, max_lines=lines, placeholder="…")]


def wrapped_phrases(
    text: str, style: int, width: int, *, lines: int = 2, head: tuple[Word, ...] = ()
) -> list[Line]:
    """``wrapped`` text as lines of one phrase, behind the words of ``head`` in their own styles."""
    begin = "".join(word.text for word in head)
    told = wrapped(begin + text, width, lines=lines) or ([begin] if head else [])
    words: list[tuple[Word, ...]] = [(Word(line, style),) for line in told]
    if head:
        words[0] = (*head, Word(told[0][len(begin) :], style))
    return [[Phrase(each, goes_on=i < len(words))] for i, each in enumerate(words, 1)]


def end_of(name: str, width: int) -> str:
    """``name`` cut at its front, where names are alike: ``…ures.12.conv``."""
    return name if text_width(name) <= width else "…" + name[len(name) - max(0, width - 1) :]


def write(canvas: Canvas, x: int, y: int, phrases: Iterable[Phrase]) -> int:
    """Write phrases side by side from column ``x`` on; return the column after the last."""
    end = x
    for i, each in enumerate(phrases):
        end += GAP if i else 0
        for word in each.words:
            end = _write_word(canvas, end, y, word)
    return end


def write_lines(canvas: Canvas, y: int, lines: Iterable[Line]) -> None:
    """Write lines from line ``y`` on, as much of each as fits."""
    for at, line in enumerate(lines, y):
        write(canvas, 0, at, fitting(line, canvas.width))


def _write_word(canvas: Canvas, x: int, y: int, word: Word | Gauge) -> int:
    if isinstance(word, Word):
        return canvas.text(x, y, word.text, word.style)
    draw = draw_bar if word.kind == "full" else draw_progress
    draw(canvas, x, y, word.width, word.fraction, word.style)
    return x + word.width


def write_right(canvas: Canvas, y: int, phrases: Sequence[Phrase], *, margin: int = 0) -> int:
    """Write phrases so that they end ``margin`` cells before the right edge; return their first column."""
    x = canvas.width - margin - line_width(phrases)
    write(canvas, x, y, phrases)
    return x


def quiet(canvas: Canvas, text: str) -> None:
    """A few words in the middle of ``canvas``: why there is nothing to see yet."""
    lines = wrapped(text, canvas.width, lines=canvas.height)
    for y, line in enumerate(lines, (canvas.height - len(lines)) // 2):
        canvas.text((canvas.width - text_width(line)) // 2, y, line, Style.DIM)
