"""What a benchmark found: figures beside their aims, as a table for people and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from amptui.base import units
from amptui.base.student import t_quantile
from amptui.monitor.ab_test import MIN_PAIRS

Unit = Literal["number", "fraction", "times", "seconds"]

_FORMATS: Mapping[Unit, Callable[[float], str]] = {
    "fraction": lambda value: units.percent(value, 2),
    "number": lambda value: f"{value:.4g}",
    "times": units.ratio,
    "seconds": units.milliseconds,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number and what it should be."""

    name: str
    value: float
    unit: Unit
    aim: float | None = None
    """None: of interest, nothing to be met."""
    more_is_better: bool = False
    interval: tuple[float, float] | None = None
    """95% confidence interval of the value."""
    caveat: str = ""
    """Why the value says nothing, if it does not."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What else a reader of the JSON wants to know; JSON values."""

    @property
    def met(self) -> bool | None:
        """Whether the value is what it should be; None where it says nothing or nothing is asked of it."""
        if self.caveat or self.aim is None:
            return None
        return self.value >= self.aim if self.more_is_better else self.value <= self.aim

    @property
    def is_sure(self) -> bool:
        """Whether all of the interval lies on the same side of the aim."""
        if self.aim is None or self.interval is None:
            return True
        low, high = self.interval
        return not low < self.aim < high

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met, "sure": self.is_sure}

    def as_row(self) -> tuple[str, ...]:
        show = _FORMATS[self.unit]
        value = show(self.value)
        if self.interval:
            value += f" ({show(self.interval[0])} to {show(self.interval[1])})"
        if self.aim is None:
            return (self.name, value, "", self.caveat)
        aim = f"{'at least' if self.more_is_better else 'at most'} {show(self.aim)}"
        verdict = f"{'met' if self.met else 'missed'}{'' if self.is_sure else ', not surely'}"
        return (self.name, value, aim, self.caveat or verdict)


def table(figures: Sequence[Figure]) -> str:
    """One line a figure, in columns."""
    rows = [("figure", "measured", "aim", ""), *(figure.as_row() for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def mean_ratio(ratios: Sequence[float]) -> float:
    """The geometric mean: twice as fast and half as fast cancel."""
    return float(np.exp(np.log(ratios).mean()))


def mean_interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """95% interval of the geometric mean of independent ratios: by Student's t of their logarithms.

    None with fewer than :data:`amptui.monitor.ab_test.MIN_PAIRS`.
    """
    if len(ratios) < MIN_PAIRS:
        return None
    logs = np.log(ratios)
    reach = t_quantile(0.95, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach))


def rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    """Values for people to read in JSON, each to so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]
