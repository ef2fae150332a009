"""Views of what is seldom: comparisons in turns, memory by kind, several optimizers or ranks, timed steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from amptui.records.findings import MemoryBreakdown, PrecisionMeasured
from amptui.records.keeping import CheckpointWritten
from amptui.records.ranks import RankLost, RanksAwaited, RanksDisagree, RankValue
from amptui.records.run import Record
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import OptimizerView, SessionView
from tests.builders import view_of
from tests.gan_journal import DISCRIMINATOR, gan_records
from tests.telemetry import record_samples
from tests.telemetry.record_samples import faster, measured, steps
from tests.telemetry.record_samples import memory as breakdown_of
from tests.telemetry.simulated_ranks import SimulatedRanks, Slow, run_of
from tests.telemetry.whole_runs import session_of
from tests.tui import numerics_views, views

__all__ = ["DISCRIMINATOR"]

MIB = 2**20

BEGUN = (measured("fp32", blocks=0), measured("fp16", blocks=0))
"""The rows of a comparison in turns that has just begun."""


def in_turns(
    rounds: int = 2, rows: tuple[PrecisionMeasured, ...] = (measured("fp32"), faster())
) -> SessionView:
    comparison = record_samples.compared(rounds=rounds, rows=rows, over=False, reason="running")
    return replace(views.compared(), compared=comparison)


def over(**changes: Any) -> SessionView:
    return replace(views.compared(), compared=record_samples.compared(**changes))


MEMORY = (
    breakdown_of("fp32", activations=1500 * MIB, peak=1850 * MIB),
    breakdown_of("fp16", activations=788 * MIB, peak=1138 * MIB, step=812),
    replace(breakdown_of("bf16", activations=788 * MIB, peak=1138 * MIB), step=900),
)


def with_memory(*breakdowns: MemoryBreakdown, before: SessionView | None = None) -> SessionView:
    return replace(before or views.compared(), memory=breakdowns)


GAN = tuple(gan_records(60))[:-1]
"""Two optimizers, still training."""


def gan_view(*, front: str = "") -> SessionView:
    return session_of(GAN).view(front)


def no_losses() -> SessionView:
    """A loop whose backward passes are of several values."""
    return session_of([GAN[0], *steps(1, 30, loss=None, loss_form="several values")]).view()


def at_the_floor(**unsupported: str) -> SessionView:
    """The loss scale has collapsed, and the run waits for an answer."""
    before = views.with_skips()
    return replace(
        before,
        state="paused",
        run=views.run_started(unsupported=unsupported),
        pause_reason="the scale is at its floor",
        scaler=replace(before.scaler, scale=2.0**-10),
        numerics=numerics_views.collapsing().numerics,
    )


def nan_weights(checkpoint: str = "") -> SessionView:
    """The weights hold NaN; with the checkpoint that was written before."""
    record = CheckpointWritten(
        time=1.0, step=8, name=checkpoint, size_bytes=1, reason="epoch", blocked_seconds=0.0, seconds=0.1
    )
    return replace(
        at_the_floor(),
        pause_reason="all weights are NaN",
        pause_cause="weights",
        checkpoint=record if checkpoint else None,
    )


def seven_optimizers() -> SessionView:
    """More than have room in a line."""
    front = OptimizerView(name="", label="a", is_front=True)
    critics = (OptimizerView(name=str(n), label=f"critic {n}", loss=0.5) for n in range(6))
    return replace(gan_view(), optimizers=(front, *critics))


def with_flops() -> SessionView:
    """The FLOP/s of two precisions, of which one multiplies matrices of an odd size."""
    run = record_samples.run()
    odd = record_samples.flops("fp16", flops=10**12, unaligned_flops=10**12)
    odd = replace(odd, unaligned=(record_samples.product("head"),))
    flops = (flops_now(record_samples.flops(flops=10**12), 0.02, run), flops_now(odd, 0.0025, run))
    return replace(compute_bound(), flops=flops)


# ------------------------------------------------------------------------------------ timed steps
def compute_bound() -> SessionView:
    """FP32 and AMP on a GPU that the host keeps ahead of."""
    enqueue = (0.00004, 0.00042, 0.00061, 0.00012, 0.00009)
    full = (0.00005, 0.00121, 0.00231, 0.00006, 0.00028)
    half = (0.00005, 0.00058, 0.00102, 0.00006, 0.00031)
    fp32 = record_samples.timed(*enqueue, device=full, busy=97.0, steps=200)
    fp16 = record_samples.timed(*enqueue, device=half, busy=93.0, steps=173, precision="fp16")
    return replace(views.compared(), timings=(fp32, fp16))


def input_bound() -> SessionView:
    """A CPU that loads and trains in turns, timed in FP32 alone."""
    timing = record_samples.timed(0.00252, 0.00051, 0.00082, None, 0.00011, steps=64)
    return replace(views.no_nvml(), timings=(timing,))


def hardly_timed() -> SessionView:
    """Two steps so far."""
    timing = record_samples.timed(0.00002, 0.00051, 0.00082, None, 0.00011, steps=2)
    return replace(views.no_nvml(), timings=(timing,))


def every_precision() -> SessionView:
    """More than there is room for on a small screen."""
    seconds = (0.00005, 0.00121, 0.00231, None, 0.00028)
    timings = tuple(
        record_samples.timed(*seconds, device=seconds, busy=99.0, steps=200, precision=name)
        for name in ("fp32", "ieee", "tf32", "fp16", "bf16")
    )
    return replace(views.compared(), timings=timings)


TIMED = {build.__name__: build for build in (compute_bound, input_bound, hardly_timed, every_precision)}


# ------------------------------------------------------------------------------------------ ranks
SLOW_RANK = {2: 1, 8: 5, 64: 42, 1024: 682}

DISAGREES = RanksDisagree(
    time=140.0, step=900, what="loss scale", count=1, most=65536.0, others=(RankValue(rank=3, value=32768.0),)
)

LOST = RankLost(time=140.0, step=900, rank=6, host="node-1", cause="killed", detail="signal 9")

AWAITED = RanksAwaited(time=140.0, step=900, ranks=(3,), count=1, phase="training", seconds=12.0)


@cache
def of_ranks(world_size: int, slow: Slow = "", *more: Record, fsdp: bool = False) -> SessionView:
    """After 20 seconds; ``more`` follows."""
    simulated = SimulatedRanks(world_size, 3, slow=slow, slow_rank=SLOW_RANK[world_size], fsdp=fsdp)
    parallel = "fsdp2" if fsdp else "ddp"
    return view_of(*run_of(simulated, 20, total_steps=10_000, parallel=parallel), *more)


def unsampled() -> SessionView:
    """The ranks are known, and no number of them yet."""
    return view_of(*run_of(SimulatedRanks(8, 3), 0))


RANKED: dict[str, Callable[[], SessionView]] = {
    "2 ranks": lambda: of_ranks(2),
    "8 ranks, slow data": lambda: of_ranks(8, "input"),
    "8 ranks, slow clock": lambda: of_ranks(8, "clocks"),
    "8 ranks, FSDP2": lambda: of_ranks(8, "", fsdp=True),
    "8 ranks in trouble": lambda: of_ranks(8, "compute", DISAGREES, LOST),
    "8 ranks, one awaited": lambda: of_ranks(8, "", AWAITED),
    "8 ranks, unsampled": unsampled,
    "64 ranks": lambda: of_ranks(64, "compute"),
    "1,024 ranks": lambda: of_ranks(1024, "compute"),
}
