"""What curves, ribbons, bars and histograms look like, each alone: approved as one text a kind."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from amptui.base import units
from amptui.records.findings import Float16Window
from amptui.telemetry.view import EMPTY_SERIES, PrecisionSwitch, Series
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.float16_histogram import draw_exponents
from amptui.tui.renderables.gauges import (
    draw_bar,
)
from amptui.tui.renderables.plot import CurvePlot, draw_ribbon, draw_step_axis
from amptui.tui.renderables.step_window import GUTTER, Window
from amptui.tui.style import Style
from tests.telemetry import record_samples
from tests.tui.renderables.tracks import series_of

if TYPE_CHECKING:
    from amptui.telemetry.axis import Kind

Drawn = tuple[str, Canvas]
nan, inf = math.nan, math.inf
BOTH = (False, True)

SWITCHES = tuple(
    PrecisionSwitch(step, precision) for step, precision in ((1, "fp32"), (9, "fp16"), (17, "fp32"))
)


def _ribbons() -> Iterator[Drawn]:
    """Of 24 steps in as many columns: step s stands in column s - 1."""

    def ribbon(
        title: str,
        skipped: Sequence[int] = (),
        *,
        switches: tuple[PrecisionSwitch, ...] = SWITCHES,
        steps: int = 24,
        columns: int = 24,
        broken: Sequence[int] = (),
        first: int = 1,
    ) -> Drawn:
        canvas = Canvas(GUTTER + columns, 2)
        series = series_of([float(step in skipped) for step in range(1, steps + 1)])
        losses = series_of([nan if step in broken else 1.0 for step in range(1, steps + 1)])
        window = Window(first, first + 23)
        draw_ribbon(
            canvas, window=window, switches=switches, skips=series, nonfinite=losses if broken else None
        )
        draw_step_axis(canvas.rows(1), window=window)
        return title, canvas

    yield ribbon("three stretches")
    yield ribbon("two skips", (12, 13))
    yield ribbon("a skip of two columns", (12,), columns=48)
    yield ribbon("skips at the switch", (9, 10))
    yield ribbon("a stretch of skips", range(9, 17))
    yield ribbon("NaN, once in a skip", (12,), broken=(12, 20))
    yield ribbon("begun before the window", steps=124, first=101)
    yield ribbon("an unknown precision", switches=SWITCHES[1:2])
    for window, columns in (
        *((Window(1, 1250), 60), (Window(899, 1210), 40), (Window(1, 32), 12), (Window(1, 32), 4)),
        (Window(12_345_678, 22_345_677), 12),
    ):
        canvas = Canvas(GUTTER + columns, 1)
        draw_step_axis(canvas, window=window)
        yield f"{window}", canvas


def _gauges() -> Iterator[Drawn]:
    fractions = (None, nan, 0, 0.001, 0.01, 0.5, 0.56, 0.999, 1, 1.7, -1)
    for ascii_only in BOTH:
        canvas = Canvas(20, len(fractions), ascii_only=ascii_only)
        for y, fraction in enumerate(fractions):
            draw_bar(canvas, 0, y, 8, fraction, Style.FP16)
        yield f"{fractions}", canvas


def exponents(counts: dict[int, int], **changes: int) -> Float16Window:
    """Elements by exponent, in a window from 2^-60 to 2^41; ``changes`` are its exact counts."""
    total = sum(counts.values()) + changes.get("zeros", 0) + changes.get("nonfinite", 0)
    shown = tuple(counts.get(exponent, 0) for exponent in range(-60, 41))
    exact = {"first_exponent": -60, "counts": shown, "elements": total, "zeros": 0, **changes}
    return record_samples.window(1, **exact)


EVERYWHERE = exponents(
    dict.fromkeys(range(-42, 18), 1000), flushed=17_000, subnormal=11_000, overflowing=2000, zeros=40_000
)


def _histograms() -> Iterator[Drawn]:
    for title, shown, widths in (
        ("everywhere", EVERYWHERE, (36, 60, 67, 76, 127)),
        ("NaN and Inf", replace(EVERYWHERE, nonfinite=1204), (36, 76)),
        ("one zone", exponents({0: 1000}), (76,)),
        ("exact shares", exponents({-25: 100}, flushed=40, subnormal=60), (76,)),
        ("beyond the axis", exponents({-60: 10, 40: 10}), (76,)),
        ("rare ones", exponents({-5: 1, 0: 999_000, 3: 999}), (76,)),
        ("rarest ones", exponents({-5: 1, 0: 99_999_999}), (76,)),
        ("nothing", exponents({}), (76,)),
    ):
        for width in widths:
            canvas = Canvas(width, 14)
            draw_exponents(canvas, shown)
            yield title, canvas


def _plots() -> Iterator[Drawn]:
    switches = (PrecisionSwitch(1, "fp32"), PrecisionSwitch(51, "fp16"))
    broken, zero, spiky = [1.0] * 100, [1.0] * 100, [0.5] * 1000
    broken[40], broken[41], broken[80], zero[50], spiky[500] = nan, inf, -inf, 0.0, 0.9
    linear: Kind = "linear"
    shown: tuple[tuple[str, Series | Sequence[float | None], Kind], ...] = (
        ("nothing", EMPTY_SERIES, linear),
        ("not measured", [None] * 40, linear),
        ("only NaN", [nan] * 200, linear),
        ("a constant", [0.5] * 500, linear),
        ("a fall", list(np.linspace(1, 0, 600)), linear),
        ("NaN and Inf", [*broken], linear),
        ("a gap", [1.0] * 40 + [None] * 20 + [1.0] * 40, linear),
        ("two precisions", [1.0] * 50 + [2.0] * 50, linear),
        ("a spike", [*spiky], linear),
        ("an outlier", [40.0, *[0.1, 0.2] * 300], linear),
        ("decades", list(np.geomspace(10, 0.001, 600)), "log10"),
        ("zero", [*zero], "log10"),
        ("negative", [-1.0, -2.0, -3.0], "log10"),
        ("doublings", [1.0, 2.0, 4.0], "log2"),
        ("few steps", [1.0, 3.0, 2.0, 5.0], linear),
    )
    for title, values, kind in shown:
        series = values if isinstance(values, Series) else series_of(values)
        for band, ascii_only in ((True, False), (False, False), (True, True)):
            canvas = Canvas(58, 8, ascii_only=ascii_only)
            window = Window(series.first_step, max(1, series.last_step))
            CurvePlot(units.loss, band=band).draw(canvas, series, window=window, switches=switches, kind=kind)
            yield f"{title}, {band=}, {ascii_only=}", canvas


SHAPES: Mapping[str, Callable[[], Iterator[Drawn]]] = {
    "ribbons": _ribbons,
    "gauges": _gauges,
    "histograms": _histograms,
    "plots": _plots,
}
"""The pictures of each kind."""
