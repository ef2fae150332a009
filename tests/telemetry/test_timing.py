import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amptui.findings import PhaseSeconds, StepTimed
from amptui.records import PrecisionChanged
from amptui.telemetry.session import Session
from amptui.telemetry.timing import MIN_STEPS, WINDOW_STEPS, PhaseName, TimingWatch, judged_timing, why_slower
from amptui.telemetry.view import Comparison, PrecisionStats, PrecisionTiming
from tests.telemetry.record_samples import device, run, steps

NAMES: tuple[PhaseName, ...] = ("input", "forward", "backward", "clip", "optimizer")


def phases(*host: float | None, device: tuple[float | None, ...] = ()) -> tuple[PhaseSeconds, ...]:
    """Parts in their order, None for those that did not run."""
    on_device = device or (None,) * len(NAMES)
    return tuple(
        PhaseSeconds(name=name, host_seconds=seconds, device_seconds=other)
        for name, seconds, other in zip(NAMES, host, on_device, strict=True)
        if seconds is not None
    )


def timed(parts: tuple[PhaseSeconds, ...], precision: str = "fp32", **changes: Any) -> StepTimed:
    record = StepTimed(time=100.0, step=7, precision=precision, settling=False, phases=parts)
    return replace(record, **changes)


def judged(
    *host: float | None, device: tuple[float | None, ...] = (), busy: float | None = None, amp: bool = False
) -> PrecisionTiming:
    precision = "fp16" if amp else "fp32"
    return judged_timing(precision, phases(*host, device=device), steps=50, utilization_percent=busy)


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


def test_precisions_come_in_their_order_and_unknown_ones_last() -> None:
    parts = phases(0.0, 1.0, 1.0, None, 0.1)
    records = [timed(parts, name) for name in ("fp8", "bf16", "fp32", "fp16")]
    found = watch(*records).timings(Comparison())
    assert [timing.precision for timing in found] == ["fp32", "fp16", "bf16", "fp8"]


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


def test_nothing_new_is_the_same_again() -> None:
    found, comparison = watch(timed(phases(0.0, 1.0, 1.0, None, 0.1))), Comparison()
    assert found.timings(comparison) is found.timings(comparison)


# ----------------------------------------------------------------------------------------- verdicts


def test_a_few_steps_are_no_verdict() -> None:
    parts = phases(2.0, 1.0, 1.0, None, 0.1)
    for count in (MIN_STEPS - 1, MIN_STEPS):
        timing = judged_timing("fp32", parts, steps=count)
        assert bool(timing.bound and timing.evidence and timing.limit) == (count == MIN_STEPS)


def test_a_cpu_that_waits_for_data_is_input_bound() -> None:
    timing = judged(0.62, 0.15, 0.2, None, 0.03)
    assert timing.bound == "input"
    assert timing.evidence == "the loop waits for data 62% of the step"
    assert timing.limit == "data takes as long in any precision: 1.6× at most"


def test_a_cpu_that_has_its_data_is_compute_bound() -> None:
    timing = judged(0.02, 0.22, 0.40, None, 0.36)
    assert timing.bound == "compute"
    assert timing.evidence == "the loop waits for data 2% of the step"
    assert timing.limit == "AMP can speed up only forward and backward, 62% of the step: 2.6× at most"


HOST = (0.0001, 0.0004, 0.0006, 0.0001, 0.0001)
BUSY = (0.0001, 0.0020, 0.0040, 0.0001, 0.0006)


@pytest.mark.parametrize("busy", [None, 97.0])
def test_a_gpu_with_work_queued_is_compute_bound(busy: float | None) -> None:
    timing = judged(*HOST, device=BUSY, busy=busy)
    assert timing.bound == "compute"
    own = "the GPU is busy 97% of the time"
    assert (
        timing.evidence
        == {
            None: "the GPU takes 6.70 ms, the host 18% of that to launch it",
            97.0: own,
        }[busy]
    )
    assert timing.limit.endswith("88% of the step: 8.5× at most")


