"""The frame rate follows the cost of frames."""

from collections.abc import Sequence

import pytest

from amptui.tui import screen
from amptui.tui.screen import CPU_BUDGET, MAX_FRAMES_PER_SECOND, MAX_INTERVAL_SECONDS, Pace


class Clock:
    """Time that goes by when a test says so."""

    def __init__(self) -> None:
        self.cpu, self.wall = 5.0, 1000.0

    def thread_time(self) -> float:
        return self.cpu

    def monotonic(self) -> float:
        return self.wall

    def intervals(self, pace: Pace, costs: Sequence[float]) -> list[float]:
        """Frames of these CPU seconds, each drawn when the one before it says so."""
        intervals: list[float] = []
        for cost in costs:
            self.cpu += cost
            self.wall += max(cost, intervals[-1] if intervals else 0.0)
            intervals.append(pace.next_interval_seconds())
        return intervals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(screen, "time", clock)
    return clock


@pytest.mark.parametrize("cores", [1.0, 4.0])
def test_expensive_frames_are_drawn_less_often_but_never_stop(cores: float, clock: Clock) -> None:
    budget = cores * CPU_BUDGET
    for cost, interval in (
        (0.0, 1 / MAX_FRAMES_PER_SECOND),
        (0.5 * budget / MAX_FRAMES_PER_SECOND, 1 / MAX_FRAMES_PER_SECOND),
        (1.2 * budget / MAX_FRAMES_PER_SECOND, 1.2 / MAX_FRAMES_PER_SECOND),
        (5 * budget * MAX_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS),
    ):
        assert clock.intervals(Pace(cores=cores), [cost] * 20)[-1] == pytest.approx(interval)


@pytest.mark.parametrize("frames_per_second", [0.5, 30.0])
def test_a_fixed_rate_does_not_depend_on_the_cost(frames_per_second: float, clock: Clock) -> None:
    assert clock.intervals(Pace(frames_per_second), [0.02])[-1] == 1 / frames_per_second


def test_the_cost_is_this_thread_s_share_of_a_core(clock: Clock) -> None:
    pace = Pace(2.0)
    assert (pace.frames_per_second, pace.cpu_percent) == (None, None)
    for _ in range(40):
        clock.cpu += 0.01
        clock.wall += 0.5
        pace.next_interval_seconds()
    assert pace.frames_per_second == pytest.approx(2.0)
    assert pace.cpu_percent == pytest.approx(2.0)
