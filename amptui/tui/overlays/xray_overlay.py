"""The X-ray on the whole screen: its verdict, both losses, and a table of layers."""

import math
from collections import Counter
from typing import ClassVar

from amptui.base import units
from amptui.base.table import Column
from amptui.diagnosis import probe_words
from amptui.diagnosis.finding_fields import MASKS_DIFFER, cosine_words, losses_apart
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import long_words
from amptui.records.findings import LayerAgreement, XRayTaken
from amptui.records.run import DTYPE_PRECISIONS
from amptui.telemetry.health import XRAY_SAFE_COSINE, judge_xray, layer_state
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Page, open_box, pages_beside, write_edge
from amptui.tui.panels.phrases import Phrase, Word, flowed, labelled, phrase, wrapped, write
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.table import draw_table
from amptui.tui.style import BOLD, VERDICT_SIGNS, Style, precision_style

_LABEL_WIDTH = 9
_VERDICT_LINES = 3

_MIN_TABLE = 5
"""Lines that the facts leave for the table."""

_MIN_HEIGHT_FOR_LEGEND = 30
_LEGEND_LINES = 4

_MAX_ISLANDS = 4
"""Modules in FP32 that are named; the others are counted."""

WHOLE_MODEL = "(model)"
"""The name of the model itself, whose path is empty."""

_MIN_NAME = 21


