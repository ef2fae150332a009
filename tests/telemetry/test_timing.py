"""What a step waits for; the running time, whatever was done to the clock; the pace, and the forecast."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.run import PhaseChanged, RunFinished
from amptui.records.steps import StepRecord
from amptui.telemetry.pace import LATE_SECONDS, SILENT_SECONDS, Pace, RunningTime
from amptui.telemetry.timing import MIN_STEPS, TimingWatch, judged_timing
from amptui.telemetry.view import Comparison
from tests.builders import fold, make_steps
from tests.telemetry.record_samples import (
    ALIKE,
    BUSY,
    HOST,
    device,
    judged,
    phases,
    resumed,
    run,
    step,
    stretches,
)


def timed(parts: tuple[PhaseSeconds, ...], precision: str = "fp32", **changes: Any) -> StepTimed:
    record = StepTimed(time=100.0, step=7, precision=precision, settling=False, phases=parts)
    return replace(record, **changes)


def watch(*records: StepTimed) -> TimingWatch:
    watch = TimingWatch()
    for record in records:
        watch.add(record)
    return watch


# ------------------------------------------------------------------------------------------ medians


def test_each_part_has_its_median() -> None:
    records = [timed(phases(0.1, seconds, 3.0, None, 0.5)) for seconds in (9.0, 1.0, 2.0)]
    (timing,) = watch(*records).timings(Comparison())
    assert timing.steps == 3
    assert timing.phases == phases(0.1, 2.0, 3.0, None, 0.5)


def test_the_devices_clock_is_told_only_where_every_step_has_it() -> None:
    parts = phases(0.1, 0.2, 0.3, 0.4, 0.5, device=(1.0, 2.0, 3.0, 4.0, 5.0))
    (timing,) = watch(timed(parts)).timings(Comparison())
    assert timing.phases == parts
    partly = phases(0.1, 0.2, 0.3, 0.4, 0.5, device=(1.0, 2.0, 3.0, 4.0, None))
    (timing,) = watch(timed(parts), timed(partly)).timings(Comparison())
    assert all(phase.device_seconds is None for phase in timing.phases)


# ----------------------------------------------------------------------------------------- verdicts


HELD_BACK = (0.0001, 0.0040, 0.0020, 0.0001, 0.0005)
"""Of a host that a full queue holds back: as long as the GPU's on the whole, in other parts of the step."""


@pytest.mark.parametrize(
    ("host", "device", "busy", "bound"),
    [
        (HOST, BUSY, 97.0, "compute"),
        (HOST, ALIKE, 55.0, "launch"),
        (HELD_BACK, BUSY, None, "compute"),
        (BUSY, BUSY, 97.0, "compute"),
        (BUSY, BUSY, 60.0, "launch"),
        # A host that waits for data while the GPU works loses nothing.
        ((0.0050, *HOST[1:]), BUSY, None, "compute"),
    ],
)
def test_each_step_has_what_holds_it_back(host: Any, device: Any, busy: float | None, bound: str) -> None:
    """The simpler ones are in ``words/bottlenecks``."""
    timing = judged(*host, device=device, busy=busy)
    assert (timing.bound, timing.utilization_percent) == (bound, busy)


def test_a_few_steps_are_no_verdict() -> None:
    parts = phases(2.0, 1.0, 1.0, None, 0.1)
    assert judged_timing("fp32", parts, steps=MIN_STEPS - 1).bound == ""
    assert judged_timing("fp32", parts, steps=MIN_STEPS).bound == "input"


# --------------------------------------------------------------------------------- the running time


DAY = 86_400.0


def elapsed(*times: float) -> float:
    watch = RunningTime()
    watch.start(times[0])
    for time in times[1:]:
        watch.see(time)
    return watch.seconds


@pytest.mark.parametrize("jump", [DAY, 365 * DAY, SILENT_SECONDS + 1, -LATE_SECONDS - 2, -DAY, -1e9])
def test_a_clock_that_is_set_costs_the_moment_of_the_jump_alone(jump: float) -> None:
    before, after = (1e9 + second for second in range(11)), (1e9 + jump + second for second in range(11, 21))
    assert elapsed(*before, *after) == 19.0


