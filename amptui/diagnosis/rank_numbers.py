"""The numbers of one rank, as columns of every table of ranks: on the screen and on the page of a run."""

from amptui.base import units
from amptui.base.table import Column
from amptui.telemetry.rank_watch import RankSummary


def _memory(row: RankSummary) -> str:
    used, total = row.memory_used_bytes, row.place.memory_total_bytes if row.place is not None else None
    return units.NOT_AVAILABLE if used is None else units.bytes_of(used, total)


RANK_NUMBERS: tuple[Column[RankSummary], ...] = (
    Column(title="data wait", cell=lambda row: units.milliseconds(row.data_seconds), width=9, priority=3),
    Column(title="compute", cell=lambda row: units.milliseconds(row.compute_seconds), width=8, priority=2),
    Column(title="step", cell=lambda row: units.milliseconds(row.step_seconds), width=8, priority=9),
    Column(
        title="peak", cell=lambda row: units.number_of_bytes(row.peak_allocated_bytes), width=8, priority=7
    ),
    Column(title="GPU memory", cell=_memory, width=14, priority=6),
    Column(title="grad norm", cell=lambda row: units.loss(row.grad_norm), width=9, priority=10),
    Column(title="skipped", cell=lambda row: units.count(row.skipped), width=7, priority=8),
    Column(title="own Inf", cell=lambda row: units.count(row.overflowed), width=7, priority=11),
    Column(title="clock", cell=lambda row: units.megahertz(row.sm_clock_mhz), width=9, priority=5),
)
