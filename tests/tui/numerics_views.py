"""Views of what is inside mixed precision, built by hand: sound, and in each kind of trouble."""

from dataclasses import replace

import numpy as np

from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.telemetry.scaling import ScalerView, judge_scaler
from amptui.telemetry.view import NumericsView, SessionView
from tests.telemetry import record_samples as samples
from tests.tui.views import NOW, compared, fp32_only, series, trained


def float16_window(
    typical_exponent: float, *, spread: float = 3.0, zeros: float = 0.03, **changes: object
) -> Float16Window:
    """A window of a million scaled gradients around 2^``typical_exponent``; some are zero."""
    exponents = np.arange(-60, 41)
    shares = np.exp(-(((exponents - typical_exponent) / spread) ** 2) / 2)
    counts = np.round(1e6 * (1 - zeros) * shares / shares.sum()).astype(int).tolist()
    window = samples.spread(dict(zip(exponents.tolist(), counts, strict=True)), round(1e6 * zeros))
    facts = {"step": 1184, "time": NOW - 1, "precision": "fp16", "hypothetical": False}
    cost = {"seconds": 0.00058, "seconds_since": 0.0646}
    return replace(window, **{**facts, **cost, **changes})  # type: ignore[arg-type]  # fields of a window


LOSING = (
    *(
        samples.parameter(
            name,
            elements=elements,
            flushed=flushed,
            subnormal=subnormal,
            squares=100.0,
            flushed_squares=0.01,
            subnormal_squares=subnormal_squares,
        )
        for name, elements, flushed, subnormal, subnormal_squares in (
            ("features.13.conv.weight", 294_912, 9142, 61_200, 0.15),
            ("features.12.batch_norm.weight", 512, 12, 96, 0.03),
        )
    ),
    samples.parameter("classifier.4.bias", elements=10, overflowing=1),
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
        scaler=judge_scaler(ScalerView(applied=1204, scale=65536.0)),
        window=float16_window(-8, worst=LOSING[:2]),
    )
    return replace(before, numerics=replace(sound, **changes))  # type: ignore[arg-type]  # its fields


def healthy() -> SessionView:
    """AMP fp16 with gradients that fit."""
    return numerics(compared(), trace=traced(), xray=xrayed())


def traced() -> ModulesTraced:
    """Hooks on every module, and nothing overflowed."""
    return samples.traced(1100, time=NOW - 5, asked=True, nearest=(samples.module(),), seconds=0.004)


def xrayed() -> XRayTaken:
    """One batch in both precisions, which agree."""
    layer = samples.layer("features.12", 0.9991, elements=294_912, relative_error=0.04, lost=0.002)
    losses = {"loss_fp32": 0.0312, "loss_amp": 0.0313}
    return samples.xray(1000, time=NOW - 9, layers=(layer,), seconds=0.031, **losses)


def collapsing() -> SessionView:
    """Every step overflows, whatever the scale."""
    skips = range(701, 713)
    gradients = replace(float16_window(14, zeros=0.01), nonfinite=1204, loss_scale=16.0, worst=LOSING[2:])
    weight = ("features.13.conv.weight",)
    newest = samples.skip(712, time=NOW, loss_scale=16.0, names=weight, count=1, consecutive=12)
    facts = ScalerView(applied=200, skipped=12, skips_in_a_row=12, recent_skips=12, newest_skip=newest)
    inf = samples.module("features.13.conv", way="backward", largest=float("inf"))
    return numerics(
        trained((("fp32", 500), ("fp16", 212)), skipped_steps=skips),
        grad_norm=float("inf"),
        grad_max=float("nan"),
        nonfinite_gradients=1204,
        headroom=-float("inf"),
        headroom_scale=16.0,
        min_headroom=-float("inf"),
        scaler=judge_scaler(facts),
        window=gradients,
        trace=replace(traced(), first=inf),
    )


def in_fp32() -> SessionView:
    """FP32 runs: what float16 would do to its gradients."""
    return numerics(
        fp32_only(),
        scaler=judge_scaler(ScalerView()),
        hypothetical=True,
        headroom=6.2,
        window=float16_window(-17, hypothetical=True, precision="fp32", worst=LOSING[:1], zeros=0.0),
    )


def in_bf16() -> SessionView:
    """bf16 runs with gradients that float16 could not hold unscaled, nor at any scale."""
    return numerics(
        trained((("fp32", 300), ("bf16", 904))),
        scaler=judge_scaler(ScalerView()),
        hypothetical=True,
        headroom=-1.3,
        min_headroom=-2.2,
        window=float16_window(-4, spread=9.0, hypothetical=True, precision="bf16", zeros=0.2, worst=LOSING),
    )


ALL = {build.__name__: build for build in (healthy, collapsing, in_fp32, in_bf16)}