class XRay(Page):
    """The newest X-ray of the session: the same batch in FP32 and in AMP or FP8, layer by layer."""

    name: ClassVar[str] = "x-ray"
    opened_by: ClassVar[str] = "x"

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
        xray = view.numerics.xray
        if xray is None:
            how = ": x takes one with the next step" if "x-ray" in screen.accepts else ""
            open_box(canvas, "X-ray").text(0, 0, f"no X-ray yet{how}", Style.DIM)
        else:
            scale = f" at loss scale {units.count(xray.loss_scale)}" if xray.loss_scale is not None else ""
            low = precision_label(xray.precision)
            inner = open_box(canvas, f"X-ray of step {xray.step:,}: FP32 and {low}{scale}")
            y = self._draw_facts(inner, xray)
            legend: list[str] = []
            if inner.height >= _MIN_HEIGHT_FOR_LEGEND:
                legend = wrapped(probe_words.layers_legend(xray), inner.width, lines=_LEGEND_LINES)
            self._draw_table(inner.rows(y, inner.height - len(legend) - y), xray)
            for y, words in enumerate(legend, inner.height - len(legend)):
                inner.text(0, y, words, Style.DIM)
        words = self._scroll.words
        again = (("x", "again"),) if "x-ray" in screen.accepts else ()
        hints = (("esc", "back"), *again, *((("↑ ↓", "scroll"),) if words else ()), pages_beside())
        write_edge(canvas, hints, screen, right=words)

    def _draw_facts(self, inner: Canvas, xray: XRayTaken) -> int:
        """Draw the verdict and as many facts as leave room for the table; return the table's first line."""
        y = 0
        verdict = judge_xray(xray)
        sign, style = VERDICT_SIGNS[verdict.severity]
        inner.text(0, 0, sign, style | BOLD)
        for words in wrapped(long_words(verdict), inner.width - 2, lines=_VERDICT_LINES):
            inner.text(2, y, words, style | BOLD)
            y += 1
        for label, phrases in _facts(xray).items():
            lines = flowed(phrases, inner.width - _LABEL_WIDTH)
            if y + len(lines) + _MIN_TABLE > inner.height:
                break
            inner.text(0, y, label, Style.DIM)
            for line in lines:
                write(inner, _LABEL_WIDTH, y, line)
                y += 1
        return y + 1

    def _draw_table(self, table: Canvas, xray: XRayTaken) -> None:
        shown = self._scroll.visible(len(xray.layers), table.height - 1)
        title = f"{units.counted(len(xray.layers), 'layer')}, worst first"
        draw_table(table, _layer_columns(title), sorted(xray.layers, key=_worst_first), shown=shown)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Arrows scroll."""
        if key == "x":
            return Answer(action="take_xray")
        if self.closes(key):
            return CLOSE
        self._scroll.press(key)
        return STAY


def _facts(xray: XRayTaken) -> dict[str, list[Phrase]]:
    """The facts above the table by their labels, the most important first."""
    # Both losses to six digits, and how far the last is from FP32's.
    losses = [
        labelled(
            precision_label(name), f"{loss:.6g}", style=Style.STRONG if math.isfinite(loss) else Style.ERROR
        )
        for name, loss in (("fp32", xray.loss_fp32), (xray.precision, xray.loss_amp))
    ]
    both_finite = xray.loss_fp32 and math.isfinite(xray.loss_amp - xray.loss_fp32)
    apart = [phrase(losses_apart(xray.loss_amp, xray.loss_fp32), Style.STRONG)] if both_finite else []
    # How many modules output which dtype in AMP, and which of them stayed in FP32.
    counts = Counter(dtype for dtype in xray.output_dtypes.values() if dtype)
    outputs = [
        Phrase((Word(f"{number:,} ", Style.STRONG), _dtype_word(dtype)))
        for dtype, number in counts.most_common()
    ]
    islands = [name or WHOLE_MODEL for name, dtype in xray.output_dtypes.items() if dtype == "float32"]
    if len(counts) > 1 and islands:
        more = f" (+{len(islands) - _MAX_ISLANDS})" if len(islands) > _MAX_ISLANDS else ""
        names = ", ".join(islands[:_MAX_ISLANDS]) + more
        outputs.append(labelled("in FP32:", names, style=precision_style("fp32")))
    lines = {
        "loss": [*losses, *apart, labelled("took", units.milliseconds(xray.seconds))],
        "caution": [phrase(MASKS_DIFFER, Style.WARNING)] if xray.random else [],
        "outputs": outputs,
    }
    return {label: phrases for label, phrases in lines.items() if phrases}


# ------------------------------------------------------------------------------------ tables


def _layer_columns(title: str) -> list[Column[LayerAgreement]]:
    """Of the layers, their names second."""
    return [
        Column(
            title="",
            cell=_layer_sign,
            width=1,
            is_optional=False,
        ),
        Column(
            title=(title, Style.STRONG),
            short_titles=("worst first",),
            cell=lambda layer: layer.name or WHOLE_MODEL,
            align="left",
            cut="start",
            shrinks_to=_MIN_NAME,
            gap=1,
            is_optional=False,
        ),
        Column(title="kind", cell=lambda layer: (layer.kind, Style.DIM), priority=8, align="left", width=11),
        Column(
            title="output",
            cell=lambda layer: _dtype_word(layer.output_dtype),
            priority=7,
            align="left",
            width=10,
        ),
        Column(
            title="cosine",
            priority=1,
            width=7,
            cell=lambda layer: _cosine_word(layer.cosine, unsafe=_layer_sign(layer)[1]),
        ),
        Column(title="error", priority=5, width=7, cell=lambda layer: _share_word(layer.relative_error)),
        Column(title="lost", priority=4, width=7, cell=lambda layer: _share_word(layer.lost)),
        Column(
            title="elements",
            cell=lambda layer: (units.count if layer.elements < 1000 else units.short_count)(layer.elements),
            priority=9,
            width=8,
        ),
    ]


def _worst_first(layer: LayerAgreement) -> tuple[int, float]:
    """Sorts NaN before every number, and what was not measured after it."""
    if layer.cosine is None:
        return 2, 0.0
    return (0, 0.0) if math.isnan(layer.cosine) else (1, layer.cosine)


def _layer_sign(layer: LayerAgreement) -> tuple[str, Style]:
    """The sign of a layer that does not agree with FP32, by the thresholds of `telemetry.health`."""
    state = layer_state(layer)
    if state == "nothing to compare":
        return "·", Style.DIM
    if state == "agree":
        return " ", Style.GOOD
    return VERDICT_SIGNS["warning" if state == "differ" else "error"]


def _dtype_word(dtype: str) -> Word:
    """A dtype in the style of its precision."""
    return Word(dtype, precision_style(DTYPE_PRECISIONS.get(dtype)))


def _cosine_word(cosine: float | None, unsafe: int = Style.WARNING) -> Word:
    """A cosine in seven cells, never rounded up: only 1 is shown as 1.00000."""
    text = cosine_words(cosine, 4 if cosine is not None and cosine < 0 else 5)
    if cosine is None:
        return Word(text, Style.DIM)
    return Word(text, Style.TEXT if cosine >= XRAY_SAFE_COSINE else unsafe)


def _share_word(fraction: float | None) -> Word:
    """A fraction as percent: ``0.31%``; large ones, such as relative errors, as a factor: ``12.0×``."""
    if fraction is None:
        return Word(units.NOT_AVAILABLE, Style.DIM)
    if not math.isfinite(fraction):
        return Word(units.non_finite(fraction), Style.ERROR)
    if fraction > 1:
        return Word(units.percent(fraction) if fraction < 10 else f"{units.short_count(fraction)}×")
    return Word(units.share(fraction, 1.0), Style.TEXT if fraction else Style.DIM)
