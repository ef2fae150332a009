"""Lines of words in several styles, and what to leave out if a line is too narrow."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.speed import running
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.renderables.table import draw_bar
from amptui.tui.style import BOLD, Style, precision_style

GAP = 2
"""Blanks between two phrases."""

_FOLDED_LABEL = 12
"""Cells of the label of a panel in one line."""


class Word(NamedTuple):
    """Text in one style."""

    text: str
    style: int = Style.TEXT


class Gauge(NamedTuple):
    """A bar within a line."""

    width: int
    fraction: float | None
    style: int


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


def phrase(text: str, style: int = Style.TEXT, rank: int = 0) -> Phrase:
    """``text`` in one style."""
    return Phrase((Word(text, style),), rank)


def labelled(label: str, text: str, rank: int = 0, style: int = Style.TEXT) -> Phrase:
    """``text`` behind a dim label."""
    return Phrase((Word(f"{label} ", Style.DIM), Word(text, style)), rank)


def precision_word(precision: str) -> Word:
    """``AMP fp16``, bold in its style."""
    return Word(precision_label(precision), precision_style(precision) | BOLD)


def steady_style(view: SessionView) -> int:
    """The style of the current precision; plain during a comparison, where it would flicker."""
    return precision_style(view.precision) if running(view) is None else Style.TEXT


class Block(NamedTuple):
    """Lines on one subject, at least ``least`` of them or none; the lowest ``rank`` matters most."""

    lines: list[Line]
    rank: int
    least: int = 1


def line_width(phrases: Sequence[Phrase]) -> int:
    """How many cells ``write`` takes for these."""
    return sum(phrase.width for phrase in phrases) + GAP * max(0, len(phrases) - 1)


def fitting(phrases: Iterable[Phrase], width: int) -> Line:
    """Those that fit in ``width`` cells, chosen by rank and shown in the order given; one always stays."""
    chosen_phrases: dict[int, Phrase] = {}
    used_width = -GAP
    # Among equal ranks the first wins: phrases are in order of importance.
    for i, phrase in sorted(enumerate(phrases), key=lambda item: item[1].rank):
        if not chosen_phrases or used_width + GAP + phrase.width <= width:
            chosen_phrases[i] = phrase
            used_width += GAP + phrase.width
    return [chosen_phrases[i] for i in sorted(chosen_phrases)]


def fitting_lines(blocks: Sequence[Block], height: int) -> list[Line]:
    """The lines to show in ``height``, in the order given: as many blocks as fit, then more of each."""
    counts: dict[int, int] = {}
    ranked = sorted(range(len(blocks)), key=lambda i: blocks[i].rank)
    for i in ranked:
        least = min(blocks[i].least, len(blocks[i].lines))
        counts[i] = least if sum(counts.values()) + least <= height else 0
    for i in ranked:
        if counts[i]:
            counts[i] += min(len(blocks[i].lines) - counts[i], height - sum(counts.values()))
    return [line for i, block in enumerate(blocks) for line in _cut(block.lines, counts[i])]


def _cut(lines: list[Line], count: int) -> list[Line]:
    """The first ``count`` lines; a sentence that is cut ends in ``…``."""
    first_lines = lines[:count]
    if 0 < count < len(lines) and first_lines[-1][-1].goes_on:
        *phrases, last = first_lines[-1]
        first_lines[-1] = [*phrases, last._replace(words=(*last.words, Word("…", last.words[-1].style)))]
    return first_lines


def flowed(phrases: Iterable[Phrase], width: int) -> list[Line]:
    """Phrases in as many lines of ``width`` cells as they need, in order."""
    lines: list[Line] = []
    for phrase in phrases:
        if lines and line_width([*lines[-1], phrase]) <= width:
            lines[-1].append(phrase)
        else:
            lines.append([phrase])
    return lines


def wrapped(text: str, width: int, *, lines: int) -> list[str]:
    """``text`` in at most ``lines`` lines of ``width`` cells; what does not fit ends in ``…``."""
    if width < 1 or lines < 1:
        return []
    folded = textwrap.wrap(text, width, max_lines=lines, placeholder="…", break_on_hyphens=False)
    return [line.rstrip() for line in folded]


def whole_words(text: str, width: int) -> str:
    """The words of ``text`` that fit in ``width`` cells, and ``…`` for the others.

    None ends in a digit, so that no number looks as if more of it followed. A first word that does not fit
    stays: a canvas cuts it.
    """
    end = len(text)
    while text_width(text[:end]) + (end < len(text)) > width or (end < len(text) and text[end - 1].isdigit()):
        end = text.rfind(" ", 0, min(end, max(0, width)))
        if end <= 0:
            return text
    return text if end == len(text) else f"{text[:end]}…"


def wrapped_phrases(
    text: str, style: int, width: int, *, lines: int = 2, head: tuple[Word, ...] = ()
) -> list[Line]:
    """``wrapped`` text as lines of one phrase, behind the words of ``head`` in their own styles."""
    begin = "".join(word.text for word in head)
    texts = wrapped(begin + text, width, lines=lines) or ([begin] if head else [])
    words: list[tuple[Word, ...]] = [(Word(line, style),) for line in texts]
    if head:
        words[0] = (*head, Word(texts[0][len(begin) :], style))
    return [[Phrase(line, goes_on=i < len(words))] for i, line in enumerate(words, 1)]


def end_of(name: str, width: int) -> str:
    """``name`` cut at its front, where names are alike: ``…ures.12.conv``."""
    return name if text_width(name) <= width else "…" + name[len(name) - max(0, width - 1) :]


def write(canvas: Canvas, x: int, y: int, phrases: Iterable[Phrase]) -> int:
    """Write phrases side by side from column ``x`` on; return the column after the last."""
    end = x
    for i, phrase in enumerate(phrases):
        end += GAP if i else 0
        for word in phrase.words:
            if isinstance(word, Word):
                end = canvas.text(end, y, word.text, word.style)
            else:
                draw_bar(canvas, end, y, word.width, word.fraction, word.style)
                end += word.width
    return end


def write_lines(canvas: Canvas, y: int, lines: Iterable[Line]) -> None:
    """Write lines from line ``y`` on, as much of each as fits."""
    for at, line in enumerate(lines, y):
        write(canvas, 0, at, fitting(line, canvas.width))


def folded_room(canvas: Canvas) -> int:
    """The cells of ``write_folded`` beside the label."""
    return canvas.width - 2 - _FOLDED_LABEL


def write_folded(canvas: Canvas, label: str, phrases: Iterable[Phrase]) -> None:
    """A panel in one line: a dim label, then the phrases that fit."""
    canvas.text(1, 0, label, Style.DIM)
    write(canvas, 1 + _FOLDED_LABEL, 0, fitting(phrases, folded_room(canvas)))


def quiet(canvas: Canvas, text: str) -> None:
    """A few words in the middle of ``canvas``: why there is nothing to see yet."""
    lines = wrapped(text, canvas.width, lines=canvas.height)
    for y, line in enumerate(lines, (canvas.height - len(lines)) // 2):
        canvas.text((canvas.width - text_width(line)) // 2, y, line, Style.DIM)
