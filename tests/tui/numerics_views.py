"""Views of what is inside mixed precision, built by hand: sound, and in each kind of trouble."""

from dataclasses import replace
from functools import cache

import numpy as np

from amptui.records.findings import (
    Float16Window,
    LayerAgreement,
    ModuleRange,
    ModulesTraced,
    ParameterWindow,
    XRayTaken,
)
from amptui.records.run import StepSkipped
from amptui.telemetry.scaling import ScalerFacts, ScalerVerdict, judge_scaler
from amptui.telemetry.view import GrowthOutlook, NumericsView, SessionView
from tests.tui.views import NOW, compared, fp32_only, series, trained, with_skips


def float16_window(
    typical_exponent: float, *, spread: float = 3.0, zeros: float = 0.03, **changes: object
) -> Float16Window:
    """A window of a million scaled gradients around 2^``typical_exponent``; some are zero."""
    return replace(_sound_window(typical_exponent, spread, zeros), **changes)  # type: ignore[arg-type]


@cache
def _sound_window(typical_exponent: float, spread: float, zeros: float) -> Float16Window:
    elements = 1_000_000
    normal = np.random.default_rng(9).normal(0.0, 1.0, (2, round(elements * (1 - zeros))))
    magnitudes = np.abs(normal[0]) * 2.0 ** (typical_exponent + spread * normal[1])
    exponents = np.clip(np.frexp(magnitudes)[1] - 1, -60, 40)
    first = min(-30, int(exponents.min()))
    return Float16Window(
        time=NOW - 1,
        step=1184,
        precision="fp16",
        loss_scale=65536.0,
        hypothetical=False,
        first_exponent=first,
        counts=tuple(np.bincount(exponents - first, minlength=18 - first).tolist()),
        elements=elements,
        zeros=elements - magnitudes.size,
        flushed=int((magnitudes <= 2.0**-25).sum()),
        subnormal=int(((magnitudes > 2.0**-25) & (magnitudes < 2.0**-14)).sum()),
        overflowing=int((magnitudes >= 65520).sum()),
        nonfinite=0,
        worst=(),
        seconds=0.00058,
        steps_since=32,
        seconds_since=0.0646,
        squares=float((magnitudes**2).sum()),
        flushed_squares=float((magnitudes[magnitudes <= 2.0**-25] ** 2).sum()),
        subnormal_squares=float((magnitudes[(magnitudes > 2.0**-25) & (magnitudes < 2.0**-14)] ** 2).sum()),
    )


LOSING = (
    ParameterWindow(
        name="features.13.conv.weight",
        elements=294_912,
        zeros=0,
        flushed=9142,
        subnormal=61_200,
        overflowing=0,
        squares=100.0,
        flushed_squares=0.01,
        subnormal_squares=0.15,
    ),
    ParameterWindow(
        name="features.12.batch_norm.weight",
        elements=512,
        zeros=0,
        flushed=12,
        subnormal=96,
        overflowing=0,
        squares=100.0,
        flushed_squares=0.01,
        subnormal_squares=0.03,
    ),
    ParameterWindow(name="classifier.4.bias", elements=10, zeros=0, flushed=0, subnormal=0, overflowing=1),
)
"""Parameters that float16 takes something from, worst first."""


def numerics(before: SessionView, **changes: object) -> SessionView:
    """``before`` with healthy numerics, and what each caller changes of them."""
    noise = np.random.default_rng(10).normal(0.0, 0.5, before.step)
    measured = [3.4 + float(v) if step % 2 else None for step, v in enumerate(noise)]
    sound = NumericsView(
        grad_norm=1.02,
        grad_max=0.0831,
        nonfinite_gradients=0,
        measured_step=1204,
        headroom=3.59,
        headroom_scale=65536.0,
        min_headroom=2.41,
        headrooms=series(measured),
        outlook=GrowthOutlook(steps=760, headroom_now=2.4, headroom_then=1.4),
        scaler=judge_scaler(ScalerFacts(steps=1204, scale=65536.0)),
        window=float16_window(-8, worst=LOSING[:2]),
    )
    return replace(before, numerics=replace(sound, **changes))  # type: ignore[arg-type]  # its fields


def healthy() -> SessionView:
    """AMP fp16 with gradients that fit."""
    return numerics(compared(), trace=traced(), xray=xrayed())


