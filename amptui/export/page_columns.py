"""A history reduced to what a page can show: a few hundred columns of steps."""

from dataclasses import dataclass

import numpy as np

from amptui.telemetry.view import Floats, Series

MAX_COLUMNS = 600
"""More than a phone has pixels across; on a wide screen a column is two or three."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A curve in columns of ``width_steps`` steps each, from ``first_step`` on."""

    first_step: int
    width_steps: int
    minimum: Floats
    """NaN in all three is a column without a finite value."""
    maximum: Floats
    mean: Floats
    nonfinite: Floats
    """The number of NaN and Inf in each column."""

    def middles(self) -> Floats:
        """The position of the middle of each column; step n reaches from n to n + 1."""
        return self.first_step + (np.arange(len(self.mean), dtype=np.float64) + 0.5) * self.width_steps


def columns(series: Series) -> Columns:
    """``series`` in at most ``MAX_COLUMNS`` columns; no spike is lost."""
    joined = max(1, -(-len(series.mean) // MAX_COLUMNS))
    width = series.bucket_steps * joined
    with np.errstate(over="ignore"):
        return Columns(
            first_step=series.first_step,
            width_steps=width,
            minimum=np.fmin.reduce(_rows(series.minimum, joined), axis=1),
            maximum=np.fmax.reduce(_rows(series.maximum, joined), axis=1),
            mean=_means(_rows(series.mean, joined)),
            nonfinite=np.nansum(_rows(series.nonfinite.astype(np.float64), joined), axis=1),
        )


def _rows(values: Floats, joined: int) -> Floats:
    """``joined`` neighbours per row, the last row padded with NaN."""
    padded = np.full(-(-len(values) // joined) * joined, np.nan)
    padded[: len(values)] = values
    return padded.reshape(-1, joined)


def _means(rows: Floats) -> Floats:
    """Means of the finite values of each row, without a sum that could overflow."""
    known = np.isfinite(rows)
    shares = np.where(known, rows, 0.0) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(known.any(axis=1), shares.sum(axis=1), np.nan)
