"""What ranks tell rank 0: one row of numbers from each, read in columns."""

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

_NAN = float("nan")

Floats = npt.NDArray[np.float64]

Table = Floats | list[list[float]]
"""[ranks, ROW_VALUES]."""


class RankNumbers(NamedTuple):
    """What a rank measured since its last row; NaN where it measured nothing."""

    steps: float = 0.0
    """How many steps the means are of."""
    last_step: float = 0.0
    """The last of them."""
    step_seconds: float = _NAN
    data_seconds: float = _NAN
    compute_seconds: float = _NAN
    grad_norm: float = _NAN
    skipped: float = 0.0
    """Steps that its scaler skipped so far."""
    overflowed: float = _NAN
    """Steps so far in which its own loss or gradients were not finite; NaN before one was looked at."""
    trouble_step: float = 0.0
    """The newest step that was looked at for that."""
    trouble_states: float = 0.0
    """What was found in it and in those before, for ``trouble_states.unpacked``."""
    loss_scale: float = _NAN
    """After ``last_step``."""
    peak_bytes: float = _NAN
    hashed_step: float = -1.0
    """After which the newest hash of the weights was computed; -1 before the first."""
    weights_hash: float = _NAN
    memory_used_bytes: float = _NAN
    """Of the rank's GPU, by NVML, as the next two."""
    sm_clock_mhz: float = _NAN
    clocks_event_reasons: float = 0.0
    """As NVML's mask."""


class RankRow(NamedTuple):
    """What a rank posts for rank 0, in float64."""

    number: float
    """Of the row, equal on all ranks."""
    step: float
    numbers: RankNumbers = RankNumbers()

    def values(self) -> list[float]:
        """The row as plain numbers."""
        return [*self[:-1], *self.numbers]

    @classmethod
    def of(cls, values: Sequence[float]) -> "RankRow":
        """Inverse of :meth:`values`."""
        own = len(cls._fields) - 1
        return cls._make([*values[:own], RankNumbers._make(values[own:])])


_COLUMNS = (*RankRow._fields[:-1], *RankNumbers._fields)

ROW_VALUES = len(_COLUMNS)


class RankRows(Sequence[RankRow]):
    """The rows of all ranks, in their order; a row is made when asked for: there may be thousands."""

    def __init__(self, table: Table) -> None:
        self._table = np.asarray(table, np.float64).reshape(-1, ROW_VALUES)

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> RankRow: ...
    @overload
    def __getitem__(self, index: slice) -> "RankRows": ...
    def __getitem__(self, index: int | slice) -> "RankRow | RankRows":
        found = self._table[index]
        return RankRows(found) if isinstance(index, slice) else RankRow.of(found.tolist())

    def column(self, name: str) -> Floats:
        """[ranks]: one field of all rows, or of their numbers."""
        return self._table[:, _COLUMNS.index(name)]
