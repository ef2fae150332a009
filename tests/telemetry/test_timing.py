"""What a step waits for; the running time, whatever was done to the clock; the pace, and the forecast."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import StepTimed
from amptui.telemetry.pace import LATE_SECONDS, SILENT_SECONDS, RunningTime
from amptui.telemetry.timing import TimingWatch
from tests.telemetry.record_samples import (
    ALIKE,
    BUSY,
    HOST,
    judged,
)


def watch(*records: StepTimed) -> TimingWatch:
    watch = TimingWatch()
    for record in records:
        watch.add(record)
    return watch


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
