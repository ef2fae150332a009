"""A measurement is taken as often as its budget pays for; the parts of a step are timed."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.probes.probe import Cadence
from amptui.probes.step_timer import StepTimer
from amptui.records.findings import StepTimed
from tests.loops.clock import Clock
from tests.tiny import no_waits


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


# -------------------------------------------------------------------- the seconds of a step's parts


@pytest.mark.gpu
def test_on_a_gpu_the_device_needs_longer_than_the_host_enqueues() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    timed_steps = list[StepTimed]()
    timeline = StepTimer(device, timed_steps.append)
    torch.cuda._sleep(1)  # loaded now, which may wait
    with no_waits():
        for step in range(1, 4):
            timeline.drain()
            timeline.begin(step, "fp32", False, 0.0)
            timeline.mark("input")
            for _ in range(2):  # of two batches
                torch.cuda._sleep(250_000_000)  # an eighth of a second, more or less
                timeline.mark("forward")
            timeline.mark("optimizer")
        timeline.flush()
    assert [phase.name for phase in timed_steps[0].phases] == ["input", "forward", "optimizer"]
    forward: Any = timed_steps[0].phases[1]
    assert forward.device_seconds > 10 * forward.host_seconds
