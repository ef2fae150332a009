"""The X-ray: its verdict, both losses, the memory, and two tables, on the whole screen."""

import math
from collections import Counter
from typing import ClassVar, NamedTuple

from amptui.base import units
from amptui.diagnosis.float16_verdicts import xray_verdict
from amptui.diagnosis.labels import precision_label, signed_label
from amptui.records.findings import XRayTaken
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay, Scroll, open_box, write_edge
from amptui.tui.overlays.xray_tables import (
    ORDERS,
    WHOLE_MODEL,
    draw_layers,
    draw_operators,
    dtype_word,
    operator_table,
    share_word,
)
from amptui.tui.panels.phrases import Phrase, Word, flowed, wrapped, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style, precision_style

_LABEL_WIDTH = 9
_VERDICT_LINES = 3

_MIN_TABLE = 5
"""Lines that the facts leave for the table."""

_MIN_HEIGHT_FOR_LEGEND = 30

_LAYERS_LEGEND = (
    "AMP's gradients and FP32's: cosine 1 is the same direction, "
    "error |AMP−FP32| / |FP32|, lost: zero only in AMP"
)
_OPERATORS_LEGEND = "how often each ran, forward and backward; _to_copy casts to that dtype"

_MAX_ISLANDS = 4
"""Modules in FP32 that are named; the others are counted."""


class Fact(NamedTuple):
    """A line or more above the tables."""

    label: str
    phrases: list[Phrase]


class XRay(Overlay):
    """The newest X-ray of the session: the same batch in FP32 and in AMP, layer by layer."""

    name: ClassVar[str] = "x-ray"
    covers_all: ClassVar[bool] = True

    def __init__(self) -> None:
        self._order = next(iter(ORDERS))
        self._operators = False
        self._scroll = Scroll()

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        """See :class:`Overlay`."""
        xray = view.numerics.xray
        inner = open_box(canvas, _title(xray), width=canvas.width, height=canvas.height)
        if xray is None:
            how = ": x takes one with the next step" if "x-ray" in screen.accepts else ""
            inner.text(0, 0, f"no X-ray yet{how}", Style.DIM)
        else:
            y = self._draw_facts(inner, xray)
            legend = self._legend(inner) if inner.height >= _MIN_HEIGHT_FOR_LEGEND else []
            self._draw_table(inner.rows(y, inner.height - len(legend) - y), xray)
            for i, words in enumerate(legend):
                inner.text(0, inner.height - len(legend) + i, words, Style.DIM)
        other = (("o", "layers"),) if self._operators else (("s", "sort"), ("o", "operators"))
        words = self._scroll.words
        again = (("x", "again"),) if "x-ray" in screen.accepts else ()
        hints = (("esc", "back"), *other, *again, *((("↑ ↓", "scroll"),) if words else ()))
        write_edge(canvas, hints, screen, right=words)

    def _legend(self, inner: Canvas) -> list[str]:
        return wrapped(_OPERATORS_LEGEND if self._operators else _LAYERS_LEGEND, inner.width, lines=2)

    def _draw_facts(self, inner: Canvas, xray: XRayTaken) -> int:
        """Draw the verdict and as many facts as leave room for a table; return the table's first line."""
        y = 0
        verdict = xray_verdict(xray)
        sign, style = VERDICT_SIGNS[verdict.severity]
        inner.text(0, 0, sign, style | BOLD)
        for words in wrapped(verdict.text, inner.width - 2, lines=_VERDICT_LINES):
            inner.text(2, y, words, style | BOLD)
            y += 1
        for fact in facts(xray):
            lines = flowed(fact.phrases, inner.width - _LABEL_WIDTH)
            if y + len(lines) + _MIN_TABLE > inner.height:
                break
            inner.text(0, y, fact.label, Style.DIM)
            for line in lines:
                write(inner, _LABEL_WIDTH, y, line)
                y += 1
        return y + 1

    def _draw_table(self, table: Canvas, xray: XRayTaken) -> None:
        rows = len(operator_table(xray.operators)) if self._operators else len(xray.layers)
        top = self._scroll.visible(rows, table.height - 1).start
        if self._operators:
            draw_operators(table, xray.operators, top)
        else:
            draw_layers(table, xray.layers, self._order, top)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Arrows scroll, letters change what is shown."""
        if key in ("escape", "q", "ctrl+q"):
            return CLOSE
        if key == "x":
            return Answer(action="take_xray")
        if key == "o":
            self._operators, self._scroll.top = not self._operators, 0
        elif key == "s" and not self._operators:
            orders = list(ORDERS)
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
            self._scroll.top = 0
        self._scroll.press(key)
        return STAY


def _title(xray: XRayTaken | None) -> str:
    if xray is None:
        return "X-ray"
    scale = f" at loss scale {units.count(xray.loss_scale)}" if xray.loss_scale is not None else ""
    return f"X-ray of step {xray.step:,}: FP32 and {precision_label(xray.precision)}{scale}"


def facts(xray: XRayTaken) -> list[Fact]:
    """The facts above the tables, the most important first."""
    took = Phrase((Word("took ", Style.DIM), Word(units.milliseconds(xray.seconds))))
    some = [
        Fact("loss", [*_losses(xray), took]),
        Fact("saved", _saved(xray)),
        Fact("memory", _memory(xray)),
        Fact("outputs", _outputs(xray)),
    ]
    if xray.random:
        caveat = "dropout is active: the two passes may have used different masks"
        some.insert(1, Fact("caution", [Phrase((Word(caveat, Style.WARNING),))]))
    return [fact for fact in some if fact.phrases]


def _losses(xray: XRayTaken) -> list[Phrase]:
    """Both losses to six digits, and their difference relative to FP32's."""
    phrases = _in_both(xray, *(_loss_word(loss) for loss in (xray.loss_fp32, xray.loss_amp)))
    difference = abs(xray.loss_amp - xray.loss_fp32)
    if not math.isfinite(difference) or xray.loss_fp32 == 0:
        return phrases
    share = share_word(difference / abs(xray.loss_fp32))
    words = "equal" if difference == 0 else f"{share.text} apart"
    return [*phrases, Phrase((Word(words, Style.STRONG),))]


