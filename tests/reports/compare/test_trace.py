"""What a comparison knows of one run: totals at each step, final losses, record lows, and resumes."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.samples import DeviceSample, HostSample
from amptui.reports.compare.trace import FINAL_SHARE, MEAN_STEPS, Trace, final_mean
from amptui.telemetry.history import Track
from amptui.telemetry.view import Series
from tests.builders import in_blocks
from tests.reports.compare.compared_runs import figures, started, trained, validated
from tests.telemetry import record_samples

if TYPE_CHECKING:
    from amptui.records.run import Record


def series(values: list[float | None], **sizes: Any) -> Series:
    track = Track.empty(**sizes)
    track.extend(values)
    return track.snapshot()


def test_samples_and_seconds_add_up_along_the_steps() -> None:
    run = figures([started(), *trained([3.0, 2.0, 1.0])])
    assert run.curve.steps.tolist() == [1, 2, 3]
    assert run.curve.samples.tolist() == [10, 20, 30]
    assert run.curve.seconds.tolist() == [0.5, 1.0, 1.5]
    assert run.curve.loss.tolist() == [3, 2, 1]
    assert (run.samples, run.seconds) == (30, 1.5)


def test_a_long_run_keeps_its_totals_in_buckets() -> None:
    run = figures([started(), *trained([1.0] * 5000)])
    assert len(run.curve.loss) < 2049
    assert run.curve.samples[-1] <= run.samples == 50_000
    # Each bucket's samples belong to the steps of that bucket.
    assert run.curve.samples[:-1] == pytest.approx(10 * run.curve.steps[:-1])


# ------------------------------------------------------------------------------ final losses


@pytest.mark.parametrize("steps", [1, 19, 20, 21, 400, 1000, 4096])
def test_the_final_loss_is_the_mean_of_the_last_steps(steps: int) -> None:
    count = max(MEAN_STEPS, math.ceil(FINAL_SHARE * steps))
    values: list[float | None] = [float(step) for step in range(1, steps + 1)]
    expected = sum(range(max(1, steps - count + 1), steps + 1)) / min(count, steps)
    assert final_mean(series(values)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("losses", "final"),
    [
        ([1.0] * 30, 1.0),
        ([1.0] * 29 + [None], 1.0),
        ([1.0] * 25 + [math.inf] * 4 + [1.0], 1.0),
        ([1.0] * 29 + [math.nan], math.nan),
        ([1.0] * 10 + [math.inf] * 19 + [1.0], math.nan),
        ([None] * 30, None),
        ([1e308] * 30, 1e308),
    ],
)
def test_losses_that_are_not_finite(losses: list[float | None], final: float | None) -> None:
    result = figures([started(), *trained(losses)]).final_training
    assert result == pytest.approx(final, nan_ok=True)


# ------------------------------------------------------------------------------- record lows


def test_a_loss_is_reached_when_the_mean_of_twenty_is() -> None:
    losses = [2.0] * 30 + [1.0] * 30
    run = figures([started(), *trained(losses)])
    moment = run.reached(1.5, validation=False)
    assert moment is not None
    assert moment.step == 40  # ten of the last twenty are 1
    assert moment.samples == 400
    assert moment.seconds == 20.0
    assert run.best_training == 1.0
    assert run.reached(0.99, validation=False) is None


@given(st.lists(st.floats(-5, 5) | st.none() | st.just(math.nan), max_size=120), st.integers(1, 13))
def test_record_lows_are_those_of_a_plain_loop(losses: list[float | None], at_once: int) -> None:
    trace = Trace("runs/x")
    records: list[Record] = [started(), *trained(losses)]
    for start in range(0, len(records), at_once):
        trace.add(in_blocks(records[start : start + at_once]))
    expected: list[tuple[int, float]] = []
    reference: list[float] = []
    for step, loss in enumerate(losses, 1):
        if loss is not None and math.isfinite(loss):
            reference.append(loss)
            if len(reference) >= MEAN_STEPS:
                mean = float(np.mean(reference[-MEAN_STEPS:]))
                if not expected or mean < expected[-1][1]:
                    expected.append((step, mean))
    result = trace.figures("run", is_live=False, request={}, passed_over="", read_share=1.0).lows
    # A mean of the same numbers, summed in another order, may be lower by a rounding.
    assert [low.loss for low in result if low.step in {step for step, _ in expected}] == pytest.approx(
        [mean for step, mean in expected if step in {low.step for low in result}]
    )
    if expected:
        assert result[-1].loss == pytest.approx(expected[-1][1])


def test_validations_are_kept_with_what_had_been_trained() -> None:
    steps = trained([2.0] * 20)
    records: list[Record] = [started(), *steps[:10], validated(10, 1.5), *steps[10:], validated(20, math.nan)]
    run = figures(records)
    assert [(item.step, item.samples, item.seconds) for item in run.validations] == [
        (10, 100, 5),
        (20, 200, 10),
    ]
    assert run.best_validation == 1.5
    assert run.final_validation is not None
    assert math.isnan(run.final_validation)
    assert figures([started(), *steps, validated(20, None)]).validations == ()


# ------------------------------------------------------------------------------------ resumes


def test_steps_that_a_resumed_run_repeats_count_once() -> None:
    again = trained([0.5] * 20, first=31, step_seconds=0.25)
    records: list[Record] = [
        started(),
        *trained([2.0] * 40),
        validated(40, 9.0),
        record_samples.resumed(30),
        *again,
    ]
    run = figures(records)
    assert run.resumed == 1
    assert (run.samples, run.seconds) == (500, 30 * 0.5 + 20 * 0.25)
    assert run.curve.samples.tolist() == [10.0 * step for step in range(1, 51)]
    assert run.validations == ()
    assert all(low.step <= 20 or low.step > 30 for low in run.lows)


# ------------------------------------------------------------------------------------- others


def test_without_step_times_there_is_no_training_time() -> None:
    steps = trained([1.0] * 200)
    untimed = [replace(step, step_seconds=None) if step.step % 100 == 0 else step for step in steps]
    assert figures([started(), *untimed]).seconds == 99.0
    untimed[0] = replace(untimed[0], step_seconds=math.nan)
    assert figures([started(), *untimed]).seconds is None


def test_the_peak_of_the_process_is_the_highest_sample() -> None:
    samples = [
        DeviceSample(time=1.0, gpus=(), host=HostSample(process_rss_bytes=value)) for value in (5, 9, None, 7)
    ]
    assert figures([started(), *samples]).peak_process_bytes == 9
