import math
from dataclasses import replace
from typing import Any

import pytest

from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.telemetry.timing import MIN_STEPS, WINDOW_STEPS, TimingWatch, judged_timing, shares_of
from amptui.telemetry.view import Comparison
from tests.builders import view_of
from tests.telemetry.record_samples import device, run, steps
from tests.telemetry.timed_steps import ALIKE, BUSY, HOST, judged, phases


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


def test_settling_steps_are_left_out() -> None:
    settling = timed(phases(1.0, 1.0, 1.0, 1.0, 1.0), settling=True)
    assert watch(settling).timings(Comparison()) == ()


def test_only_the_newest_steps_count() -> None:
    old = [timed(phases(5.0, 5.0, 5.0, 5.0, 5.0))] * 300
    new = [timed(phases(1.0, 1.0, 1.0, 1.0, 1.0))] * (WINDOW_STEPS // 2 + 1)
    (timing,) = watch(*old, *new).timings(Comparison())
    assert timing.steps == WINDOW_STEPS
    assert {phase.host_seconds for phase in timing.phases} == {1.0}


def test_the_devices_clock_is_told_only_where_every_step_has_it() -> None:
    parts = phases(0.1, 0.2, 0.3, 0.4, 0.5, device=(1.0, 2.0, 3.0, 4.0, 5.0))
    (timing,) = watch(timed(parts)).timings(Comparison())
    assert timing.phases == parts
    partly = phases(0.1, 0.2, 0.3, 0.4, 0.5, device=(1.0, 2.0, 3.0, 4.0, None))
    (timing,) = watch(timed(parts), timed(partly)).timings(Comparison())
    assert all(phase.device_seconds is None for phase in timing.phases)


def test_what_is_no_duration_counts_for_nothing() -> None:
    for bad in (math.nan, math.inf, -1.0):
        assert watch(timed(phases(0.0, bad, 1.0, None, 1.0))).timings(Comparison()) == ()
    assert watch(timed(())).timings(Comparison()) == ()


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


def test_shares_are_of_the_device_s_clock_where_there_is_one() -> None:
    parts = phases(0.1, 0.2, 0.3, None, 0.4, device=(1.0, 1.0, 2.0, None, 4.0))
    assert shares_of(parts) == {"input": 0.125, "forward": 0.125, "backward": 0.25, "optimizer": 0.5}


# ---------------------------------------------------------------------------------------- a session


def test_a_session_shows_how_busy_the_gpu_was_beside_it() -> None:
    looks = [device(second, "fp32", None, 50.0) for second in (101.0, 102.0)]
    timings = [timed(phases(*HOST, device=HOST))] * MIN_STEPS
    (timing,) = view_of(run(), *steps(1, 40), *looks, *timings).timings
    assert (timing.bound, timing.utilization_percent) == ("launch", 50.0)
