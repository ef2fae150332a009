"""FP32 beside AMP: medians and losses of what was counted, no ratio too early, and what keeps AMP back."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import (
    PRECISION_ORDER,
    PauseChanged,
    PhaseChanged,
    PrecisionChanged,
    Record,
)
from amptui.records.steps import Steps, joined
from amptui.telemetry.comparison import (
    MIN_STEPS,
    WINDOW_STEPS,
    PrecisionLedger,
    compare,
    judge_held_back,
)
from amptui.telemetry.view import Comparison, PrecisionStats
from tests.builders import assert_holds, make_step, make_steps, view_of
from tests.telemetry.record_samples import device, run, steps

NAMES = [field.name for field in fields(Comparison)]


def compared(*batches: list[Steps]) -> Comparison:
    sums = PrecisionLedger()
    for batch in batches:
        for steps_alike in joined(batch):
            sums.add(steps_alike)
    return sums.comparison()


def skips(first: int, last: int, **changes: Any) -> list[Steps]:
    return make_steps(first, last, precision="fp16", skipped=True, loss_scale=None, **changes)


def warm_up(first: int, last: int, **changes: Any) -> list[Steps]:
    return make_steps(first, last, settling=True, **changes)


FP32 = make_steps(1, 30, step_seconds=0.004)
FP16 = make_steps(31, 60, precision="fp16", step_seconds=0.002)

COMPARISONS: dict[str, tuple[Sequence[list[Steps]], dict[str, Any]]] = {
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
        },
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
        for counted, provisional, seconds in ((0, 10, 0.5), (2, 10, 0.5), (3, 0, 0.4), (30, 0, 0.4))
    },
    "few counted steps": (
        [FP32, make_steps(31, 33, precision="fp16", step_seconds=0.001)],
        {"speedup": None, "provisional_speedup": 4.0},
    ),
    # ---------------------------------------------------------------- what a speed-up still needs
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
def test_precisions_side_by_side(batches: Sequence[list[Steps]], expected: dict[str, Any]) -> None:
    comparison = compared(*batches)
    rows = {row.precision: row for row in comparison.rows}
    assert [*rows] == [name for name in PRECISION_ORDER if name in rows] or [*rows] == ["fp4"]
    assert_holds(SimpleNamespace(**rows, **{f: getattr(comparison, f) for f in NAMES}), expected)


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


# ---------------------------------------------------------------------- what keeps AMP from gaining


@pytest.mark.parametrize(
    ("data", "busy", "speedup", "reason"),
    [
        ((0.62, 0.641), (None, None), 1.0, "input"),
        ((0.0, 0.0), (60.0, 55.0), 1.0, "launch"),
        ((0.0, 0.0), (60.0, 55.0), 0.8, "launch"),
        ((0.62, 0.64), (None, None), 1.05, ""),  # AMP pays all the same
        ((0.62, 0.64), (None, None), 0.9, ""),  # waiting does not make AMP slower
        ((0.62, 0.29), (None, None), 1.0, ""),
        ((0.62, None), (None, None), 1.0, ""),
        ((0.62, 0.64), (95.0, 95.0), 1.0, ""),  # the device computes while the host waits
        ((0.0, 0.0), (60.0, 70.0), 1.0, ""),
        ((0.0, 0.0), (60.0, None), 1.0, ""),
        ((0.0, 0.0), (60.0, 60.0), 1.94, ""),
        ((0.62, 0.64), (None, None), None, ""),
    ],
)
def test_only_what_something_measured_shows_is_a_reason(
    data: tuple[float | None, ...], busy: tuple[float | None, ...], speedup: float | None, reason: str
) -> None:
    fp32, fp16 = compared(FP32, FP16).rows
    fp32 = replace(fp32, data_fraction=data[0], utilization_percent=busy[0])
    fp16 = replace(fp16, data_fraction=data[1], utilization_percent=busy[1])
    comparison = Comparison(rows=(fp32, fp16), baseline="fp32", low="fp16", speedup=speedup)
    finding = judge_held_back(comparison)
    assert finding.state == (reason or "not measured")


# ------------------------------------------------------------------------------------- utilization


def test_the_utilization_is_the_mean_of_looks_without_a_switch_a_pause_or_a_validation() -> None:
    def looks(precision: str, *percents: float) -> list[Record]:
        return [device(1.0, precision, None, percent) for percent in percents]

    pause = PauseChanged(time=1.0, step=60, paused=True)
    records = [
        *steps(1, 30),
        *looks("fp32", 10.0, 50.0),  # the first has no look before it
        PrecisionChanged(time=1.0, step=31, previous="fp32", current="fp16"),
        *steps(31, 60, precision="fp16"),
        *looks("fp16", 7.0, 90.0),
        pause,
        *looks("fp16", 0.0, 0.0),
        replace(pause, paused=False),
        *looks("fp16", 3.0, 92.0),
        PhaseChanged(time=1.0, phase="validating"),
        *looks("fp16", 12.0, 12.0),
        PhaseChanged(time=1.0, phase="training"),
        *looks("fp16", 12.0),
    ]
    fp32, fp16 = view_of(run(), *records).comparison.rows
    assert fp32.utilization_percent == pytest.approx(50.0)
    assert fp16.utilization_percent == pytest.approx(91.0)


# ------------------------------------------------------------ what each precision is judged against
WITHOUT_AUTOCAST = {"fp32", "ieee", "tf32"}
JUDGED_AGAINST = {
    "fp16": WITHOUT_AUTOCAST,
    "bf16": WITHOUT_AUTOCAST,
    "fp8": {"bf16"},
}
"""Written out, not derived."""

SECONDS = st.none() | st.floats(1e-4, 10)


@st.composite
def rows_of(draw: st.DrawFn, precision: str) -> PrecisionStats:
    """A row whose steps were not disturbed: its mean is its median."""
    seconds = draw(SECONDS)
    return PrecisionStats(
        precision=precision,
        steps=draw(st.integers(0, 3 * MIN_STEPS)),
        warm_up_steps=draw(st.integers(0, 50)),
        median_step_seconds=seconds,
        mean_step_seconds=seconds,
        samples_per_second=None,
        peak_allocated_bytes=draw(st.none() | st.integers(1, 10**9)),
        last_loss=None,
        skipped=0,
    )


ANY_NAME = st.sampled_from((*PRECISION_ORDER, "fp4"))
ROWS = st.lists(ANY_NAME, unique=True).flatmap(
    lambda names: st.tuples(*(rows_of(name) for name in names)).map(list)
)
QUESTIONS = ("", *JUDGED_AGAINST)


def most_used(rows: list[PrecisionStats], names: set[str]) -> set[str]:
    """Those of ``names`` with the most steps, of which warm-up steps count least."""
    used = [row for row in rows if row.precision in names]
    most = max(((row.steps, row.warm_up_steps) for row in used), default=None)
    return {row.precision for row in used if (row.steps, row.warm_up_steps) == most}


@given(ROWS, st.sampled_from(QUESTIONS))
def test_each_question_has_its_own_pair_and_gain(rows: list[PrecisionStats], question: str) -> None:
    comparison = compare(rows, question)
    by_name = {row.precision: row for row in rows}
    assert {row.precision: row for row in comparison.rows} == by_name
    lows = {question} if question else {"fp16", "bf16"}
    bases = JUDGED_AGAINST[question or "fp16"]
    assert comparison.low in (most_used(rows, lows) or (question or None,))
    assert comparison.baseline in (most_used(rows, bases) or (None,))
    low, base = by_name.get(comparison.low or ""), by_name.get(comparison.baseline or "")
    gains = (comparison.speedup, comparison.provisional_speedup, comparison.memory_saving)
    if low is None or base is None:
        assert gains == (None, None, None)
        assert comparison.missing
        return
    enough = min(low.steps, base.steps) >= MIN_STEPS
    seconds, peaks = (
        (base.median_step_seconds, low.median_step_seconds),
        (base.peak_allocated_bytes, low.peak_allocated_bytes),
    )
    ratio = None if None in seconds else (seconds[0] or 0) / (seconds[1] or 1)
    assert comparison.speedup == (pytest.approx(ratio) if enough and ratio is not None else None)
    saving = None if None in peaks else 1 - (peaks[1] or 0) / (peaks[0] or 1)
    assert comparison.memory_saving == (None if saving is None else pytest.approx(saving))
    assert (comparison.missing == "more steps") == (not enough)
