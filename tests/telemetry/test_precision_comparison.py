"""FP32 beside AMP: medians of what was counted, and no ratio before there is one."""

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.speed import why_no_ratio
from amptui.records.steps import StepRecord
from amptui.telemetry.comparison import MIN_STEPS, WINDOW_STEPS, PrecisionLedger
from amptui.telemetry.view import Comparison
from tests.telemetry.record_samples import step, steps, stretches


def ledger(*batches: list[StepRecord]) -> PrecisionLedger:
    sums = PrecisionLedger()
    for batch in batches:
        for stretch in stretches(batch):
            sums.add(stretch)
    return sums


def compared(*batches: list[StepRecord]) -> Comparison:
    return ledger(*batches).comparison()


def test_the_speed_up_is_the_ratio_of_the_medians() -> None:
    comparison = compared(
        steps(1, 30, step_seconds=0.004),
        steps(31, 31, step_seconds=9.0),
        steps(32, 61, precision="fp16", step_seconds=0.002),
    )
    assert (comparison.baseline, comparison.low) == ("fp32", "fp16")
    assert comparison.speedup == pytest.approx(2.0)
    assert comparison.missing == ""
    fp32, fp16 = comparison.rows
    assert (fp32.steps, fp32.median_step_seconds) == (31, 0.004)
    assert fp16.samples_per_second == pytest.approx(256 / 0.002)


def test_the_speed_up_is_of_the_figures_that_are_shown_however_long_the_run() -> None:
    comparison = compared(
        steps(1, 3 * WINDOW_STEPS, step_seconds=0.5),
        steps(3 * WINDOW_STEPS + 1, 4 * WINDOW_STEPS, step_seconds=0.006),
        [step(4 * WINDOW_STEPS + n, precision="fp16", step_seconds=0.001 * n) for n in range(1, 26)],
    )
    fp32, fp16 = comparison.rows
    assert fp32.median_step_seconds == 0.006
    assert fp16.median_step_seconds == pytest.approx(0.013)
    assert comparison.speedup == pytest.approx(0.006 / 0.013)


@pytest.mark.parametrize(("slow_steps", "missing"), [(0, ""), (4, ""), (20, "steady steps")])
def test_disturbed_steps_whose_mean_says_the_opposite_have_no_speed_up(slow_steps: int, missing: str) -> None:
    """Of 100 AMP steps at twice the speed, each slow one takes ten times as long as an FP32 step."""
    slow = 200 - slow_steps
    comparison = compared(
        steps(1, 100, step_seconds=0.004),
        steps(101, slow, precision="fp16", step_seconds=0.002),
        *([steps(slow + 1, 200, precision="fp16", step_seconds=0.04)] if slow_steps else []),
    )
    assert comparison.missing == missing
    mean = 0.4 / (0.002 * (100 - slow_steps) + 0.04 * slow_steps)
    if missing:
        assert comparison.speedup is None
        assert comparison.by_median == pytest.approx(2.0)
        assert comparison.by_mean == pytest.approx(mean)
    else:
        assert (comparison.by_median, comparison.by_mean) == (None, None)
        assert comparison.speedup == pytest.approx(2.0)


def test_steps_of_more_samples_are_not_disturbed() -> None:
    comparison = compared(
        steps(1, 100, step_seconds=0.004, samples=64),
        steps(101, 200, precision="fp16", step_seconds=0.006, samples=256),
    )
    assert comparison.missing == ""
    assert comparison.speedup == pytest.approx(0.004 / 0.006)


def skips(first: int, last: int, **fields: Any) -> list[StepRecord]:
    return [step(n, precision="fp16", skipped=True, **fields) for n in range(first, last + 1)]


def test_skipped_steps_are_counted_and_left_out_of_every_figure() -> None:
    comparison = compared(
        steps(1, 30, step_seconds=0.004),
        steps(31, 60, precision="fp16", step_seconds=0.002),
        skips(61, 160, step_seconds=0.0001),
    )
    fp16 = comparison.rows[1]
    assert (fp16.steps, fp16.skipped, fp16.median_step_seconds) == (30, 100, 0.002)
    assert fp16.samples_per_second == pytest.approx(256 / 0.002)
    assert comparison.speedup == pytest.approx(2.0)


@pytest.mark.parametrize("settling", [False, True])
def test_a_precision_whose_steps_were_all_skipped_has_no_speed(settling: bool) -> None:
    comparison = compared(
        steps(1, 30, step_seconds=0.004), skips(31, 56, step_seconds=0.001, settling=settling)
    )
    fp16 = comparison.rows[1]
    assert (fp16.measured_steps, fp16.skipped) == (0, 26)
    assert (fp16.median_step_seconds, fp16.samples_per_second) == (None, None)
    assert (comparison.speedup, comparison.provisional_speedup) == (None, None)
    assert why_no_ratio(comparison) == "not enough steps: AMP 0 of 20 (26 skipped)"


