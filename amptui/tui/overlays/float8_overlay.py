"""What float8 keeps of each operand of its products: a table, the worst first, and one operand bin by bin."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from amptui.base import units
from amptui.diagnosis import float8_words
from amptui.records.findings import Float8Window
from amptui.telemetry.float8 import (
    LayerOperand,
    is_zero,
    normal_share,
    operands_of,
    ranked_operands,
    summary_of_float8,
)
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.overlays.overlay import (
    CLOSE,
    STAY,
    Answer,
    Overlay,
    line_after,
    open_box,
    pages_beside,
    write_edge,
)
from amptui.tui.overlays.xray_overlay import share_word
from amptui.tui.panels.phrases import (
    GAP,
    Phrase,
    Word,
    end_of,
    flowed,
    labelled,
    phrase,
    quiet,
    wrapped,
    write,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.float8_histogram import draw_operand
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style

_SIGN_WIDTH = 2
_MIN_NAME = 20
_LABEL_WIDTH = 9

_MIN_TABLE = 4
"""Lines of a table with the selected operand below it: the titles and three operands."""

_DETAIL = 12
"""Lines of the selected operand below the table: its facts, and a histogram of a few lines."""

_MAX_DETAIL = 22

_VERDICT_LINES = 3

_MIN_HEIGHT_FOR_NOTES = 30
_MIN_HEIGHT_FOR_NOTE = 18


class Float8Operands(Overlay):
    """The newest operands that were measured; enter gives the selected one the whole box."""

    name: ClassVar[str] = "float8"
    covers_all: ClassVar[bool] = True

    def __init__(self) -> None:
        self._order = next(iter(ORDERS))
        self._selected: tuple[str, str] | None = None
        """Layer and role of the selected operand; None for the first."""
        self._is_enlarged = False
        self._page = 1
        """Operands that the table showed last."""

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        window = view.numerics.float8_window
        operands = _ordered(window, self._order)
        title = "float8 operands" if window is None else float8_words.window_title(window, view)
        inner = open_box(canvas, title, width=canvas.width, height=canvas.height)
        if window is None or not operands:
            quiet(inner, float8_words.window_missing(view))
            write_edge(canvas, (("esc", "back"), ("h", "float16"), pages_beside()), screen)
            return
        index = self._index(operands)
        if self._is_enlarged:
            _draw_detail(inner, operands[index])
        else:
            self._draw_page(inner, window, operands, index)
        self._write_edge(canvas, operands, index, screen)

    def _write_edge(
        self, canvas: Canvas, operands: Sequence[LayerOperand], index: int, screen: ScreenState
    ) -> None:
        back, enter = ("table", "table") if self._is_enlarged else ("back", "enlarge")
        sort = () if self._is_enlarged else (("s", "sort"),)
        hints = (("esc", back), ("↑ ↓", "other"), ("enter", enter), *sort, ("h", "float16"), pages_beside())
        write_edge(canvas, hints, screen, right=f"{index + 1} of {len(operands):,}")

    def _draw_page(
        self, inner: Canvas, window: Float8Window, operands: Sequence[LayerOperand], index: int
    ) -> None:
        """The verdict, the table, and below it the selected operand where there is room."""
        y = _draw_verdict(inner, window)
        notes = _notes(inner)
        room = inner.height - y - len(notes)
        below = room - _MIN_TABLE - 1
        detail = 0
        if below >= _DETAIL:
            detail = min(_MAX_DETAIL, max(_DETAIL, room - len(operands) - 2))
        table = inner.rows(y, room - detail - bool(detail))
        self._page = max(1, table.height - 1)
        draw_table(table, operands, self._order, index)
        if detail:
            _draw_detail(inner.rows(y + table.height + 1, detail), operands[index])
        for i, words in enumerate(notes):
            inner.text(0, inner.height - len(notes) + i, words, Style.DIM)

    def _index(self, operands: Sequence[LayerOperand]) -> int:
        keys = [_key(one) for one in operands]
        return keys.index(self._selected) if self._selected in keys else 0

    def press(self, key: str, view: SessionView) -> Answer:
        """Arrows select, enter enlarges, ``f`` leads back to all panels."""
        if key == "escape" and self._is_enlarged:
            self._is_enlarged = False
        elif key in ("escape", "q", "ctrl+q", "f"):
            return CLOSE
        elif key == "h":
            return Answer(close=True, action="show_float16")
        elif key == "enter":
            self._is_enlarged = not self._is_enlarged
        elif key == "s" and not self._is_enlarged:
            orders = list(ORDERS)
            self._order, self._selected = orders[(orders.index(self._order) + 1) % len(orders)], None
        else:
            operands = _ordered(view.numerics.float8_window, self._order)
            last = max(0, len(operands) - 1)
            moved = line_after(self._index(operands), key, page=self._page, last=last)
            self._selected = _key(operands[moved]) if operands else None
        return STAY

    def leads_on(self, key: str) -> bool:
        """See :class:`Overlay`."""
        return key != "f"


def _key(one: LayerOperand) -> tuple[str, str]:
    return one.layer, one.operand.role


ORDERS: Mapping[str, Callable[[Float8Window], list[LayerOperand]]] = {
    "worst first": ranked_operands,
    "model order": operands_of,
    "by flushed": lambda window: sorted(operands_of(window), key=lambda one: -one.operand.flushed),
}
"""The orders of operands, through which a key goes."""


def _ordered(window: Float8Window | None, order: str) -> list[LayerOperand]:
    return [] if window is None else ORDERS[order](window)


def _draw_verdict(inner: Canvas, window: Float8Window) -> int:
    """What an event says of the window; return the line after it."""
    seen = summary_of_float8(window)
    assert seen is not None, "it has operands"
    sign, style = VERDICT_SIGNS["warning" if seen.lossy else "info"]
    inner.text(0, 0, sign, style | BOLD)
    lines = wrapped(float8_words.window_event(seen), inner.width - _SIGN_WIDTH, lines=_VERDICT_LINES)
    for y, words in enumerate(lines):
        inner.text(_SIGN_WIDTH, y, words, style | BOLD)
    return len(lines) + 1


def _notes(inner: Canvas) -> list[str]:
    """What the columns are, and how this differs from float16's histogram; on a low screen only that."""
    if inner.height < _MIN_HEIGHT_FOR_NOTES:
        note = float8_words.BESIDE_FLOAT16_IN_SHORT
        return [note] if inner.height >= _MIN_HEIGHT_FOR_NOTE and text_width(note) <= inner.width else []
    texts = float8_words.OPERANDS_LEGEND, float8_words.BESIDE_FLOAT16
    return [line for text in texts for line in wrapped(text, inner.width, lines=4)]


