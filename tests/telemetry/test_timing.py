"""What a step waits for; the running time, whatever was done to the clock; the pace, and the forecast."""

import math

from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import StepTimed
from amptui.telemetry.pace import SILENT_SECONDS, RunningTime
from amptui.telemetry.timing import TimingWatch


def watch(*records: StepTimed) -> TimingWatch:
    watch = TimingWatch()
    for record in records:
        watch.add(record)
    return watch


# --------------------------------------------------------------------------------- the running time


DAY = 86_400.0


def test_a_long_step_explains_a_silence_and_no_more_than_it_took() -> None:
    watch = RunningTime()
    watch.see(0.0)
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
