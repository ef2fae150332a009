"""The float16 histogram as SVG: the exponents of all scaled gradients and float16's range."""

import math

from amptui.base import units
from amptui.records.findings import FLOAT16_ZONES, Float16Window
from amptui.reports.export.markup import Markup, element, percent

_HEIGHT = 120
_LABELS_HEIGHT = 16

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw(window: Float16Window) -> Markup:
    """One bar per exponent, coloured by what float16 does with it, above a legend with percentages.

    Heights are logarithms of counts: a thousand lost elements among millions stay visible.
    """
    first, stop = window.first_exponent, window.first_exponent + len(window.counts)
    highest = math.log1p(max(window.counts, default=0)) or 1.0
    bars = []
    for exponent, count in enumerate(window.counts, first):
        height = (_HEIGHT - 8) * math.log1p(count) / highest
        words = element("title", f"2^{exponent} to 2^{exponent + 1}: {units.count(count)}")
        place = {"x": percent((exponent - first) / (stop - first)), "width": percent(0.8 / (stop - first))}
        size = {"y": f"{_HEIGHT - height:.1f}", "height": f"{height:.1f}"}
        bars.append(element("rect", words, class_=zone(exponent), **place, **size))
    lines = [
        element("line", x1=percent(x), x2=percent(x), y1="0", y2=_HEIGHT, class_="grid")
        for x in ((start - first) / (stop - first) for start in FLOAT16_ZONES.values())
        if 0 <= x <= 1
    ]
    told = "counts of scaled gradients by exponent of two, on a logarithmic scale"
    bars_and_lines = element(
        "svg", *lines, *bars, class_="histogram", height=_HEIGHT, role="img", aria_label=told
    )
    return element("div", bars_and_lines, _exponents(first, stop), _shares(window), class_="window")


def zone(exponent: int) -> str:
    """What float16 does with magnitudes from 2^exponent to 2^(exponent + 1)."""
    return ["flushed", *(name for name, start in FLOAT16_ZONES.items() if exponent >= start)][-1]


def _exponents(first: int, stop: int) -> Markup:
    labels = [
        element(
            "text",
            f"2{str(exponent).translate(_RAISED)}",
            x=percent((exponent - first) / (stop - first)),
            y=12,
        )
        for exponent in sorted((*FLOAT16_ZONES.values(), 0))
        if first < exponent < stop
    ]
    return element("svg", *labels, class_="steps", height=_LABELS_HEIGHT, aria_hidden="true")


def _shares(window: Float16Window) -> Markup:
    """The percentage of each zone among the nonzero elements, and the zeros."""
    nonzero = window.elements - window.zeros
    parts = (
        ("flushed", "flushed to zero", window.flushed),
        ("subnormal", "subnormal", window.subnormal),
        ("normal", "normal", window.normal),
        ("overflow", "overflow", window.overflowing),
    )
    items = [
        element("li", f"{name} {units.share(count, nonzero)}", class_=class_) for class_, name, count in parts
    ]
    items.append(element("li", f"zeros {units.share(window.zeros, window.elements)} of all", class_="zeros"))
    if window.nonfinite:
        items.append(element("li", f"NaN or Inf: {units.count(window.nonfinite)}", class_="nonfinite"))
    return element("ul", *items, class_="legend zones")