# --------------------------------------------------------------------------------------- the table


class _Column(NamedTuple):
    """A column beside the names; if there is no room, the highest ``rank`` is left out first."""

    title: str
    width: int
    rank: int
    cell: Callable[[LayerOperand], Word]


def _no_error_of_zeros(one: LayerOperand, error: float) -> Word:
    return share_word(None if is_zero(one.operand) else error)


def _error(one: LayerOperand) -> Word:
    word = _no_error_of_zeros(one, one.operand.judged_error)
    return Word(word.text, operand_sign(one)[1]) if one.is_lossy else word


_COLUMNS = (
    _Column("type", 4, 0, lambda one: Word(float8_words.format_words(one.operand), Style.DIM)),
    _Column("median", 7, 0, _error),
    _Column("whole", 7, 3, lambda one: _no_error_of_zeros(one, one.operand.error)),
    _Column("zero", 7, 5, lambda one: share_word(one.operand.zeros)),
    _Column("flushed", 7, 1, lambda one: share_word(one.operand.flushed)),
    _Column("subnormal", 9, 2, lambda one: share_word(one.operand.subnormal)),
    _Column("saturated", 9, 2, lambda one: share_word(one.operand.saturated)),
    _Column("top channel", 13, 4, lambda one: Word(_top_channel(one))),
    _Column("scale", 16, 7, lambda one: Word(float8_words.scale_words(one.operand), Style.DIM)),
)


def _top_channel(one: LayerOperand) -> str:
    """``17 ×12.3 k``: the channel with the largest value, which that exceeds the median channel's by."""
    excess = one.operand.channel_excess
    return (
        units.NOT_AVAILABLE if math.isnan(excess) else f"{one.operand.channel} ×{units.short_count(excess)}"
    )


def operand_sign(one: LayerOperand) -> tuple[str, Style]:
    """The sign of an operand that loses most of its channels' or rows' numbers."""
    return VERDICT_SIGNS["warning"] if one.is_lossy else (" ", Style.TEXT)


