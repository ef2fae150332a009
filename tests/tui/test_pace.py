"""The frame rate follows the cost of frames."""

from collections.abc import Sequence

import pytest

from amptui.tui import screen
from amptui.tui.screen import CPU_BUDGET, MAX_FRAMES_PER_SECOND, MAX_INTERVAL_SECONDS, Pace


class Clock:
    """Time that goes by when a test says so."""

    def __init__(self) -> None:
        self.cpu = 5.0

    def thread_time(self) -> float:
        return self.cpu

    def intervals(self, pace: Pace, costs: Sequence[float]) -> list[float]:
        """Frames of these CPU seconds, each drawn when the one before it says so."""
        intervals: list[float] = []
        for cost in costs:
            self.cpu += cost
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