@pytest.mark.parametrize("busy", [None, 55.0])
def test_a_gpu_that_is_done_when_the_host_has_enqueued_is_launch_bound(busy: float | None) -> None:
    timing = judged(*HOST, device=(0.0001, 0.00041, 0.00062, 0.00011, 0.00012), busy=busy)
    assert timing.bound == "launch"
    words = "the host takes 1.20 ms to launch what the GPU runs in 1.26 ms"
    assert timing.evidence == words + ("" if busy is None else ", idle 45% of the time")
    assert "little to gain" in timing.limit


def test_a_host_that_a_full_queue_holds_back_is_not_waited_for() -> None:
    """It takes as long as the GPU on the whole, but in other parts of the step."""
    held_back = (0.0001, 0.0040, 0.0020, 0.0001, 0.0005)
    assert sum(held_back) == pytest.approx(sum(BUSY), rel=0.02)
    assert judged(*held_back, device=BUSY).bound == "compute"


def test_a_busy_gpu_is_not_launch_bound() -> None:
    assert judged(*BUSY, device=BUSY, busy=97.0).bound == "compute"
    assert judged(*BUSY, device=BUSY, busy=60.0).bound == "launch"


def test_a_gpu_that_idles_for_no_reason_that_was_measured_has_no_verdict() -> None:
    timing = judged(*HOST, device=BUSY, busy=40.0)
    assert timing.bound == ""
    assert timing.evidence == "the GPU is idle 60% of the time, which neither data nor the host explains"


def test_a_host_that_waits_for_data_while_the_gpu_works_loses_nothing() -> None:
    assert judged(0.0050, *HOST[1:], device=BUSY).bound == "compute"
    waiting = judged(0.0050, *HOST[1:], device=(0.0051, *BUSY[1:]))
    assert waiting.bound == "input"
    assert waiting.evidence == "the GPU waits for data or copies it 43% of the step, the host waits 5.00 ms"


def test_what_amp_left_over_is_said_of_amp() -> None:
    assert judged(0.0, 0.3, 0.3, None, 0.4, amp=True).limit == (
        "what AMP speeds up is still 60% of the step: 2.5× more at most"
    )


def test_a_step_that_is_nearly_all_forward_and_backward_has_no_limit_to_speak_of() -> None:
    timing = judged(0.0, 0.4, 0.58, None, 0.02)
    assert timing.limit == ("AMP can speed up forward and backward: 98% of the step, little else limits it")


@given(st.lists(st.floats(1e-6, 10.0), min_size=5, max_size=5), st.floats(1.0, 64.0))
def test_no_precision_that_speeds_up_forward_and_backward_beats_the_limit(
    seconds: list[float], times: float
) -> None:
    timing = judged(*seconds)
    amp = seconds[1] + seconds[2]
    faster = sum(seconds) / (sum(seconds) - amp + amp / times)
    if timing.bound == "compute" and "at most" in timing.limit:
        most = float(timing.limit.split()[-3].removesuffix("×"))
        assert faster <= most + 0.05 + 1e-9


# ---------------------------------------------------------------------------------------- a session


def test_a_session_shows_how_busy_the_gpu_was_beside_it() -> None:
    session = Session()
    session.fold([run(), *steps(1, 40), device(101.0, "fp32", None, 50.0), device(102.0, "fp32", None, 50.0)])
    session.fold([timed(phases(*HOST, device=HOST))] * MIN_STEPS)
    (timing,) = session.view().timings
    assert timing.bound == "launch"
    assert timing.evidence.endswith("idle 50% of the time")


def test_a_session_keeps_each_precision_apart() -> None:
    session = Session()
    change = PrecisionChanged(time=101.0, step=41, previous="fp32", current="fp16")
    session.fold([run(), *steps(1, 40), timed(phases(*HOST)), change, timed(phases(*BUSY), "fp16")])
    found = {timing.precision: timing.phases for timing in session.view().timings}
    assert found == {"fp32": phases(*HOST), "fp16": phases(*BUSY)}


