"""The frame rate follows the cost of frames."""

import time

import pytest

from amptui.tui.screen import CPU_BUDGET, MAX_FRAMES_PER_SECOND, MAX_INTERVAL_SECONDS, Pace


def burn(seconds: float) -> None:
    """Use that much of this thread's CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_before_the_first_frame_nothing_was_measured() -> None:
    pace = Pace()
    assert pace.frames_per_second is None
    assert pace.cpu_percent is None


def test_cheap_frames_have_the_highest_rate() -> None:
    pace = Pace()
    assert [pace.next_interval_seconds() for _ in range(5)] == [1 / MAX_FRAMES_PER_SECOND] * 5


@pytest.mark.parametrize("cores", [1.0, 4.0])
def test_expensive_frames_are_drawn_less_often_but_never_stop(cores: float) -> None:
    pace, dear = Pace(cores=cores), 1.2 * cores * CPU_BUDGET / MAX_FRAMES_PER_SECOND
    for _ in range(3):
        burn(dear)
        interval = pace.next_interval_seconds()
    assert dear / (cores * CPU_BUDGET) <= interval <= MAX_INTERVAL_SECONDS
    for _ in range(9):
        burn(2 * cores * CPU_BUDGET * MAX_INTERVAL_SECONDS)
        interval = pace.next_interval_seconds()
    assert interval == MAX_INTERVAL_SECONDS


def test_one_expensive_frame_changes_nothing() -> None:
    pace = Pace()
    for cost in (0, 0, 0.05, 0, 0):
        burn(cost)
        interval = pace.next_interval_seconds()
    assert interval == 1 / MAX_FRAMES_PER_SECOND


@pytest.mark.parametrize("frames_per_second", [0.5, 30.0])
def test_a_fixed_rate_does_not_depend_on_the_cost(frames_per_second: float) -> None:
    pace = Pace(frames_per_second)
    burn(0.02)
    assert pace.next_interval_seconds() == 1 / frames_per_second


def test_the_cost_is_this_thread_s_share_of_a_core() -> None:
    # What it measures lies between two times of ours, however long we are kept from the processor.
    outer = time.monotonic()
    pace = Pace()
    inner = time.monotonic()
    for _ in range(4):
        burn(0.01)
        inner_end = time.monotonic()
        pace.next_interval_seconds()
    outer_end = time.monotonic()
    assert pace.cpu_percent is not None
    assert pace.frames_per_second is not None
    assert 100 * 0.04 / (outer_end - outer) <= pace.cpu_percent <= 101
    assert 4 / (outer_end - outer) <= pace.frames_per_second <= 4 / (inner_end - inner)