def _loss_word(loss: float) -> Word:
    return Word(f"{loss:.6g}", Style.STRONG if math.isfinite(loss) else Style.ERROR)


def _saved(xray: XRayTaken) -> list[Phrase]:
    """What the forward pass saves for the backward pass, in both precisions."""
    if xray.saved_bytes_fp32 is None or xray.saved_bytes_amp is None:
        return []
    before, after = xray.saved_bytes_fp32, xray.saved_bytes_amp
    sizes = (Word(units.number_of_bytes(size), Style.STRONG) for size in (before, after))
    return [*_in_both(xray, *sizes), Phrase((Word(f"saved for backward{_change(before, after)}"),))]


def _memory(xray: XRayTaken) -> list[Phrase]:
    """The memory that AMP does not change."""
    parts = {
        "weights": xray.weights_bytes,
        "gradients": xray.gradients_bytes,
        "optimizer": xray.optimizer_bytes,
        "buffers": xray.buffers_bytes,
    }
    return [
        Phrase((Word(f"{name} ", Style.DIM), Word(units.number_of_bytes(size))))
        for name, size in parts.items()
    ]


def _change(before: int, after: int) -> str:
    """``, 49% less``; empty if there is nothing to compare."""
    if before == 0:
        return ""
    share = units.percent(abs(after - before) / before)
    return ", the same" if share == "0%" else f", {share} {'less' if after < before else 'more'}"


def _outputs(xray: XRayTaken) -> list[Phrase]:
    """How many modules output which dtype in AMP, and which of them stayed in FP32."""
    counts = Counter(dtype for dtype in xray.output_dtypes.values() if dtype)
    phrases = [
        Phrase((Word(f"{number:,} ", Style.STRONG), dtype_word(dtype)))
        for dtype, number in counts.most_common()
    ]
    islands = [name or WHOLE_MODEL for name, dtype in xray.output_dtypes.items() if dtype == "float32"]
    if len(counts) > 1 and islands:
        more = f" (+{len(islands) - _MAX_ISLANDS})" if len(islands) > _MAX_ISLANDS else ""
        names = ", ".join(islands[:_MAX_ISLANDS]) + more
        phrases.append(Phrase((Word("in FP32: ", Style.DIM), Word(names, precision_style("fp32")))))
    return phrases


def _in_both(xray: XRayTaken, *words: Word) -> list[Phrase]:
    """A word for FP32 and one for AMP: ``■ FP32 0.0311  ▲ AMP fp16 0.0312``."""
    precisions = ("fp32", xray.precision)
    return [
        Phrase((Word(f"{signed_label(precision)} ", precision_style(precision)), word))
        for precision, word in zip(precisions, words, strict=True)
    ]