@given(
    st.lists(
        st.builds(
            timed,
            st.lists(
                st.builds(
                    PhaseSeconds,
                    name=st.sampled_from(NAMES),
                    host_seconds=st.floats(),
                    device_seconds=st.none() | st.floats(),
                )
                | st.builds(
                    PhaseSeconds,
                    name=st.sampled_from(NAMES),
                    host_seconds=st.floats(0, allow_infinity=False),
                    device_seconds=st.none() | st.floats(0, allow_infinity=False),
                ),
                max_size=6,
            ).map(tuple),
            precision=st.sampled_from(["fp32", "fp16", "fp8"]),
            settling=st.booleans(),
            time=st.floats(),
        ),
        max_size=12,
    ),
    st.none() | st.floats(),
)
def test_no_timing_that_a_record_can_hold_is_an_error(records: list[StepTimed], busy: float | None) -> None:
    row = PrecisionStats(
        precision="fp32",
        steps=1,
        warm_up_steps=0,
        median_step_seconds=None,
        samples_per_second=None,
        peak_allocated_bytes=None,
        last_loss=None,
        skipped=0,
        utilization_percent=busy,
    )
    for timing in watch(*records).timings(Comparison(rows=(row,))):
        assert timing.steps >= 1
        assert timing.phases


# ------------------------------------------------------------------------------ beside the baseline


def timed_beside(fp32: tuple[PhaseSeconds, ...], fp16: tuple[PhaseSeconds, ...]) -> tuple[str, str]:
    """What FP32 and AMP can give at most, each timed often enough."""
    records = [timed(fp32)] * MIN_STEPS + [timed(fp16, "fp16")] * MIN_STEPS
    one, other = watch(*records).timings(Comparison(baseline="fp32", amp="fp16"))
    return one.limit, other.limit


def test_amp_that_is_slower_is_promised_nothing_and_its_parts_tell_where() -> None:
    fp32, fp16 = timed_beside(phases(0.0, 0.1, 0.2, None, 0.01), phases(0.0, 3.7, 7.2, None, 0.01))
    assert fp32 == "no gain from AMP fp16: its steps take 35.2× as long"
    assert fp16 == (
        "AMP fp16 took longer than FP32: forward 3.70 s instead of 100 ms, backward 7.20 s instead of 200 ms"
    )


def test_a_part_that_only_amp_has_may_be_what_takes_longer() -> None:
    _, fp16 = timed_beside(phases(0.0, 0.1, 0.2, None, 0.1), phases(0.0, 0.08, 0.2, 0.2, 0.1))
    assert fp16 == "AMP fp16 took longer than FP32: clip 200 ms instead of nothing"


@given(
    before=st.tuples(*[st.floats(1e-6, 1.0)] * 5),
    after=st.tuples(*[st.floats(1e-6, 1.0)] * 5),
)
def test_whatever_is_slower_by_more_than_a_little_is_so_in_some_part(
    before: tuple[float, ...], after: tuple[float, ...]
) -> None:
    assume(sum(after) != pytest.approx(1.05 * sum(before)))
    why = why_slower(judged(*before), judged(*after, amp=True))
    assert ("instead of" in why) == (sum(after) > 1.05 * sum(before))


def test_amp_that_is_no_slower_keeps_what_it_can_give() -> None:
    fp32, fp16 = timed_beside(phases(0.0, 0.1, 0.2, None, 0.1), phases(0.0, 0.1, 0.2, None, 0.11))
    assert fp32 == "AMP can speed up only forward and backward, 75% of the step: 4.0× at most"
    assert fp16 == "what AMP speeds up is still 73% of the step: 3.7× more at most"


def test_a_baseline_that_was_hardly_timed_is_compared_with_nothing() -> None:
    few = [timed(phases(0.0, 0.1, 0.2, None, 0.1))] * (MIN_STEPS - 1)
    many = [timed(phases(0.0, 3.0, 3.0, None, 0.1), "fp16")] * MIN_STEPS
    _, other = watch(*few, *many).timings(Comparison(baseline="fp32", amp="fp16"))
    assert other.limit.startswith("what AMP speeds up is still")