def test_the_first_applied_step_of_a_stretch_is_the_slow_one_also_after_skips() -> None:
    comparison = compared(
        skips(1, 3, step_seconds=0.001, settling=True),
        steps(4, 4, precision="fp16", step_seconds=5.0, settling=True),
        steps(5, 6, precision="fp16", step_seconds=0.002, settling=True),
    )
    assert comparison.rows[0].median_step_seconds == 0.002


def test_steps_of_several_stretches_count_together() -> None:
    comparison = compared(
        *(
            steps(first, first + 9, precision=precision, step_seconds=seconds)
            for first, precision, seconds in ((1, "fp32", 0.004), (11, "fp16", 0.002)) * 2
        )
    )
    assert comparison.speedup == pytest.approx(2.0)


def test_settling_is_left_out_of_everything_but_the_skips() -> None:
    comparison = compared(
        steps(1, 5, precision="fp16", settling=True, step_seconds=1.0, loss=9.0, skipped=True),
        steps(6, 30, precision="fp16", step_seconds=0.002, loss=0.25),
        steps(31, 31, precision="fp16", settling=True, loss=8.0),
    )
    (row,) = comparison.rows
    assert (row.steps, row.warm_up_steps, row.skipped) == (25, 6, 5)
    assert (row.median_step_seconds, row.last_loss) == (0.002, 0.25)


def warm_up(first: int, last: int, **changes: Any) -> list[StepRecord]:
    return steps(first, last, settling=True, **changes)


def test_before_any_step_is_counted_the_warm_up_steps_tell_without_the_first() -> None:
    comparison = compared(
        [*warm_up(1, 1, step_seconds=2.0, loss=2.3), *warm_up(2, 4, step_seconds=0.5, loss=2.1)],
        [
            *warm_up(5, 5, precision="bf16", step_seconds=3.0),
            *warm_up(6, 7, precision="bf16", step_seconds=0.25),
        ],
    )
    fp32, bf16 = comparison.rows
    assert (fp32.steps, fp32.provisional_steps, fp32.warm_up_steps) == (0, 4, 4)
    assert (fp32.median_step_seconds, fp32.samples_per_second, fp32.last_loss) == (0.5, 256 / 0.5, 2.1)
    assert (bf16.provisional_steps, bf16.median_step_seconds) == (3, 0.25)
    assert comparison.provisional_speedup == pytest.approx(2.0)
    assert (comparison.speedup, comparison.held_back_by) == (None, "")


def test_a_batch_of_records_begins_no_stretch() -> None:
    (row,) = compared(
        warm_up(1, 1, step_seconds=2.0), warm_up(2, 2, step_seconds=0.5), warm_up(3, 3, step_seconds=0.4)
    ).rows
    assert row.median_step_seconds == pytest.approx(0.45)


def test_each_stretch_begins_with_a_step_that_is_left_out() -> None:
    comparison = compared(
        [*warm_up(1, 1, step_seconds=2.0), *warm_up(2, 3, step_seconds=0.5)],
        warm_up(4, 5, precision="fp16", step_seconds=0.25),
        [*warm_up(6, 6, step_seconds=1.0), *warm_up(7, 7, step_seconds=0.5)],
    )
    assert comparison.rows[0].median_step_seconds == 0.5


def test_one_step_is_told_and_compared_with_nothing() -> None:
    comparison = compared(warm_up(1, 1, step_seconds=2.0), warm_up(2, 9, precision="fp16", step_seconds=0.5))
    assert (comparison.rows[0].median_step_seconds, comparison.rows[0].provisional_steps) == (2.0, 1)
    assert comparison.provisional_speedup is None


def test_what_was_not_timed_is_no_impression() -> None:
    comparison = compared(warm_up(1, 5, step_seconds=None), warm_up(6, 9, precision="fp16", step_seconds=0.5))
    assert (comparison.rows[0].median_step_seconds, comparison.rows[0].provisional_steps) == (None, 0)
    assert comparison.provisional_speedup is None