def test_a_long_step_explains_a_silence_and_no_more_than_it_took() -> None:
    watch = RunningTime()
    watch.start(0.0)
    watch.see(3000.0, 2999.0)
    assert watch.seconds == 2999.0
    watch.see(3000.0 + DAY, 700.0)
    assert watch.seconds == 3699.0
    for odd in (None, math.nan, -1.0, 0.0):
        watch.see(watch.seconds + 30 * DAY, odd)
        assert watch.seconds == 3699.0


@given(st.lists(st.floats()), st.lists(st.none() | st.floats()))
def test_no_times_make_it_negative_or_endless(times: list[float], busy: list[float | None]) -> None:
    watch = RunningTime()
    before = 0.0
    for place, time in enumerate(times):
        took = busy[place] if place < len(busy) else None
        watch.see(time, took)
        most = max(SILENT_SECONDS, took) if took is not None and took > 0 else SILENT_SECONDS
        assert before <= watch.seconds <= before + most
        assert watch.seconds < math.inf
        before = watch.seconds


def test_the_session_tells_it_from_the_run_s_start_on() -> None:
    session = fold([device(90.0, "fp32", None), run(time=100.0), step(1, time=101.0)])
    assert session.view().elapsed_seconds == 1.0
    session.fold([device(102.0 + DAY, "fp32", None), step(2, time=103.5 + DAY)])
    assert session.view().elapsed_seconds == 2.5
    session.fold([RunFinished(time=104.0, steps=2, seconds=5.0, reason="done")])
    assert session.view().elapsed_seconds == 2.5


def test_the_time_between_two_processes_was_nobody_s() -> None:
    session = fold([run(time=100.0), step(1, time=110.0), resumed(1, time=200.0), step(2, time=205.0)])
    assert session.view().elapsed_seconds == 15.0
    session.fold([resumed(2, time=50.0), step(3, time=51.0)])
    assert session.view().elapsed_seconds == 16.0
    session.fold([run(time=1000.0), step(1, time=1001.0)])
    assert session.view().elapsed_seconds == 1.0, "another run"


def test_a_process_that_resumes_counts_from_its_first_record_on() -> None:
    session = fold([run(time=100.0), step(1, time=110.0)])
    session.fold(
        [PhaseChanged(time=190.0, phase="importing", detail="importing torch"), device(191.0, "fp32", None)]
    )
    session.fold([resumed(1, time=194.0), step(2, time=199.0)])
    assert session.view().elapsed_seconds == 16.0


# ---------------------------------------------------------------------------------------------- pace


def pace_of(*batches: list[StepRecord]) -> Pace:
    pace = Pace()
    for batch in batches:
        for stretch in stretches(batch):
            pace.add(stretch)
    return pace


def test_the_pace_and_the_forecast_are_one_mean() -> None:
    pace = pace_of(make_steps(1, 9, step_seconds=0.1), make_steps(10, 10, step_seconds=1.1))
    assert pace.step_seconds == pytest.approx(0.2)
    assert pace.samples_per_second == pytest.approx(256 / 0.2)
    assert pace.eta_seconds(10) == pytest.approx(2.0)
    assert (pace.eta_seconds(1), pace.eta_seconds(0)) == (1.0, 0.0)


def test_neither_skipped_steps_nor_nothing_make_a_pace() -> None:
    pace = pace_of()
    assert (pace.step_seconds, pace.samples_per_second, pace.eta_seconds(10)) == (None, None, None)
    before = make_steps(1, 2, precision="fp16", step_seconds=0.1)
    skipped = make_steps(3, 52, precision="fp16", skipped=True, step_seconds=0.001)
    after = make_steps(53, 54, precision="fp16", step_seconds=0.2)
    batches = [before, skipped[:-1]]
    assert pace_of(*batches).step_seconds == pytest.approx(0.1)
    batches.append(skipped[-1:])
    pace = pace_of(*batches)
    assert (pace.step_seconds, pace.samples_per_second) == (None, None)
    assert pace_of(*batches, after).step_seconds == pytest.approx(0.2)
