"""The numbers of one rank, as columns of every table of ranks: on the screen and on the page of a run."""

from collections.abc import Callable
from typing import NamedTuple

from amptui.base import units
from amptui.telemetry.rank_watch import RankSummary


class RankNumber(NamedTuple):
    """One column: title and text, its cells on a screen, and its rank there: the highest goes first."""

    title: str
    text: Callable[[RankSummary], str]
    width: int
    priority: int


def _memory(row: RankSummary) -> str:
    used, total = row.memory_used_bytes, row.place.memory_total_bytes if row.place is not None else None
    return units.NOT_AVAILABLE if used is None else units.bytes_of(used, total)


RANK_NUMBERS = (
    RankNumber("data wait", lambda row: units.milliseconds(row.data_seconds), 9, 3),
    RankNumber("compute", lambda row: units.milliseconds(row.compute_seconds), 8, 2),
    RankNumber("step", lambda row: units.milliseconds(row.step_seconds), 8, 9),
    RankNumber("peak", lambda row: units.number_of_bytes(row.peak_allocated_bytes), 8, 7),
    RankNumber("GPU memory", _memory, 14, 6),
    RankNumber("grad norm", lambda row: units.loss(row.grad_norm), 9, 10),
    RankNumber("skipped", lambda row: units.count(row.skipped), 7, 8),
    RankNumber("own Inf", lambda row: units.count(row.overflowed), 7, 11),
    RankNumber("clock", lambda row: units.megahertz(row.sm_clock_mhz), 9, 5),
)
