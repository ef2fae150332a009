"""The horizontal axis shared by all charts of a page: steps, their precisions, and marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from amptui.export.axis import nice
from amptui.export.cards import css_class
from amptui.export.markup import Markup, element
from amptui.export.page_columns import MAX_COLUMNS, columns
from amptui.telemetry.labels import precision_label, precision_letter
from amptui.telemetry.view import Floats, PrecisionSwitch, Series

_LETTER_SHARE = 0.035
"""The fraction of the ribbon that a stretch needs for its letter, even on a phone."""

_LABEL_SHARE = 0.14
"""The fraction of the axis around a label without other labels, even on a phone."""


@dataclass(frozen=True, slots=True)
class Steps:
    """From ``first`` to ``last``. A step's place reaches from its number to the next one's."""

    first: int
    last: int
    switches: tuple[PrecisionSwitch, ...]
    """The oldest first."""

    @property
    def count(self) -> int:
        """How many there are, at least one."""
        return max(1, self.last - self.first + 1)

    def shares(self, places: Floats) -> Floats:
        """Positions on the axis as fractions from 0 to 1."""
        return (places - self.first) / self.count

    def precisions(self, places: Floats) -> list[str | None]:
        """The precision at each place; None before the first that is known."""
        begins = np.array([switch.step for switch in self.switches], np.float64)
        found = np.searchsorted(begins, places, side="right") - 1
        return [self.switches[i].precision if i >= 0 else None for i in found.tolist()]

    def stretches(self) -> list[tuple[float, float, str | None]]:
        """Where each stretch of one precision begins and ends, as shares, and its precision.

        Those too short to be seen are left out.
        """
        amount = min(MAX_COLUMNS, self.count)
        places = self.first + (np.arange(amount) + 0.5) * self.count / amount
        found, begin = [], 0
        for precision, group in groupby(self.precisions(places)):
            end = begin + len(list(group))
            found.append((begin / amount, end / amount, precision))
            begin = end
        return found


def ribbon(steps: Steps) -> Markup:
    """A strip in the colours of the precisions, with letters where there is room."""
    parts = []
    for begin, end, precision in steps.stretches():
        name = "unknown" if precision is None else precision_label(precision)
        words = element("title", f"{name} from step {round(steps.first + begin * steps.count):,}")
        where = {"x": percent(begin), "width": percent(end - begin)}
        parts.append(element("rect", words, class_=css_class(precision), height=16, **where))
        if end - begin >= _LETTER_SHARE:
            middle = percent((begin + end) / 2)
            parts.append(element("text", precision_letter(precision), x=middle, y=12, class_="letter"))
    return element("svg", *parts, class_="ribbon", height=16, role="img", aria_label=in_words(steps))


def in_words(steps: Steps) -> str:
    """``precisions: FP32, AMP fp16, FP32``, for screen readers."""
    labels = [precision_label(precision or "unknown") for _, _, precision in steps.stretches()]
    return f"precisions: {', '.join(labels)}"


def marks(steps: Steps, skips: Series, curves: Sequence[Series]) -> Markup | None:
    """A line of crosses: over skipped steps, and over NaN or Inf in ``curves``; None if there are none."""
    skipped = columns(skips)
    crosses = [_cross(share, "skip") for share in _where(steps, skipped.middles(), skipped.maximum > 0)]
    for curve in curves:
        cut = columns(curve)
        crosses += [_cross(share, "nonfinite") for share in _where(steps, cut.middles(), cut.nonfinite > 0)]
    return element("svg", *crosses, class_="marks", height=12, aria_hidden="true") if crosses else None


def _where(steps: Steps, places: Floats, holds: npt.NDArray[np.bool_]) -> list[float]:
    shares: list[float] = np.unique(np.round(steps.shares(places[holds]), 3)).tolist()
    return shares


def _cross(share: float, class_: str) -> Markup:
    return element("text", "×", x=percent(share), y=10, class_=class_)


def step_axis(steps: Steps) -> Markup:
    """The first step, the last one and round ones between them."""
    labels = [element("text", f"{steps.first:,}", x="0%", y=13, class_="first")]
    interval = max(1, round(nice(steps.count / 4)))
    for step in range(-(-steps.first // interval) * interval, steps.last, interval):
        share = (step + 0.5 - steps.first) / steps.count
        if _LABEL_SHARE <= share <= 1 - _LABEL_SHARE:
            labels.append(element("text", f"{step:,}", x=percent(share), y=13))
    if steps.last > steps.first:
        labels.append(element("text", f"{steps.last:,}", x="100%", y=13, class_="last"))
    return element("svg", *labels, class_="steps", height=18, aria_hidden="true")


def percent(share: float) -> str:
    """A share of one as SVG writes it: ``12.34%``."""
    return f"{100 * share:.2f}%"
