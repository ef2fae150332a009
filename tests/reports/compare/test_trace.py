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
from tests.reports.compare.compared_runs import figures, finished, started, trained, validated, whole_run
from tests.single_steps import in_blocks
from tests.telemetry import record_samples

if TYPE_CHECKING:
    from amptui.records.run import Record


def series(values: list[float | None], **sizes: Any) -> Series:
    track = Track.empty(**sizes)
    track.extend(values)
    return track.snapshot()


def test_samples_and_seconds_add_up_along_the_steps() -> None:
    found = figures([started(), *trained([3.0, 2.0, 1.0])])
    assert found.curve.steps.tolist() == [1, 2, 3]
    assert found.curve.samples.tolist() == [10, 20, 30]
    assert found.curve.seconds.tolist() == [0.5, 1.0, 1.5]
    assert found.curve.loss.tolist() == [3, 2, 1]
    assert (found.samples, found.seconds) == (30, 1.5)


def test_batches_do_not_matter() -> None:
    records: list[Record] = whole_run([4 / step for step in range(1, 91)])
    records.insert(50, validated(49, 0.7))
    whole = figures(records)
    trace = Trace("runs/x")
    for start in range(0, len(records), 7):
        trace.add(in_blocks(records[start : start + 7]))
    parts = trace.figures("run", is_live=False, asked={}, passed_over="", read_share=1.0)
    assert parts.lows == whole.lows
    assert parts.validations == whole.validations
    assert np.array_equal(parts.curve.samples, whole.curve.samples)
    assert (parts.samples, parts.seconds, parts.final_training) == (
        whole.samples,
        whole.seconds,
        whole.final_training,
    )


def test_a_long_run_keeps_its_totals_in_buckets() -> None:
    found = figures([started(), *trained([1.0] * 5000)])
    assert len(found.curve.loss) < 2049
    assert found.curve.samples[-1] <= found.samples == 50_000
    # Each bucket's samples belong to the steps of that bucket.
    assert found.curve.samples[:-1] == pytest.approx(10 * found.curve.steps[:-1])


def test_a_run_without_steps_has_no_losses() -> None:
    cases: list[list[Record]] = [[], [started()], [started(), finished(0)]]
    for records in cases:
        found = figures(records)
        assert (found.samples, found.seconds, found.final_training, found.best_training) == (
            0,
            None,
            None,
            None,
        )
        assert len(found.curve.loss) == 0


# ------------------------------------------------------------------------------ final losses


@pytest.mark.parametrize("steps", [1, 19, 20, 21, 400, 1000, 4096])
def test_the_final_loss_is_the_mean_of_the_last_steps(steps: int) -> None:
    wanted = max(MEAN_STEPS, math.ceil(FINAL_SHARE * steps))
    values: list[float | None] = [float(step) for step in range(1, steps + 1)]
    expected = sum(range(max(1, steps - wanted + 1), steps + 1)) / min(wanted, steps)
    assert final_mean(series(values)) == pytest.approx(expected)


def test_the_final_loss_of_a_very_long_run_is_that_of_its_buckets() -> None:
    values: list[float | None] = [float(step) for step in range(1, 1001)]
    # 50 steps are 7 buckets of 8 steps, of which the last is full.
    found = final_mean(series(values, buckets=128, recent=16))
    assert found == pytest.approx((1000 - 55 + 1000) / 2)


def test_the_final_loss_after_a_resume_needs_no_recent_values() -> None:
    track = Track.empty(recent=8)
    track.extend([float(step) for step in range(1, 101)])
    track.rewind(95)
    assert final_mean(track.snapshot()) == pytest.approx(sum(range(75, 95)) / 20)


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
    found = figures([started(), *trained(losses)]).final_training
    assert found == pytest.approx(final, nan_ok=True)


# ------------------------------------------------------------------------------- record lows


def test_a_loss_is_reached_when_the_mean_of_twenty_is() -> None:
    losses = [2.0] * 30 + [1.0] * 30
    found = figures([started(), *trained(losses)])
    moment = found.reached(1.5, validation=False)
    assert moment is not None
    assert moment.step == 40  # ten of the last twenty are 1
    assert moment.samples == 400
    assert moment.seconds == 20.0
    assert found.best_training == 1.0
    assert found.reached(0.99, validation=False) is None


@given(st.lists(st.floats(-5, 5) | st.none() | st.just(math.nan), max_size=120), st.integers(1, 13))
def test_record_lows_are_those_of_a_plain_loop(losses: list[float | None], at_once: int) -> None:
    trace = Trace("runs/x")
    records: list[Record] = [started(), *trained(losses)]
    for start in range(0, len(records), at_once):
        trace.add(in_blocks(records[start : start + at_once]))
    expected: list[tuple[int, float]] = []
    known: list[float] = []
    for step, loss in enumerate(losses, 1):
        if loss is not None and math.isfinite(loss):
            known.append(loss)
            if len(known) >= MEAN_STEPS:
                mean = float(np.mean(known[-MEAN_STEPS:]))
                if not expected or mean < expected[-1][1]:
                    expected.append((step, mean))
    found = trace.figures("run", is_live=False, asked={}, passed_over="", read_share=1.0).lows
    # A mean of the same numbers, summed in another order, may be lower by a rounding.
    assert [low.loss for low in found if low.step in {step for step, _ in expected}] == pytest.approx(
        [mean for step, mean in expected if step in {low.step for low in found}]
    )
    if expected:
        assert found[-1].loss == pytest.approx(expected[-1][1])


def test_validations_are_kept_with_what_had_been_trained() -> None:
    steps = trained([2.0] * 20)
    records: list[Record] = [started(), *steps[:10], validated(10, 1.5), *steps[10:], validated(20, math.nan)]
    found = figures(records)
    assert [(each.step, each.samples, each.seconds) for each in found.validations] == [
        (10, 100, 5),
        (20, 200, 10),
    ]
    assert found.best_validation == 1.5
    assert found.final_validation is not None
    assert math.isnan(found.final_validation)
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
    found = figures(records)
    assert found.resumed == 1
    assert (found.samples, found.seconds) == (500, 30 * 0.5 + 20 * 0.25)
    assert found.curve.samples.tolist() == [10.0 * step for step in range(1, 51)]
    assert found.validations == ()
    assert all(low.step <= 20 or low.step > 30 for low in found.lows)


def test_a_run_resumed_from_far_back_counts_from_its_bucket() -> None:
    again = trained([0.5] * 10, first=101)
    found = figures([started(), *trained([2.0] * 9000), record_samples.resumed(100), *again])
    # A bucket holds eight steps here.
    assert found.samples == pytest.approx(1100, abs=80)
    assert found.view.step == 110


def test_steps_that_arrive_late_are_left_out() -> None:
    late = trained([9.0] * 3, first=2)
    found = figures([started(), *trained([1.0] * 10), *late])
    assert found.samples == 100
    assert len(found.curve.loss) == 10


def test_steps_that_are_missing_leave_a_gap() -> None:
    found = figures([started(), *trained([1.0] * 5), *trained([1.0] * 5, first=11)])
    assert found.samples == 100
    assert np.isnan(found.curve.samples[5:10]).all()
    assert found.curve.samples[10] == 60


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


def test_huge_numbers_raise_nothing() -> None:
    records: list[Record] = [started(), *trained([1e308, -1e308] * 30, samples=2**62, step_seconds=1e308)]
    found = figures(records)
    assert found.final_training is not None
    assert math.isfinite(found.final_training)