def traced() -> ModulesTraced:
    """Hooks on every module, and nothing overflowed."""
    nearest = ModuleRange(
        name="features.12.conv", kind="Conv2d", way="forward", dtype="float16", largest=41_200.0
    )
    return ModulesTraced(
        time=NOW - 5,
        step=1100,
        precision="fp16",
        loss_scale=65536.0,
        asked=True,
        first=None,
        nearest=(nearest,),
        modules=43,
        seconds=0.004,
    )


def xrayed() -> XRayTaken:
    """One batch in both precisions, which agree."""
    layer = LayerAgreement(
        name="features.12",
        kind="Conv2d",
        elements=294_912,
        cosine=0.9991,
        relative_error=0.04,
        lost=0.002,
        output_dtype="float16",
    )
    return XRayTaken(
        time=NOW - 9,
        step=1000,
        precision="fp16",
        loss_scale=65536.0,
        loss_fp32=0.0312,
        loss_amp=0.0313,
        layers=(layer,),
        operators=(),
        output_dtypes={},
        weights_bytes=59 * 1024**2,
        gradients_bytes=59 * 1024**2,
        optimizer_bytes=118 * 1024**2,
        buffers_bytes=0,
        saved_bytes_fp32=None,
        saved_bytes_amp=None,
        random=False,
        seconds=0.031,
    )


def calibrating() -> SessionView:
    """The first steps in fp16: the scaler looks for its scale, and no window was measured yet."""
    verdict = judge_scaler(ScalerFacts(steps=26, skips=2, recent_skips=2, steps_since_skip=24))
    return numerics(
        trained((("fp32", 40), ("fp16", 26)), skipped_steps=(41, 42)),
        scaler=verdict,
        headroom=0.21,
        min_headroom=-float("inf"),
        outlook=GrowthOutlook(steps=1998, headroom_now=0.2, headroom_then=-0.8),
        window=None,
    )


def collapsing() -> SessionView:
    """Every step overflows, whatever the scale."""
    skips = range(701, 713)
    gradients = replace(float16_window(14, zeros=0.01), nonfinite=1204, loss_scale=16.0, worst=LOSING[2:])
    newest = StepSkipped(
        time=NOW,
        step=712,
        loss_scale=16.0,
        loss=0.5,
        names=("features.13.conv.weight",),
        count=1,
        consecutive=12,
    )
    facts = ScalerFacts(steps=212, skips=12, skips_in_a_row=12, recent_skips=12, newest_skip=newest)
    inf = ModuleRange(
        name="features.13.conv", kind="Conv2d", way="backward", dtype="float16", largest=float("inf")
    )
    return numerics(
        trained((("fp32", 500), ("fp16", 212)), skipped_steps=skips),
        grad_norm=float("inf"),
        grad_max=float("nan"),
        nonfinite_gradients=1204,
        headroom=-float("inf"),
        headroom_scale=16.0,
        min_headroom=-float("inf"),
        outlook=None,
        scaler=judge_scaler(facts),
        window=gradients,
        trace=replace(traced(), first=inf),
    )


def forward_overflow() -> SessionView:
    """The loss itself is not finite in float16."""
    verdict = judge_scaler(ScalerFacts(steps=704, skips=3, recent_skips=1, forward_overflow_step=1190))
    return numerics(with_skips(), scaler=verdict, headroom=1.4, window=float16_window(-3))


def in_fp32() -> SessionView:
    """FP32 runs: what float16 would do to its gradients."""
    return numerics(
        fp32_only(),
        scaler=ScalerVerdict(),
        hypothetical=True,
        headroom=6.2,
        outlook=None,
        window=float16_window(-17, hypothetical=True, precision="fp32", worst=LOSING[:1], zeros=0.0),
    )


def in_bf16() -> SessionView:
    """bf16 runs with gradients that float16 could not hold unscaled, nor at any scale."""
    return numerics(
        trained((("fp32", 300), ("bf16", 904))),
        scaler=ScalerVerdict(),
        hypothetical=True,
        headroom=-1.3,
        min_headroom=-2.2,
        outlook=None,
        window=float16_window(-4, spread=9.0, hypothetical=True, precision="bf16", zeros=0.2, worst=LOSING),
    )


ALL = {
    build.__name__: build for build in (healthy, calibrating, collapsing, forward_overflow, in_fp32, in_bf16)
}
