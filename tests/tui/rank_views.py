"""Views of distributed runs of every size, with and without a slow rank, and of ranks in trouble."""

from collections.abc import Callable
from functools import cache

from amptui.records.ranks import RankLost, RanksAwaited, RanksDisagree, RankValue
from amptui.records.run import Record
from amptui.telemetry.view import SessionView
from tests.builders import view_of
from tests.telemetry.simulated_ranks import SimulatedRanks, Slow, run_of

SLOW_RANK = {2: 1, 8: 5, 64: 42, 1024: 682}

DISAGREES = RanksDisagree(
    time=140.0, step=900, what="loss scale", count=1, most=65536.0, others=(RankValue(rank=3, value=32768.0),)
)

LOST = RankLost(time=140.0, step=900, rank=6, host="node-1", cause="killed", detail="signal 9")

AWAITED = RanksAwaited(time=140.0, step=900, ranks=(3,), count=1, phase="training", seconds=12.0)


@cache
def view(world_size: int, slow: Slow = "", *more: Record, fsdp: bool = False) -> SessionView:
    """After 20 seconds; ``more`` follows."""
    simulated = SimulatedRanks(world_size, 3, slow=slow, slow_rank=SLOW_RANK[world_size], fsdp=fsdp)
    parallel = "fsdp2" if fsdp else "ddp"
    return view_of(*run_of(simulated, 20, total_steps=10_000, parallel=parallel), *more)


def unsampled() -> SessionView:
    """The ranks are known, and no number of them yet."""
    return view_of(*run_of(SimulatedRanks(8, 3), 0))


ALL: dict[str, Callable[[], SessionView]] = {
    "2 ranks": lambda: view(2),
    "8 ranks, slow data": lambda: view(8, "input"),
    "8 ranks, slow clock": lambda: view(8, "clocks"),
    "8 ranks, FSDP2": lambda: view(8, "", fsdp=True),
    "8 ranks in trouble": lambda: view(8, "compute", DISAGREES, LOST),
    "8 ranks, one awaited": lambda: view(8, "", AWAITED),
    "8 ranks, unsampled": unsampled,
    "64 ranks": lambda: view(64, "compute"),
    "1,024 ranks": lambda: view(1024, "compute"),
}
