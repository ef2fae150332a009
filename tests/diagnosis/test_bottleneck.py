"""What a step waits for, and what another precision can give at most, in words."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amptui.diagnosis.bottleneck import (
    bound_words,
    evidence,
    limit,
    limit_beside,
    throttled_words,
    why_slower,
)
from amptui.diagnosis.speed import times_speed
from amptui.records.findings import PhaseSeconds
from amptui.telemetry.timing import MIN_STEPS, judged_timing
from amptui.telemetry.view import Comparison, PrecisionTiming
from tests.telemetry.timed_steps import BUSY, HOST, judged, phases
from tests.tui import views

ALIKE = (0.0001, 0.00041, 0.00062, 0.00011, 0.00012)
"""Of a device that is done when the host has launched."""


@pytest.mark.parametrize(
    ("timing", "bound", "words"),
    [
        (judged(0.62, 0.15, 0.2, None, 0.03), "input-bound", "the loop waits for data 62% of the step"),
        (judged(0.02, 0.22, 0.40, None, 0.36), "compute-bound", "the loop waits for data 2% of the step"),
        (
            judged(0.0050, *HOST[1:], device=(0.0051, *BUSY[1:])),
            "input-bound",
            "the GPU waits for data or copies it 43% of the step, the host waits 5.00 ms",
        ),
        (
            judged(*HOST, device=BUSY),
            "compute-bound",
            "the GPU takes 6.70 ms; launching takes the host 18% of that",
        ),
        (judged(*HOST, device=BUSY, busy=97.0), "compute-bound", "the GPU is busy 97% of the time"),
        (
            judged(*HOST, device=ALIKE),
            "launch-bound",
            "the host takes 1.20 ms to launch kernels that the GPU runs in 1.26 ms",
        ),
        (
            judged(*HOST, device=ALIKE, busy=55.0),
            "launch-bound",
            "the host takes 1.20 ms to launch kernels that the GPU runs in 1.26 ms, idle 45% of the time",
        ),
        (
            judged(*HOST, device=BUSY, busy=40.0),
            "",
            "the GPU is idle 60% of the time, which neither data nor the host explains",
        ),
        (judged_timing("fp32", phases(*HOST), steps=1), "", ""),
    ],
)
def test_each_bottleneck_has_its_evidence(timing: PrecisionTiming, bound: str, words: str) -> None:
    assert (bound_words(timing), evidence(timing)) == (bound, words)


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        (
            judged(0.62, 0.15, 0.2, None, 0.03),
            "loading data takes the same time in any precision: at most 1.6×",
        ),
        (
            judged(0.02, 0.22, 0.40, None, 0.36),
            "AMP can speed up only forward and backward, 62% of the step: at most 2.6×",
        ),
        (
            judged(*HOST, device=ALIKE),
            "launching kernels takes the same time in any precision: little to gain",
        ),
        (
            judged(0.0, 0.3, 0.3, None, 0.4, amp=True),
            "forward and backward still take 60% of the step: at most 2.5× more",
        ),
        (
            judged(0.0, 0.4, 0.58, None, 0.02),
            "AMP can speed up forward and backward, 98% of the step; little else takes time",
        ),
        (judged_timing("fp32", phases(*HOST), steps=1), ""),
    ],
)
def test_each_bottleneck_has_its_limit(timing: PrecisionTiming, words: str) -> None:
    assert limit(timing) == words


def test_fp8_has_forward_and_backward_behind_it_and_emulated_fp8_no_limit_at_all() -> None:
    parts = phases(0.0, 0.3, 0.3, None, 0.4)
    amp, fp8, emulated = (judged_timing(name, parts, steps=50) for name in ("bf16", "fp8", "fp8-emulated"))
    assert limit(fp8) == limit(amp) == "forward and backward still take 60% of the step: at most 2.5× more"
    assert limit(emulated) == bound_words(emulated) == ""
    assert "not FP8's" in evidence(emulated)


@pytest.mark.parametrize("amp", [False, True])
def test_with_several_ranks_no_number_is_promised(amp: bool) -> None:
    timing = judged(0.0, 0.4, 0.58, None, 0.02, amp=amp)
    assert bound_words(timing, ranks=4) == "compute- or communication-bound"
    words = limit(timing, ranks=4)
    assert "98% of the step" in words
    assert "communication" in words
    assert "at most" not in words
    assert "little else" not in words


@given(st.lists(st.floats(1e-6, 10.0), min_size=5, max_size=5), st.floats(1.0, 64.0))
def test_no_precision_that_speeds_up_forward_and_backward_beats_the_limit(
    seconds: list[float], times: float
) -> None:
    timing = judged(*seconds)
    amp = seconds[1] + seconds[2]
    faster = sum(seconds) / (sum(seconds) - amp + amp / times)
    if timing.bound == "compute" and "at most" in limit(timing):
        most = float(limit(timing).split()[-1].removesuffix("×"))
        assert faster <= most + 0.05 + 1e-9


# ------------------------------------------------------------------------------ beside the baseline


def limits(
    fp32: tuple[PhaseSeconds, ...], fp16: tuple[PhaseSeconds, ...], *, steps: int = MIN_STEPS
) -> tuple[str, str]:
    """What FP32 and AMP can give at most beside each other; ``steps`` of FP32 were timed."""
    timings = (
        judged_timing("fp32", fp32, steps=steps),
        judged_timing("fp16", fp16, steps=MIN_STEPS),
    )
    one, other = (limit_beside(item, timings, Comparison(baseline="fp32", low="fp16")) for item in timings)
    return one, other


def test_amp_that_is_slower_is_promised_nothing_and_its_parts_tell_where() -> None:
    fp32, fp16 = limits(phases(0.0, 0.1, 0.2, None, 0.01), phases(0.0, 3.7, 7.2, None, 0.01))
    assert fp32 == f"AMP fp16 gains nothing: {times_speed(0.31 / 10.91, 'FP32')}"
    assert fp16 == (
        "AMP fp16 took longer than FP32: forward 3.70 s instead of 100 ms, backward 7.20 s instead of 200 ms"
    )


def test_a_part_that_only_amp_has_may_be_what_takes_longer() -> None:
    _, fp16 = limits(phases(0.0, 0.1, 0.2, None, 0.1), phases(0.0, 0.08, 0.2, 0.2, 0.1))
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


def test_each_low_precision_is_timed_beside_its_reference() -> None:
    """Whichever is in question: FP8 beside bf16, and bf16 beside FP32 where FP8 never ran."""
    fp32, bf16, fp8 = (
        judged_timing(name, phases(0.0, seconds, seconds, None, 0.01), steps=MIN_STEPS)
        for name, seconds in (("fp32", 0.1), ("bf16", 0.3), ("fp8", 0.5))
    )
    timings = (fp32, bf16, fp8)
    beside_bf16 = Comparison(baseline="bf16", low="fp8")
    assert limit_beside(fp8, timings, beside_bf16).startswith("FP8 took longer than AMP bf16: ")
    assert limit_beside(bf16, timings, beside_bf16).startswith("FP8 gains nothing: ")
    assert limit_beside(fp32, timings, beside_bf16) == limit(fp32)
    emulated = replace(fp8, precision="fp8-emulated", bound="")
    beside_emulated = Comparison(baseline="bf16", low="fp8-emulated", missing="emulated")
    assert limit_beside(emulated, (bf16, emulated), beside_emulated) == ""
    assert limit_beside(bf16, (bf16, emulated), beside_emulated) == limit(bf16)


def test_amp_that_is_no_slower_keeps_what_it_can_give() -> None:
    fp32, fp16 = limits(phases(0.0, 0.1, 0.2, None, 0.1), phases(0.0, 0.1, 0.2, None, 0.11))
    assert fp32 == "AMP can speed up only forward and backward, 75% of the step: at most 4.0×"
    assert fp16 == "forward and backward still take 73% of the step: at most 3.7× more"


def test_a_baseline_that_was_hardly_timed_is_compared_with_nothing() -> None:
    fp32, fp16 = phases(0.0, 0.1, 0.2, None, 0.1), phases(0.0, 3.0, 3.0, None, 0.1)
    one, other = limits(fp32, fp16, steps=MIN_STEPS - 1)
    assert one == ""
    assert other.startswith("forward and backward still take")


def test_all_reasons_are_told_where_they_fit_and_the_gravest_elsewhere() -> None:
    sample = views.gpu(clocks_event_reasons=("thermal (sw)", "power cap"))
    assert throttled_words(sample, 60) == "⚠ throttled: thermal (sw), power cap"
    assert throttled_words(sample, 34) == "⚠ throttled: thermal (sw) +1"
    assert throttled_words(views.gpu(clocks_event_reasons=()), 34) == ""
    assert throttled_words(views.gpu(clocks_event_reasons=None), 34) == ""
