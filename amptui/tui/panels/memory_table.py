"""What uses the memory: a stacked bar for each precision, a table by kind and dtype, and why."""

from collections.abc import Sequence
from typing import NamedTuple

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.memory_use import (
    MemorySides,
    memory_sentences,
    other_bytes,
    sides,
    signed_bytes,
)
from amptui.records.findings import MemoryBreakdown
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect
from amptui.tui.panels.phrases import Word, fitting, phrase, precision_word, wrapped, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.gauges import draw_stack
from amptui.tui.style import Style, precision_style

_MIN_WIDTH = 36
"""Cells that a kind and two precisions take."""

_FILLS = {
    "weights": "█#",
    "gradients": "▓%",
    "optimizer": "▒=",
    "buffers": "▤+",
    "cast copies": "▚x",
    "activations": "░-",
    "other": "·.",
}
"""The fill of each kind's part of a bar, with UTF-8 and without; in the order of the parts."""

_OTHER = "other"
"""The part of the peak that no kind of the breakdown accounts for."""

_OF_THE_PEAK = ("activations", _OTHER)
"""Known only if the peak is: missing, they are not zero."""

_KIND_WIDTH, _DTYPE_WIDTH = 14, 9
"""A fill, a blank and ``cast copies``; ``bfloat16``."""

_COLUMN = 11
"""A blank and ``▲ AMP fp16``."""

_CHANGE = 14
"""A blank and ``fp16 changes``; amounts stand apart from the columns before them."""

_LABELS = {_OTHER: "other: data, batch"}
"""Longer names, used if the column of dtypes leaves room."""

_NOTES = {
    "cast copies": "half-precision weights, which autocast caches during a step",
    "activations": "saved for the backward pass, and temporary tensors: a lower bound, "
    "as not all gradients exist at the peak",
    _OTHER: "the rest of the peak: data kept on the device, the batch and workspaces",
}
"""Explains the kinds whose name does not."""

_NAME_WIDTH, _AMOUNT_WIDTH = 11, 9
"""Left and right of a bar."""

_MIN_ROWS = 3
"""Rows of the table, below its head."""

_SENTENCE_LINES = 3
"""Lines of one sentence."""


class _Row(NamedTuple):
    """One kind in one dtype, in every precision; None if not measured or absent."""

    kind: str
    dtype: str
    sizes: tuple[int | None, ...]


def has_room(canvas: Canvas, view: SessionView) -> bool:
    """Whether there is anything to show, and room for the smallest version."""
    min_lines = 2 + _MIN_ROWS + len(view.memory)
    return bool(view.memory) and canvas.width >= _MIN_WIDTH and canvas.height >= min_lines


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The newest breakdown of each precision, on a canvas with room for it."""
    rows = _rows(view.memory, by_dtype=_first_column(canvas.width) > _KIND_WIDTH)
    y = _draw_bars(canvas, view.memory, rows)
    text: list[str] = []
    for sentence in memory_sentences(view.memory, view.numerics.xray, screen.accepts, view.comparison.low):
        room = canvas.height - y - 1 - min(_MIN_ROWS, len(rows)) - len(text)
        text += wrapped(sentence, canvas.width, lines=min(_SENTENCE_LINES, max(0, room)))
    # Sentences replace the smallest rows, but never the largest.
    spare = canvas.height - y - 1 - len(rows) - len(text)
    height = 1 + len(rows) if spare >= 0 else max(1 + _MIN_ROWS, 1 + len(rows) + spare)
    y += spare > 1
    table = canvas.part(Rect(0, y, canvas.width, height))
    y += _draw_table(table, view.memory, rows, sides(view.memory, view.comparison.low)) + (spare > 0)
    for line in text:
        canvas.text(0, y, line)
        y += 1
    _draw_notes(canvas.part(Rect(0, y + 1, canvas.width, canvas.height - y - 1)), rows)


def _rows(memory: Sequence[MemoryBreakdown], *, by_dtype: bool) -> list[_Row]:
    """The rows in the order of the bars' parts; without ``by_dtype`` one row per kind."""
    sums: list[dict[tuple[str, str], int]] = [{} for _ in memory]
    for breakdown, sizes in zip(memory, sums, strict=True):
        for kind in breakdown.kinds:
            key = (kind.kind, kind.dtype if by_dtype else "")
            sizes[key] = sizes.get(key, 0) + kind.size_bytes
    keys = dict.fromkeys(key for sizes in sums for key in sizes)
    rows = [_Row(*key, tuple(sizes.get(key) for sizes in sums)) for key in keys]
    others = tuple(other_bytes(breakdown) for breakdown in memory)
    if any(others):
        rows.append(_Row(_OTHER, "", others))
    order = tuple(_FILLS)
    return sorted((row for row in rows if any(row.sizes)), key=lambda row: order.index(row.kind))


def _draw_notes(canvas: Canvas, rows: Sequence[_Row]) -> None:
    """What the kinds mean, if all of it fits."""
    kinds = [kind for kind in _NOTES if any(row.kind == kind for row in rows)]
    lines = [line for kind in kinds for line in wrapped(f"{kind}: {_NOTES[kind]}", canvas.width, lines=2)]
    if len(lines) <= canvas.height:
        for y, line in enumerate(lines):
            canvas.text(0, y, line, Style.DIM)


# -------------------------------------------------------------------------------------- bars


