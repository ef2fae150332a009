"""A measurement is taken as often as its budget pays for."""

from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.cadence import Cadence


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(1e-4, 1.0), st.floats(1e-5, 1.0), st.floats(0.001, 0.5), st.integers(50, 400))
def test_measuring_stays_within_the_budget(
    step_seconds: float, cost_seconds: float, budget: float, steps: int
) -> None:
    clock = Clock()
    cadence = Cadence(budget, clock=clock)
    began, spent = clock.now, 0.0
    for _ in range(steps):
        clock.now += step_seconds
        if cadence.due():
            start = clock.now
            clock.now += cost_seconds
            cadence.measured(start)
            spent += cost_seconds
    # The first two are not paid for beforehand.
    assert spent - 2 * cost_seconds <= budget * (clock.now - began) + 1e-9
    # Nor is the budget left unused: after each measurement for as long as that pays for, and a step.
    longest_wait = cost_seconds / budget + step_seconds
    measurements = spent / cost_seconds
    assert clock.now - began - spent <= (measurements + 1) * longest_wait + step_seconds + 1e-9


def test_a_cheap_measurement_is_taken_at_every_step() -> None:
    clock = Clock()
    cadence = Cadence(0.005, clock=clock)
    for _ in range(100):
        clock.now += 0.4
        assert cadence.due()
        start = clock.now
        clock.now += 0.001
        cadence.measured(start)


def test_one_slow_measurement_does_not_silence_those_after_it() -> None:
    clock = Clock()
    cadence = Cadence(0.005, clock=clock)
    for cost_seconds in (1.0, 0.001, 0.001):
        clock.now += 0.4
        assert cadence.due()
        start = clock.now
        clock.now += cost_seconds
        cadence.measured(start)
