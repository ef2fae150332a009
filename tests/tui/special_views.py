"""Views of what is seldom: comparisons in turns, memory by kind, several optimizers, pauses that ask."""

from dataclasses import replace
from typing import Any

from amptui.records.findings import MemoryBreakdown, PrecisionMeasured
from amptui.records.keeping import CheckpointWritten
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import OptimizerView, SessionView
from tests.gan_journal import DISCRIMINATOR, gan_records
from tests.telemetry import record_samples
from tests.telemetry.record_samples import faster, measured, steps
from tests.telemetry.record_samples import memory as breakdown_of
from tests.telemetry.whole_runs import session_of
from tests.tui import numerics_views, timing_views, views

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
    breakdown_of("fp16", activations=760 * MIB, copies=28 * MIB, peak=1138 * MIB, step=812),
    replace(breakdown_of("bf16", activations=760 * MIB, copies=28 * MIB, peak=1138 * MIB), step=900),
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
    return replace(timing_views.compute_bound(), flops=flops)
