"""FP32 beside AMP: medians of what was counted, and no ratio before there is one."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import PRECISION_ORDER
from amptui.records.steps import StepRecord
from amptui.telemetry.comparison import WINDOW_STEPS, PrecisionLedger
from amptui.telemetry.view import Comparison
from tests.builders import assert_holds, make_step, make_steps
from tests.telemetry.record_samples import stretches

NAMES = [field.name for field in fields(Comparison)]


def ledger(*batches: list[StepRecord]) -> PrecisionLedger:
    sums = PrecisionLedger()
    for batch in batches:
        for stretch in stretches(batch):
            sums.add(stretch)
    return sums


def compared(*batches: list[StepRecord]) -> Comparison:
    return ledger(*batches).comparison()


def skips(first: int, last: int, **changes: Any) -> list[StepRecord]:
    return make_steps(first, last, precision="fp16", skipped=True, loss_scale=None, **changes)


def warm_up(first: int, last: int, **changes: Any) -> list[StepRecord]:
    return make_steps(first, last, settling=True, **changes)


FP32 = make_steps(1, 30, step_seconds=0.004)
FP16 = make_steps(31, 60, precision="fp16", step_seconds=0.002)

COMPARISONS: dict[str, tuple[Sequence[list[StepRecord]], dict[str, Any]]] = {
    "long run": (
        [
            make_steps(1, 3 * WINDOW_STEPS, step_seconds=0.5),
            make_steps(3 * WINDOW_STEPS + 1, 4 * WINDOW_STEPS, step_seconds=0.006),
            [make_step(4 * WINDOW_STEPS + n, precision="fp16", step_seconds=0.001 * n) for n in range(1, 26)],
        ],
        {
            "fp32.median_step_seconds": 0.006,
            "fp16.median_step_seconds": 0.013,
            "speedup": 0.006 / 0.013,
        },
    ),
    "more samples": (
        [
            make_steps(1, 100, step_seconds=0.004, samples=64),
            make_steps(101, 200, precision="fp16", step_seconds=0.006, samples=256),
        ],
        {"missing": "", "speedup": 0.004 / 0.006},
    ),
    "skipped steps": (
        [FP32, FP16, skips(61, 160, step_seconds=0.0001)],
        {
            "baseline": "fp32",
            "low": "fp16",
            "fp16.steps": 30,
            "fp16.skipped": 100,
            "fp16.median_step_seconds": 0.002,
            "fp16.samples_per_second": 256 / 0.002,
            "speedup": 2.0,
        },
    ),
    **{
        f"skipped steps alone, {name}": (
            [FP32, skips(31, 56, step_seconds=0.001, settling=settling)],
            {
                "fp16.measured_steps": 0,
                "fp16.skipped": 26,
                "fp16.median_step_seconds": None,
                "fp16.samples_per_second": None,
                "speedup": None,
                "provisional_speedup": None,
            },
        )
        for name, settling in (("warm-up", True), ("settled", False))
    },
    # The first applied step of a stretch is the slow one.
    "warm-up after skips": (
        [
            skips(1, 3, step_seconds=0.001, settling=True),
            warm_up(4, 4, precision="fp16", step_seconds=5.0),
            warm_up(5, 6, precision="fp16", step_seconds=0.002),
        ],
        {"fp16.median_step_seconds": 0.002},
    ),
    "warm-up is left out": (
        [
            skips(1, 5, settling=True, step_seconds=1.0, loss=9.0),
            make_steps(6, 30, precision="fp16", step_seconds=0.002, loss=0.25),
            warm_up(31, 31, precision="fp16", loss=8.0),
        ],
        {
            "fp16.steps": 25,
            "fp16.warm_up_steps": 6,
            "fp16.skipped": 5,
            "fp16.median_step_seconds": 0.002,
            "fp16.last_loss": 0.25,
        },
    ),
    "warm-up alone": (
        [
            [*warm_up(1, 1, step_seconds=2.0, loss=2.3), *warm_up(2, 4, step_seconds=0.5, loss=2.1)],
            [
                *warm_up(5, 5, precision="bf16", step_seconds=3.0),
                *warm_up(6, 7, precision="bf16", step_seconds=0.25),
            ],
        ],
        {
            "fp32.steps": 0,
            "fp32.provisional_steps": 4,
            "fp32.warm_up_steps": 4,
            "fp32.median_step_seconds": 0.5,
            "fp32.samples_per_second": 256 / 0.5,
            "fp32.last_loss": 2.1,
            "bf16.provisional_steps": 3,
            "bf16.median_step_seconds": 0.25,
            "provisional_speedup": 2.0,
            "speedup": None,
            "held_back_by": "",
        },
    ),
    # A batch of records begins no stretch.
    "warm-up in batches": (
        [warm_up(1, 1, step_seconds=2.0), warm_up(2, 2, step_seconds=0.5), warm_up(3, 3, step_seconds=0.4)],
        {"fp32.median_step_seconds": 0.45},
    ),
    # Each stretch begins with a step that is left out.
    "warm-up of two stretches": (
        [
            [*warm_up(1, 1, step_seconds=2.0), *warm_up(2, 3, step_seconds=0.5)],
            warm_up(4, 5, precision="fp16", step_seconds=0.25),
            [*warm_up(6, 6, step_seconds=1.0), *warm_up(7, 7, step_seconds=0.5)],
        ],
        {"fp32.median_step_seconds": 0.5},
    ),
    "one warm-up step": (
        [warm_up(1, 1, step_seconds=2.0), warm_up(2, 9, precision="fp16", step_seconds=0.5)],
        {"fp32.median_step_seconds": 2.0, "fp32.provisional_steps": 1, "provisional_speedup": None},
    ),
    **{
        f"{counted} counted steps after warm-up": (
            [warm_up(1, 10, step_seconds=0.5), make_steps(11, 10 + counted, step_seconds=0.4)],
            {
                "fp32.steps": counted,
                "fp32.provisional_steps": provisional,
                "fp32.median_step_seconds": seconds,
            },
        )
        for counted, provisional, seconds in ((0, 10, 0.5), (1, 10, 0.5), (2, 0, 0.4), (30, 0, 0.4))
    },
    "few counted steps": (
        [FP32, make_steps(31, 32, precision="fp16", step_seconds=0.001)],
        {"speedup": None, "provisional_speedup": 4.0},
    ),
    # ---------------------------------------------------------------- what a speed-up still needs
    "nothing": ([], {"missing": "steps", "speedup": None}),
    "FP32 alone": ([FP32], {"missing": "low", "speedup": None}),
    "bf16 alone": ([make_steps(1, 30, precision="bf16")], {"missing": "baseline", "speedup": None}),
    "too few": (
        [FP32, make_steps(31, 42, precision="fp16")],
        {"missing": "more steps", "speedup": None},
    ),
    "not timed": (
        [FP32, make_steps(31, 60, precision="fp16", step_seconds=None)],
        {"missing": "more steps", "speedup": None},
    ),
    "unknown precision": (
        [make_steps(1, 30, precision="fp4")],
        {"baseline": None, "low": None, "fp4.steps": 30},
    ),
}


@pytest.mark.parametrize(("batches", "expected"), COMPARISONS.values(), ids=COMPARISONS)
def test_precisions_side_by_side(batches: Sequence[list[StepRecord]], expected: dict[str, Any]) -> None:
    comparison = compared(*batches)
    rows = {row.precision: row for row in comparison.rows}
    assert [*rows] == [name for name in PRECISION_ORDER if name in rows] or [*rows] == ["fp4"]
    assert_holds(SimpleNamespace(**rows, **{f: getattr(comparison, f) for f in NAMES}), expected)


@pytest.mark.parametrize(("slow_steps", "missing"), [(0, ""), (4, ""), (20, "steady steps")])
def test_disturbed_steps_whose_mean_says_the_opposite_have_no_speed_up(slow_steps: int, missing: str) -> None:
    """Of 100 AMP steps at twice the speed, each slow one takes ten times as long as an FP32 step."""
    slow = 200 - slow_steps
    comparison = compared(
        make_steps(1, 100, step_seconds=0.004),
        make_steps(101, slow, precision="fp16", step_seconds=0.002),
        *([make_steps(slow + 1, 200, precision="fp16", step_seconds=0.04)] if slow_steps else []),
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


def test_the_memory_saving_needs_both_peaks_and_a_peak_never_falls() -> None:
    sums = ledger(FP32, FP16)
    for precision, peak, saving in (
        ("fp32", 2000, None),
        ("fp16", None, None),
        ("fp16", 1200, 0.4),
        ("fp16", 1000, 0.4),
        ("fp16", 3000, -0.5),  # negative is more
    ):
        sums.add_peak(precision, peak)
        assert sums.comparison().memory_saving == (None if saving is None else pytest.approx(saving))
    alone = PrecisionLedger()
    alone.add_peak("fp16", 1)
    assert alone.comparison().rows == ()


@given(
    seconds=st.lists(
        st.none() | st.floats(1e-6, 1e3) | st.sampled_from([math.nan, math.inf, 0.0]), max_size=60
    )
)
def test_the_row_equals_a_naive_count(seconds: list[float | None]) -> None:
    records = [make_step(number, step_seconds=value) for number, value in enumerate(seconds, 1)]
    timed = [value for value in seconds if value is not None and 0 < value < math.inf]
    rows = compared(records).rows
    assert [row.steps for row in rows] == ([len(timed)] if seconds else [])
    if not timed:
        assert all(row.median_step_seconds is row.samples_per_second is None for row in rows)
        return
    (row,) = rows
    assert row.median_step_seconds == pytest.approx(statistics.median(timed))
    assert row.samples_per_second == pytest.approx(256 * len(timed) / sum(timed))