@pytest.mark.parametrize(
    ("counted", "provisional_steps", "seconds"), [(0, 10, 0.5), (1, 10, 0.5), (2, 0, 0.4), (30, 0, 0.4)]
)
def test_counted_steps_take_the_place_of_warm_up_steps(
    counted: int, provisional_steps: int, seconds: float
) -> None:
    (row,) = compared(warm_up(1, 10, step_seconds=0.5), steps(11, 10 + counted, step_seconds=0.4)).rows
    assert (row.steps, row.provisional_steps) == (counted, provisional_steps)
    assert row.median_step_seconds == seconds


def test_a_first_impression_gives_way_to_a_speed_up() -> None:
    fp32, few, enough = steps(1, 30, step_seconds=0.4), range(31, 33), range(33, 61)
    amp = {"precision": "fp16", "step_seconds": 0.1}
    early = compared(fp32, [step(n, **amp) for n in few])
    late = compared(fp32, [step(n, **amp) for n in (*few, *enough)])
    assert early.speedup is None
    assert early.provisional_speedup == pytest.approx(4.0)
    assert late.speedup == pytest.approx(4.0)
    assert late.provisional_speedup is None


@pytest.mark.parametrize(
    ("batches", "missing"),
    [
        ([], "steps"),
        ([steps(1, 30)], "low"),
        ([steps(1, 30, precision="bf16")], "baseline"),
        ([steps(1, 30), steps(31, 42, precision="fp16")], "more steps"),
        ([steps(1, 3, precision="tf32"), steps(4, 15, precision="bf16")], "more steps"),
        ([steps(1, 30), steps(31, 60, precision="fp16", step_seconds=None)], "more steps"),
    ],
)
def test_what_a_speed_up_still_needs_is_known(batches: list[list[StepRecord]], missing: str) -> None:
    comparison = compared(*batches)
    assert comparison.missing == missing
    assert comparison.speedup is None


def test_the_most_used_precision_of_each_kind_is_compared() -> None:
    comparison = compared(
        steps(1, 25, precision="ieee"),
        steps(26, 90, precision="tf32"),
        steps(91, 120, precision="fp16"),
        steps(121, 200, precision="bf16"),
    )
    assert (comparison.baseline, comparison.low) == ("tf32", "bf16")
    assert [row.precision for row in comparison.rows] == ["ieee", "tf32", "fp16", "bf16"]


def test_a_precision_of_a_later_version_has_its_row_and_nothing_else() -> None:
    comparison = compared(steps(1, 30, precision="fp4"))
    assert [row.precision for row in comparison.rows] == ["fp4"]
    assert (comparison.baseline, comparison.low) == (None, None)


def test_the_memory_saving_needs_both_peaks() -> None:
    sums = ledger(steps(1, 30), steps(31, 60, precision="fp16"))
    sums.add_peak("fp32", 2000)
    sums.add_peak("fp16", None)
    assert sums.comparison().memory_saving is None
    sums.add_peak("fp16", 1200)
    assert sums.comparison().memory_saving == pytest.approx(0.4)
    sums.add_peak("fp16", 1000)
    assert sums.comparison().memory_saving == pytest.approx(0.4), "a peak never falls"
    sums.add_peak("fp16", 3000)
    assert sums.comparison().memory_saving == pytest.approx(-0.5), "negative is more"


def test_a_peak_alone_makes_no_row() -> None:
    sums = PrecisionLedger()
    sums.add_peak("fp16", 1)
    assert sums.comparison().rows == ()


def test_only_the_newest_steps_are_in_the_median() -> None:
    (row,) = compared(
        steps(1, 5000, step_seconds=0.5), steps(5001, 5000 + WINDOW_STEPS, step_seconds=0.004)
    ).rows
    assert row.steps == 5000 + WINDOW_STEPS
    assert row.median_step_seconds == 0.004


@given(
    seconds=st.lists(
        st.none() | st.floats(1e-6, 1e3) | st.sampled_from([math.nan, math.inf, 0.0]), max_size=60
    )
)
def test_the_row_equals_a_naive_count(seconds: list[float | None]) -> None:
    records = [
        record
        for number, value in enumerate(seconds, 1)
        for record in steps(number, number, step_seconds=value)
    ]
    timed = [value for value in seconds if value is not None and 0 < value < math.inf]
    rows = compared(records).rows
    assert [row.steps for row in rows] == ([len(timed)] if seconds else [])
    if not timed:
        assert all(row.median_step_seconds is row.samples_per_second is None for row in rows)
        return
    (row,) = rows
    assert row.median_step_seconds == pytest.approx(statistics.median(timed))
    assert row.samples_per_second == pytest.approx(256 * len(timed) / sum(timed))


def test_nothing_new_is_the_same_comparison() -> None:
    sums = ledger(steps(1, MIN_STEPS))
    assert sums.comparison() is sums.comparison()
