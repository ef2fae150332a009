"""Headroom step by step, what comes next, and the newest finding of each kind, as the view shows them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import Record
from amptui.records.steps import StepRecord
from amptui.telemetry.health import LARGEST_FLOAT16
from amptui.telemetry.numerics import MIN_OF, headroom
from amptui.telemetry.view import GrowthOutlook, NumericsView
from tests.builders import assert_holds, fold, make_started, make_step, make_steps, view_of
from tests.telemetry.record_samples import backoff, growth, module, skip, traced, window, xray


def numerics_of(*records: Record) -> NumericsView:
    return view_of(*records).numerics


def scaled(number: int, doublings_left: float, scale: float = 65536.0, **changes: object) -> StepRecord:
    """An ``fp16`` step whose largest gradient leaves so much headroom."""
    grad_max = LARGEST_FLOAT16 / scale / 2.0**doublings_left
    return make_step(number, precision="fp16", loss_scale=scale, grad_max=grad_max, **changes)


SKIPPED = make_step(1, precision="fp16", grad_max=math.inf, skipped=True)

# ---------------------------------------------------------------------------------------- headroom


@given(grad_max=st.floats(1e-30, 1e30), scale=st.floats(1e-30, 1e30))
def test_the_headroom_is_the_formula(grad_max: float, scale: float) -> None:
    assert headroom(grad_max, scale) == pytest.approx(math.log2(65504 / (grad_max * scale)), abs=1e-9)


LOW = scaled(1, 0.5)
WITHIN = [scaled(number, 5.0) for number in range(2, MIN_OF + 1)]

KNOWN: dict[str, tuple[Sequence[Record], dict[str, Any]]] = {
    "fp16 at its own scale": (
        [make_step(1, precision="fp16", loss_scale=1024.0, grad_max=0.5, grad_norm=2.0)],
        {
            "headroom": math.log2(65504 / 512),
            "headroom_scale": 1024.0,
            "hypothetical": False,
            "grad_norm": 2.0,
            "grad_max": 0.5,
            "nonfinite_gradients": 0,
            "measured_step": 1,
        },
    ),
    "FP32 at the default scale": (
        [make_step(1, grad_max=0.5)],
        {"headroom": math.log2(65504 / 32768), "headroom_scale": 65536.0, "hypothetical": True},
    ),
    "the newest that were measured": (
        [make_step(1, grad_max=0.5, grad_norm=7.0), *make_steps(2, 40)],
        {"measured_step": 1, "grad_norm": 7.0, "grad_max": 0.5, "headrooms.count": 40},
    ),
    "never measured": (
        make_steps(1, 50),
        {
            "headrooms.count": 50,
            "headroom": None,
            "min_headroom": None,
            "measured_step": None,
            "outlook": None,
            "window": None,
            "trace": None,
            "xray": None,
        },
    ),
    "least of the newest": ([LOW, *WITHIN], {"min_headroom": 0.5}),
    "least of the newest alone": ([LOW, *WITHIN, scaled(MIN_OF + 1, 5.0)], {"min_headroom": 5.0}),
    "least at the newest scale": (
        [scaled(1, 1.5, scale=65536.0), scaled(2, 4.0, scale=32768.0)],
        {"min_headroom": 2.5},
    ),
    "forward overflow": (
        [scaled(1, 3.0), replace(scaled(2, 3.0), loss=math.nan, grad_max=math.nan), scaled(3, 3.0)],
        {"min_headroom": -math.inf, "outlook.headroom_then": 2.0},
    ),
    "newest findings": (
        [window(600), window(632), traced(615), traced(800), xray(700), xray(701)],
        {"window": window(632), "trace": traced(800), "xray": xray(701)},
    ),
    # ---------------------------------------------------------------------------------- the next growth
    "growth that fits": (
        [scaled(1, 3.1, growth_tracker=1240)],
        {
            "outlook.steps": 760,
            "outlook.overflow_step": None,
            "outlook.headroom_now": 3.1,
            "outlook.headroom_then": 2.1,
        },
    ),
    "growth that does not fit": (
        [scaled(1, 0.6), scaled(2, 5.0, growth_tracker=1240)],
        {"outlook.headroom_then": -0.4},
    ),
    "growth to a scale that overflowed": (
        [SKIPPED, skip(1), backoff(1, 65536.0), scaled(2, 4.0, scale=32768.0, growth_tracker=1)],
        {"outlook": GrowthOutlook(steps=1999, overflow_step=1, overflow_scale=65536.0)},
    ),
    "growth to a lower scale than overflowed": (
        [SKIPPED, backoff(1, 2048.0), scaled(2, 4.0, scale=1024.0, growth_tracker=1)],
        {"outlook.steps": 1999, "outlook.headroom_then": 3.0},
    ),
    "growth that has just come": (
        [scaled(5, 3.0, growth_tracker=1999), growth(5, 65536.0)],
        {"outlook.steps": 2000, "outlook.headroom_then": 1.0},
    ),
    **{
        f"nothing foretold {case}": (records, {"outlook": None})
        for case, records in {
            "in FP32": [make_step(1, grad_max=0.5)],
            "without gradients": [make_step(1, precision="fp16")],
            "after FP32": [scaled(1, 3.0), make_step(2)],
            "without a tracker": [scaled(1, 3.0, growth_tracker=None)],
            "at the interval": [scaled(1, 3.0, growth_tracker=2000)],
            "after a skip": [
                scaled(1, 3.0),
                make_step(2, precision="fp16", grad_max=math.nan, skipped=True),
            ],
        }.items()
    },
}


@pytest.mark.parametrize(("records", "expected"), KNOWN.values(), ids=KNOWN)
def test_what_is_known_of_gradients(records: Sequence[Record], expected: dict[str, Any]) -> None:
    assert_holds(numerics_of(make_started(), *records), expected)


def test_outside_of_float16_the_headroom_is_at_the_scale_that_the_scaler_keeps() -> None:
    session = fold([make_started(), scaled(1, 3.0, scale=4096.0), make_step(2, grad_max=1.0)])
    assert session.view().numerics.headroom_scale == 4096.0
    # The change comes in one batch with steps before and after it.
    session.fold([make_step(3, grad_max=1.0), backoff(3, 4096.0), make_step(4, grad_max=1.0)])
    result = session.view().numerics
    assert result.headroom_scale == 2048.0
    np.testing.assert_allclose(result.headrooms.recent[1:], np.log2([65504 / 4096] * 2 + [65504 / 2048]))


def test_a_nan_gradient_is_a_gap_and_not_a_value_in_the_curve() -> None:
    measured = make_steps(1, 4, grad_max=[math.nan, 0.0, 1.0, None])
    numerics = numerics_of(make_started(), *measured)
    assert numerics.headrooms.recent_nonfinite.tolist() == [True, False, False, False]
    assert np.isnan(numerics.headrooms.recent).tolist() == [True, True, False, True]
    assert numerics.min_headroom == -math.inf


def test_the_scaler_s_verdict_names_the_module_of_a_trace_for_as_long_as_it_holds() -> None:
    bad = make_step(612, precision="fp16", loss=math.nan, skipped=True)
    trace = traced(615, first=module(largest=math.inf))
    verdict = numerics_of(make_started(), bad, skip(612, loss=math.nan), trace).scaler
    assert (verdict.state, verdict.severity) == ("forward overflow", "warning")
    assert verdict.began == trace.first
    late = make_step(5000, precision="fp16", loss=math.nan, skipped=True)
    assert numerics_of(make_started(), trace, late, skip(5000, loss=math.nan)).scaler.began is None
    elsewhere = traced(615, first=module(largest=math.inf), precision="bf16")
    assert numerics_of(make_started(), bad, skip(612, loss=math.nan), elsewhere).scaler.began is None