def _draw_bars(canvas: Canvas, memory: Sequence[MemoryBreakdown], rows: Sequence[_Row]) -> int:
    """A title and a bar for each precision, all to one scale; return the line after them."""
    has_peak = any(breakdown.peak_allocated_bytes for breakdown in memory)
    title = "where the peak memory is" if has_peak else "memory of a step without activations"
    steps = ", ".join(
        f"{precision_label(breakdown.precision)} step {units.count(breakdown.step)}" for breakdown in memory
    )
    write(canvas, 0, 0, fitting([phrase(title), phrase(steps, Style.DIM, 1)], canvas.width))
    totals = [sum(row.sizes[i] or 0 for row in rows) for i in range(len(memory))]
    width = canvas.width - _NAME_WIDTH - _AMOUNT_WIDTH - 1
    for i, breakdown in enumerate(memory):
        name = precision_word(breakdown.precision, _NAME_WIDTH - 1)
        canvas.text(0, 1 + i, name.text, name.style)
        bar = canvas.part(Rect(_NAME_WIDTH, 1 + i, width, 1))
        sizes = [(row.kind, row.sizes[i] or 0) for row in rows]
        _draw_sizes(bar, sizes, max(totals), precision_style(breakdown.precision))
        amount = units.number_of_bytes(breakdown.peak_allocated_bytes or totals[i])
        canvas.text(canvas.width - _AMOUNT_WIDTH, 1 + i, amount, width=_AMOUNT_WIDTH, align="right")
    return 1 + len(memory)


def _draw_sizes(canvas: Canvas, parts: Sequence[tuple[str, int]], whole: int, style: int) -> None:
    """Parts side by side, ``whole`` being the canvas's width; each but the largest to the nearest cell.

    So equal parts of two bars are equally long. A part of less than half a cell appears in the table only.
    """
    if not parts:
        return
    cells = [_cells(canvas, size, whole) for _, size in parts]
    largest = max(range(len(cells)), key=cells.__getitem__)
    others = sum(cells) - cells[largest]
    cells[largest] = max(0, _cells(canvas, sum(size for _, size in parts), whole) - others)
    fills = (_fill(canvas, kind) for kind, _ in parts)
    draw_stack(canvas, 0, 0, ((width, fill, style) for width, fill in zip(cells, fills, strict=True)))


def _cells(canvas: Canvas, size: int, whole: int) -> int:
    return round(canvas.width * size / max(1, whole))


def _fill(canvas: Canvas, kind: str) -> str:
    return _FILLS[kind][canvas.ascii_only]


# ------------------------------------------------------------------------------------- table


def _first_column(width: int) -> int:
    """Where the amounts begin: after the dtypes or, without room for these, after the kinds."""
    wide = _KIND_WIDTH + _DTYPE_WIDTH
    return wide if width >= wide + 2 * _COLUMN else _KIND_WIDTH


def _draw_table(
    canvas: Canvas, memory: Sequence[MemoryBreakdown], rows: Sequence[_Row], pair: MemorySides
) -> int:
    """As many rows as there are lines, the smallest left out first; return the number of lines."""
    first = _first_column(canvas.width)
    columns = memory[: (canvas.width - first) // _COLUMN]
    rows = _largest(rows, canvas.height - 1)
    for y, row in enumerate(rows, 1):
        canvas.text(0, y, _fill(canvas, row.kind), Style.DIM)
        canvas.text(2, y, _LABELS.get(row.kind, row.kind) if first > _KIND_WIDTH else row.kind)
        canvas.text(_KIND_WIDTH, y, row.dtype, Style.DIM)
    for i, breakdown in enumerate(columns):
        sizes = [row.sizes[i] for row in rows]
        cells = [Word("–" if size is None else units.number_of_bytes(size)) for size in sizes]
        head = precision_word(breakdown.precision, _COLUMN - 1)
        _draw_column(canvas, first + i * _COLUMN, [head, *cells])
    x = first + len(columns) * _COLUMN
    full, low = pair.full, pair.low
    if full is not None and low is not None and canvas.width >= x + _CHANGE:
        i, j = memory.index(full), memory.index(low)
        changes = [_change(row.kind, row.sizes[i], row.sizes[j]) for row in rows]
        title = Word(f"{low.precision} changes", Style.DIM)
        _draw_column(canvas, x, [title, *changes], width=_CHANGE)
    return 1 + len(rows)


def _largest(rows: Sequence[_Row], count: int) -> list[_Row]:
    """So many rows, in their order."""
    ranked = sorted(rows, key=lambda row: -max(size or 0 for size in row.sizes))[: max(0, count)]
    return [row for row in rows if row in ranked]


def _draw_column(canvas: Canvas, x: int, words: Sequence[Word], *, width: int = _COLUMN) -> None:
    for y, word in enumerate(words):
        canvas.text(x + 1, y, word.text, word.style, width=width - 1, align="right")


def _change(kind: str, before: int | None, after: int | None) -> Word:
    """``-744 MiB``, what the lower precision saved or added for a kind; empty if not measured."""
    unknown = before is None or after is None
    if (before is None and after is None) or (unknown and kind in _OF_THE_PEAK):
        return Word("")
    change = (after or 0) - (before or 0)
    return Word(signed_bytes(change), Style.GOOD if change < 0 else Style.WARNING if change else Style.DIM)
