"""Headroom step by step, what comes next, and the newest finding of each kind, as the view shows them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import Record
from amptui.records.steps import StepRecord
from amptui.telemetry.health import LARGEST_FLOAT16
from amptui.telemetry.numerics import MIN_OF, headroom
from amptui.telemetry.view import GrowthOutlook, NumericsView
from tests.builders import fold
from tests.telemetry.record_samples import (
    backoff,
    growth,
    module,
    run,
    skip,
    step,
    steps,
    traced,
    window,
    xray,
)


def numerics_of(*records: Record) -> NumericsView:
    session = fold(records)
    return session.view().numerics


def scaled(number: int, doublings_left: float, scale: float = 65536.0, **changes: object) -> StepRecord:
    """An ``fp16`` step whose largest gradient leaves so much headroom."""
    grad_max = LARGEST_FLOAT16 / scale / 2.0**doublings_left
    return step(number, precision="fp16", loss_scale=scale, grad_max=grad_max, **changes)


# ---------------------------------------------------------------------------------------- headroom


@given(grad_max=st.floats(1e-30, 1e30), scale=st.floats(1e-30, 1e30))
def test_the_headroom_is_the_formula(grad_max: float, scale: float) -> None:
    assert headroom(grad_max, scale) == pytest.approx(math.log2(65504 / (grad_max * scale)), abs=1e-9)


@given(grad_max=st.floats(0, exclude_min=True, allow_infinity=False), scale=st.floats(1e-300, 1e300))
def test_a_doubled_scale_takes_one_off_the_headroom(grad_max: float, scale: float) -> None:
    before, after = headroom(grad_max, scale), headroom(grad_max, 2 * scale)
    assert before is not None
    assert after == pytest.approx(before - 1, abs=1e-9)


@pytest.mark.parametrize("grad_max", [math.nan, math.inf])
def test_gradients_that_are_not_finite_have_a_headroom_of_minus_infinity(grad_max: float) -> None:
    assert headroom(grad_max, 65536.0) == -math.inf


@pytest.mark.parametrize(
    ("grad_max", "scale"), [(0.0, 65536.0), (1.0, 0.0), (1.0, math.nan), (1.0, math.inf), (math.nan, 0.0)]
)
def test_without_gradients_or_without_a_scale_there_is_no_headroom(grad_max: float, scale: float) -> None:
    assert headroom(grad_max, scale) is None


def test_a_float16_step_s_headroom_is_at_its_own_scale() -> None:
    numerics = numerics_of(run(), step(1, precision="fp16", loss_scale=1024.0, grad_max=0.5, grad_norm=2.0))
    assert numerics.headroom == pytest.approx(math.log2(65504 / 512))
    assert (numerics.headroom_scale, numerics.hypothetical) == (1024.0, False)
    assert (numerics.grad_norm, numerics.grad_max, numerics.nonfinite_gradients) == (2.0, 0.5, 0)
    assert numerics.measured_step == 1


def test_outside_of_float16_the_headroom_is_what_it_would_be_at_the_default_scale() -> None:
    numerics = numerics_of(run(), step(1, grad_max=0.5))
    assert (numerics.headroom_scale, numerics.hypothetical) == (65536.0, True)
    assert numerics.headroom == pytest.approx(math.log2(65504 / 32768))


def test_outside_of_float16_the_headroom_is_at_the_scale_that_the_scaler_keeps() -> None:
    session = fold([run(), scaled(1, 3.0, scale=4096.0), step(2, grad_max=1.0)])
    assert session.view().numerics.headroom_scale == 4096.0
    # The change comes in one batch with steps before and after it.
    session.fold([step(3, grad_max=1.0), backoff(3, 4096.0), step(4, grad_max=1.0)])
    result = session.view().numerics
    assert result.headroom_scale == 2048.0
    np.testing.assert_allclose(result.headrooms.recent[1:], np.log2([65504 / 4096] * 2 + [65504 / 2048]))


def test_steps_whose_gradients_were_not_measured_keep_the_newest_that_were() -> None:
    numerics = numerics_of(run(), step(1, grad_max=0.5, grad_norm=7.0), *steps(2, 40))
    assert (numerics.measured_step, numerics.grad_norm, numerics.grad_max) == (1, 7.0, 0.5)
    assert numerics.headrooms.count == 40
    assert np.isnan(numerics.headrooms.recent[1:]).all()
    assert not numerics.headrooms.recent_nonfinite.any()


def test_a_nan_gradient_is_a_gap_and_not_a_value_in_the_curve() -> None:
    numerics = numerics_of(run(), step(1, grad_max=math.nan), step(2, grad_max=0.0), step(3, grad_max=1.0))
    assert numerics.headrooms.recent_nonfinite.tolist() == [True, False, False]
    assert np.isnan(numerics.headrooms.recent[:2]).all()
    assert numerics.min_headroom == -math.inf


def test_all_zero_gradients_have_a_maximum_and_no_headroom() -> None:
    numerics = numerics_of(run(), step(1, grad_max=0.0))
    assert (numerics.grad_max, numerics.headroom, numerics.min_headroom) == (0.0, None, None)


def test_nothing_is_said_of_gradients_that_were_never_measured() -> None:
    assert numerics_of(run(), *steps(1, 50)).headrooms.count == 50
    numerics = numerics_of(run(), *steps(1, 50))
    assert (numerics.headroom, numerics.min_headroom, numerics.measured_step, numerics.outlook) == (None,) * 4


def test_the_least_headroom_is_of_the_newest_measured_steps_alone() -> None:
    low = scaled(1, 0.5)
    within = [scaled(number, 5.0) for number in range(2, MIN_OF + 1)]
    assert numerics_of(run(), low, *within).min_headroom == pytest.approx(0.5)
    assert numerics_of(run(), low, *within, scaled(MIN_OF + 1, 5.0)).min_headroom == pytest.approx(5.0)


def test_the_least_headroom_is_that_of_the_scale_that_the_newest_ran_with() -> None:
    before, after = scaled(1, 1.5, scale=65536.0), scaled(2, 4.0, scale=32768.0)
    assert numerics_of(run(), before, after).min_headroom == pytest.approx(2.5)


@given(
    rooms=st.lists(st.none() | st.floats(-20, 40), min_size=1, max_size=20),
    log2_scale=st.integers(0, 24),
)
def test_the_least_is_the_minimum_and_never_above_the_newest(
    rooms: list[float | None], log2_scale: int
) -> None:
    scale = 2.0**log2_scale
    records = [
        step(i, precision="fp16", loss_scale=scale) if room is None else scaled(i, room, scale)
        for i, room in enumerate(rooms, 1)
    ]
    numerics = numerics_of(run(), *records)
    measured = [room for room in rooms if room is not None]
    assert (numerics.headroom is None) == (not measured)
    if numerics.headroom is not None and numerics.min_headroom is not None:
        assert numerics.headroom == pytest.approx(measured[-1], abs=1e-9)
        assert numerics.min_headroom == pytest.approx(min(measured), abs=1e-9)
        assert numerics.min_headroom <= numerics.headroom


def test_a_resumed_run_forgets_the_gradients_of_the_steps_it_does_again() -> None:
    session = fold([run(), *(scaled(number, 6.0) for number in range(1, 31)), scaled(40, 0.25)])
    session.fold([run(time=900.0), scaled(31, 6.0)])
    result = session.view().numerics
    assert result.measured_step == 31
    assert result.min_headroom == pytest.approx(6.0)
    session.fold([run(time=990.0), step(20, precision="fp16")])
    assert session.view().numerics.headroom is None


# ----------------------------------------------------------------------------------------- outlook


def outlook(*records: Record) -> GrowthOutlook:
    result = numerics_of(run(precision="fp16"), *records).outlook
    assert result is not None
    return result


@pytest.mark.parametrize(("tracker", "steps_left"), [(1240, 760), (1999, 1)])
def test_a_growth_that_fits_is_foretold_with_the_headroom_it_leaves(tracker: int, steps_left: int) -> None:
    result = outlook(scaled(1, 3.1, growth_tracker=tracker))
    assert (result.steps, result.overflow_step) == (steps_left, None)
    assert (result.headroom_now, result.headroom_then) == pytest.approx((3.1, 2.1))


def test_a_growth_that_does_not_fit_leaves_less_than_no_headroom() -> None:
    result = outlook(scaled(1, 0.6), scaled(2, 5.0, growth_tracker=1240))
    assert result.headroom_then == pytest.approx(-0.4)


def test_a_growth_back_to_a_scale_that_overflowed_names_that_step() -> None:
    skipped = step(1, precision="fp16", grad_max=math.inf, skipped=True)
    after = scaled(2, 4.0, scale=32768.0, growth_tracker=1)
    result = outlook(skipped, skip(1), backoff(1, 65536.0), after)
    assert result == GrowthOutlook(steps=1999, overflow_step=1, overflow_scale=65536.0)
    lower = outlook(skipped, backoff(1, 2048.0), scaled(2, 4.0, scale=1024.0, growth_tracker=1))
    assert (lower.steps, lower.headroom_then) == pytest.approx((1999, 3.0))


@pytest.mark.parametrize(
    "records",
    [
        [step(1, grad_max=0.5)],
        [step(1, precision="fp16")],
        [scaled(1, 3.0), step(2)],
        [scaled(1, 3.0, growth_tracker=None)],
        [scaled(1, 3.0, growth_tracker=2000)],
        [scaled(1, 3.0), step(2, precision="fp16", grad_max=math.nan, skipped=True)],
        [step(1, precision="fp16", grad_max=0.0)],
    ],
)
def test_nothing_is_foretold_of_what_is_not_known(records: list[Record]) -> None:
    assert numerics_of(run(), *records).outlook is None


def test_a_growth_that_has_just_come_is_counted_anew() -> None:
    result = outlook(scaled(5, 3.0, growth_tracker=1999), growth(5, 65536.0))
    assert (result.steps, result.headroom_then) == pytest.approx((2000, 1.0))


# ---------------------------------------------------------------------------------------- findings


def test_the_newest_finding_of_each_kind_is_kept() -> None:
    numerics = numerics_of(run(), window(600), window(632), traced(615), traced(800), xray(700), xray(701))
    assert (numerics.window, numerics.trace, numerics.xray) == (window(632), traced(800), xray(701))


def test_without_findings_there_are_none() -> None:
    numerics = numerics_of(run(), *steps(1, 5))
    assert (numerics.window, numerics.trace, numerics.xray) == (None, None, None)


def test_the_scaler_s_verdict_names_the_module_of_a_trace_for_as_long_as_it_holds() -> None:
    bad = step(612, precision="fp16", loss=math.nan, skipped=True)
    trace = traced(615, first=module(largest=math.inf))
    verdict = numerics_of(run(), bad, skip(612, loss=math.nan), trace).scaler
    assert (verdict.state, verdict.severity) == ("forward overflow", "warning")
    assert verdict.began == trace.first
    late = step(5000, precision="fp16", loss=math.nan, skipped=True)
    assert numerics_of(run(), trace, late, skip(5000, loss=math.nan)).scaler.began is None
    elsewhere = traced(615, first=module(largest=math.inf), precision="bf16")
    assert numerics_of(run(), bad, skip(612, loss=math.nan), elsewhere).scaler.began is None


def test_a_forward_overflow_leaves_no_headroom_and_says_nothing_of_the_next_growth() -> None:
    overflow = replace(scaled(2, 3.0), loss=math.nan, grad_max=math.nan)
    numerics = numerics_of(run(), scaled(1, 3.0), overflow, scaled(3, 3.0))
    assert numerics.min_headroom == -math.inf
    assert numerics.outlook is not None
    assert numerics.outlook.headroom_then == pytest.approx(2.0)