def draw_table(canvas: Canvas, operands: Sequence[LayerOperand], order: str, selected: int) -> None:
    """Draw a line of titles, then as many operands around the ``selected`` one as fit, that in bold."""
    title = f"{units.counted(len(operands), 'operand')}, {order}"
    longest = max(text_width(title), *(text_width(_label(one)) for one in operands))
    columns, name_width = _fitting(canvas.width, longest)
    head = title if text_width(title) <= name_width else order
    x = canvas.text(_SIGN_WIDTH, 0, head, Style.STRONG, width=name_width) + GAP
    places = []
    for column in columns:
        places.append((x, column))
        x = canvas.text(x, 0, column.title, Style.DIM, width=column.width, align="right") + GAP
    rows = max(0, canvas.height - 1)
    top = max(0, min(selected - rows // 2, len(operands) - rows))
    for y, one in enumerate(operands[top : top + rows], 1):
        bold = BOLD if top + y - 1 == selected else 0
        sign, style = operand_sign(one)
        canvas.text(0, y, ">" if bold and not sign.strip() else sign, style | bold)
        name = end_of(_label(one), name_width)
        canvas.text(_SIGN_WIDTH, y, name, (Style.STRONG if bold else Style.TEXT) | bold, width=name_width)
        for at, column in places:
            word = column.cell(one)
            canvas.text(at, y, word.text, word.style | bold, width=column.width, align="right")


def _label(one: LayerOperand) -> str:
    """``blocks.0.mlp.fc weight``: the end of a name that is cut tells operands apart."""
    return f"{one.layer or 'the model'} {one.operand.role}"


def _fitting(width: int, longest: int) -> tuple[list[_Column], int]:
    """The columns beside names of up to ``longest`` cells, and the names' width."""
    columns = list(_COLUMNS)

    def room() -> int:
        return width - _SIGN_WIDTH - sum(GAP + column.width for column in columns)

    while columns and room() < min(longest, _MIN_NAME):
        columns.remove(max(columns, key=lambda column: column.rank))
    return columns, min(longest, max(0, room()))


# -------------------------------------------------------------------------------------- one operand


def _draw_detail(canvas: Canvas, one: LayerOperand) -> None:
    """All numbers of an operand, and its elements by exponent below them."""
    sign, style = operand_sign(one)
    head = f"{sign} {float8_words.operand_title(one)}".strip()
    y = 0
    for words in wrapped(head, canvas.width, lines=2):
        canvas.text(0, y, words, (style if one.is_lossy else Style.STRONG) | BOLD)
        y += 1
    for label, phrases in detail_facts(one).items():
        for i, line in enumerate(flowed(phrases, canvas.width - _LABEL_WIDTH)):
            if y >= canvas.height:
                return
            canvas.text(0, y, "" if i else label, Style.DIM)
            write(canvas, _LABEL_WIDTH, y, line)
            y += 1
    if missing := float8_words.counts_missing(one.operand):
        if y < canvas.height:
            canvas.text(0, y, next(iter(wrapped(missing, canvas.width, lines=1)), ""), Style.DIM)
        return
    draw_operand(canvas.rows(y, canvas.height - y), one.operand)


def detail_facts(one: LayerOperand) -> dict[str, list[Phrase]]:
    """What is said of an operand beside its histogram, by label."""
    operand = one.operand
    shares = {
        "zero": (operand.zeros, Style.DIM),
        "flushed": (operand.flushed, Style.WARNING),
        "subnormal": (operand.subnormal, Style.TEXT),
        "normal": (normal_share(operand), Style.GOOD),
        "saturated": (operand.saturated, Style.ERROR),
    }
    excess = operand.channel_excess
    channel = [
        labelled("largest value in", str(operand.channel)),
        phrase(f"{units.short_count(excess)} times the median one"),
    ]
    return {
        "error": [
            labelled(float8_words.judged_words(operand), _error(one).text, style=_error(one).style),
            labelled("whole", _no_error_of_zeros(one, operand.error).text),
        ],
        "shares": [
            labelled(name, share_word(share).text, style=style if share else Style.DIM)
            for name, (share, style) in shares.items()
        ],
        "scale": [phrase(float8_words.scale_words(operand))],
        **({} if math.isnan(excess) else {"channel": channel}),
    }
