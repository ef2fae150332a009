"""The horizontal axis shared by all charts of a page: steps, their precisions and marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from amptui.diagnosis.labels import precision_label, precision_letter
from amptui.reports.export.markup import Markup, css_class, element, percent
from amptui.telemetry.axis import round_up
from amptui.telemetry.view import Floats, PrecisionSwitch, Series

MAX_COLUMNS = 600
"""More than a phone has pixels across; on a wide screen a column is two or three pixels."""

_LETTER_SHARE = 0.035
"""The fraction of the ribbon that a letter needs, even on a phone."""

_LABEL_SHARE = 0.14
"""The fraction of the axis around a label without other labels, even on a phone."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A curve in columns of ``width_steps`` steps each, from ``first_step`` on."""

    first_step: int
    width_steps: int
    minimum: Floats
    """Like the next two, NaN in a column without a finite value."""
    maximum: Floats
    mean: Floats
    nonfinite: Floats
    """The number of NaN and Inf in each column."""
    weights: Floats | None = None
    """Of rates: the seconds of each column."""

    def middles(self) -> Floats:
        """The position of the middle of each column; step n reaches from n to n + 1."""
        return self.first_step + (np.arange(len(self.mean), dtype=np.float64) + 0.5) * self.width_steps


def columns(series: Series) -> Columns:
    """``series`` in at most ``MAX_COLUMNS`` columns; no spike is lost."""
    joined = max(1, -(-len(series.mean) // MAX_COLUMNS))
    weights = None if series.weights is None else np.nan_to_num(_rows(series.weights, joined))
    with np.errstate(over="ignore"):
        return Columns(
            first_step=series.first_step,
            width_steps=series.bucket_steps * joined,
            minimum=np.fmin.reduce(_rows(series.minimum, joined), axis=1),
            maximum=np.fmax.reduce(_rows(series.maximum, joined), axis=1),
            mean=_means(_rows(series.mean, joined), weights),
            nonfinite=np.nansum(_rows(series.nonfinite.astype(np.float64), joined), axis=1),
            weights=None if weights is None else weights.sum(axis=1),
        )


def _rows(values: Floats, joined: int) -> Floats:
    """``joined`` neighbours per row, the last row padded with NaN."""
    return np.pad(values, (0, -len(values) % joined), constant_values=np.nan).reshape(-1, joined)


def _means(rows: Floats, weights: Floats | None) -> Floats:
    """Means of the finite values of each row, by their weights, without a sum that could overflow."""
    known = np.isfinite(rows)
    if weights is None:
        shares = np.where(known, rows, 0.0) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    else:
        totals = weights.sum(axis=1, keepdims=True)
        shares = np.where(known, rows, 0.0) * (weights / np.where(totals > 0, totals, 1.0))
    return np.where(known.any(axis=1), shares.sum(axis=1), np.nan)


@dataclass(frozen=True, slots=True)
class StepRange:
    """The steps from ``first`` to ``last``; step n reaches from n to n + 1."""

    first: int
    last: int
    switches: tuple[PrecisionSwitch, ...]
    """The oldest first."""

    @property
    def count(self) -> int:
        """How many there are, at least one."""
        return max(1, self.last - self.first + 1)

    def shares(self, positions: Floats) -> Floats:
        """Positions as fractions of the axis, from 0 to 1."""
        return (positions - self.first) / self.count

    def precisions(self, positions: Floats) -> list[str | None]:
        """The precision at each position; None before the first known one."""
        begins = np.array([switch.step for switch in self.switches], np.float64)
        found = np.searchsorted(begins, positions, side="right") - 1
        return [self.switches[i].precision if i >= 0 else None for i in found.tolist()]

    def stretches(self) -> list[tuple[float, float, str | None]]:
        """Begin and end, as fractions of the axis, and precision of each stretch of one precision.

        Stretches that are too short to be seen are left out.
        """
        amount = min(MAX_COLUMNS, self.count)
        positions = self.first + (np.arange(amount) + 0.5) * self.count / amount
        found, begin = [], 0
        for precision, group in groupby(self.precisions(positions)):
            end = begin + len(list(group))
            found.append((begin / amount, end / amount, precision))
            begin = end
        return found


def ribbon(steps: StepRange) -> Markup:
    """A strip in the colours of the precisions, with letters where there is room."""
    parts, labels = [], []
    for begin, end, precision in steps.stretches():
        labels.append(precision_label(precision or "unknown"))
        title = element("title", f"{labels[-1]} from step {round(steps.first + begin * steps.count):,}")
        where = {"x": percent(begin), "width": percent(end - begin)}
        parts.append(element("rect", title, class_=css_class(precision), height=16, **where))
        if end - begin >= _LETTER_SHARE:
            middle = percent((begin + end) / 2)
            parts.append(element("text", precision_letter(precision), x=middle, y=12, class_="letter"))
    words = f"precisions: {', '.join(labels)}"
    return element("svg", *parts, class_="ribbon", height=16, role="img", aria_label=words)


def marks(steps: StepRange, skips: Columns, curves: Sequence[Columns]) -> Markup | None:
    """A line of crosses at skipped steps, and at NaN or Inf in ``curves``; None if there are none."""
    crosses = _crosses(steps, skips.middles()[skips.maximum > 0], "skip")
    for curve in curves:
        crosses += _crosses(steps, curve.middles()[curve.nonfinite > 0], "nonfinite")
    return element("svg", *crosses, class_="marks", height=12, aria_hidden="true") if crosses else None


def _crosses(steps: StepRange, positions: Floats, class_: str) -> list[Markup]:
    shares: list[float] = np.unique(np.round(steps.shares(positions), 3)).tolist()
    return [element("text", "×", x=percent(share), y=10, class_=class_) for share in shares]


def step_axis(steps: StepRange) -> Markup:
    """The first step, the last one and round ones between them."""
    labels = [element("text", f"{steps.first:,}", x="0%", y=13, class_="first")]
    interval = max(1, round(round_up(steps.count / 4)))
    for step in range(-(-steps.first // interval) * interval, steps.last, interval):
        share = (step + 0.5 - steps.first) / steps.count
        if _LABEL_SHARE <= share <= 1 - _LABEL_SHARE:
            labels.append(element("text", f"{step:,}", x=percent(share), y=13))
    if steps.last > steps.first:
        labels.append(element("text", f"{steps.last:,}", x="100%", y=13, class_="last"))
    return element("svg", *labels, class_="steps", height=18, aria_hidden="true")
