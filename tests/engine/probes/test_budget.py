"""A measurement is taken as often as its budget pays for."""

from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.probes.budget import Cadence
from tests.engine.clock import Clock


@given(
    st.floats(1e-4, 1.0), st.floats(1e-5, 1.0), st.floats(0.001, 0.5), st.integers(50, 400), st.integers(1, 2)
)
def test_measuring_stays_within_the_budget(
    step_seconds: float, cost_seconds: float, budget: float, steps: int, free: int
) -> None:
    clock = Clock()
    cadence = Cadence(budget, free=free, clock=clock)
    began, spent = clock.now, 0.0
    for _ in range(steps):
        clock.now += step_seconds
        if cadence.due():
            start = clock.now
            clock.now += cost_seconds
            cadence.charge_since(start)
            spent += cost_seconds
    # The first ones are not paid for beforehand.
    assert spent - free * cost_seconds <= budget * (clock.now - began) + 1e-9
    # Nor is the budget left unused: after each measurement for as long as that pays for, and a step.
    longest_wait = cost_seconds / budget + step_seconds
    measurements = spent / cost_seconds
    assert clock.now - began - spent <= (measurements + 1) * longest_wait + step_seconds + 1e-9


@given(st.floats(1e-3, 1.0), st.floats(1e-3, 0.1), st.floats(0.001, 0.1), st.integers(50, 400))
def test_what_cannot_wait_is_lent_and_paid_back(
    step_seconds: float, cost_seconds: float, budget: float, steps: int
) -> None:
    """However often somebody is in a hurry: never more than one measurement beyond the budget."""
    clock = Clock()
    cadence = Cadence(budget, free=1, clock=clock)
    began, spent = clock.now, 0.0
    for _ in range(steps):
        clock.now += step_seconds
        if cadence.may_borrow:
            start = clock.now
            clock.now += cost_seconds
            cadence.charge_since(start)
            spent += cost_seconds
    assert spent >= 2 * cost_seconds
    assert spent - 2 * cost_seconds <= budget * (clock.now - began) + 1e-9


def test_nothing_is_lent_before_the_cost_of_the_last_one_is_known() -> None:
    cadence = Cadence(0.1, clock=Clock())
    assert cadence.may_borrow
    cadence.begin()
    assert not cadence.may_borrow
    cadence.charge(0.1)
    assert cadence.may_borrow


def test_a_cheap_measurement_is_taken_at_every_step_whatever_the_first_one_took() -> None:
    clock = Clock()
    cadence = Cadence(0.005, clock=clock)
    for cost_seconds in (1.0, *[0.001] * 99):
        clock.now += 0.4
        assert cadence.due()
        start = clock.now
        clock.now += cost_seconds
        cadence.charge_since(start)


def test_credit_does_not_accumulate_over_a_pause() -> None:
    clock = Clock()
    cadence = Cadence(0.01, free=1, clock=clock)
    cadence.charge_since(clock.now)
    for cost in (0.5, 0.5):
        clock.now += 10_000.0
        assert cadence.due()
        began = clock.now
        clock.now += cost
        cadence.charge_since(began)
        assert not cadence.due()


def test_nothing_is_due_until_the_last_measurement_is_charged() -> None:
    clock = Clock()
    cadence = Cadence(0.01, clock=clock)
    for _ in range(2):
        cadence.begin()
        clock.now += 1000.0
        assert not cadence.due()
        cadence.charge(0.5)
    clock.now += 50.0
    cadence.begin()
    cadence.charge(None)  # its cost is not known: that of those before is taken for it
    clock.now += 49.0
    assert not cadence.due()
    clock.now += 2.0
    assert cadence.due()
