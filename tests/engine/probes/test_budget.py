"""A measurement is taken as often as its budget pays for; the parts of a step are timed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.probes.budget import Cadence
from amptui.engine.probes.step_timer import PhaseName, StepTimer
from amptui.records.findings import StepTimed
from tests.engine.clock import Clock
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


CPU = torch.device("cpu")
PARTS: tuple[PhaseName, ...] = ("forward", "backward", "clip", "optimizer")


class Device:
    """A device that works off what was enqueued when tests let it: its clock is its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: list[float | Event] = []
        self.events = 0
        self.waits = 0

    def new_event(self) -> "Event":
        self.events += 1
        return Event(self)

    def work(self, seconds: float) -> None:
        self.queue.append(seconds)

    def run(self) -> None:
        for item in self.queue:
            if isinstance(item, Event):
                item.passed_at = self.now
            else:
                self.now += item
        self.queue.clear()


class Event:
    """As ``torch.cuda.Event``, on that device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.passed_at: Any = None

    def record(self) -> None:
        self.passed_at = None
        self.device.queue.append(self)

    def query(self) -> bool:
        return self.passed_at is not None

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.run()

    def elapsed_time(self, end_event: "Event") -> float:
        return float(1000 * (end_event.passed_at - self.passed_at))


class Loop:
    """A training loop whose parts take the seconds that a test gives them."""

    def __init__(self, device: Device | None = None) -> None:
        self.clock = Clock()
        self.device = device
        self.timed_steps: list[StepTimed] = []
        new_event = None if device is None else device.new_event
        self.timeline = StepTimer(CPU, self.timed_steps.append, clock=self.clock, new_event=new_event)
        self.step = 0

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def run(
        self,
        host: dict[str, float],
        device: dict[str, float] | None = None,
        *,
        between: Callable[[], object] = lambda: None,
        settling: bool = False,
    ) -> None:
        """One step: the host spends ``host`` and enqueues ``device``, seconds by part."""
        self.step += 1
        self.timeline.drain()
        between()
        work = device or {}
        self.wait(host["input"])
        self.enqueue(work.get("input"))
        self.timeline.begin(self.step, "fp32", settling, host["input"])
        self.timeline.mark("input")
        for name in PARTS:
            if name in host:
                self.wait(host[name])
                self.enqueue(work.get(name))
                self.timeline.mark(name)

    def enqueue(self, seconds: float | None) -> None:
        if self.device is not None and seconds is not None:
            self.device.work(seconds)


HOST = {"input": 0.001, "forward": 0.002, "backward": 0.003, "optimizer": 0.0005}
DEVICE = {"input": 0.0001, "forward": 0.02, "backward": 0.04, "optimizer": 0.003}


def host_seconds(record: StepTimed) -> dict[str, Any]:
    return {phase.name: pytest.approx(phase.host_seconds) for phase in record.phases}


def device_seconds(record: StepTimed) -> dict[str, Any]:
    return {phase.name: pytest.approx(phase.device_seconds) for phase in record.phases}


def test_phases_of_several_batches_are_summed_and_our_measurements_are_in_none() -> None:
    device = Device()
    loop = Loop(device)
    loop.timeline.drain()
    loop.timeline.begin(1, "fp32", False, 0.0)
    marks: tuple[tuple[PhaseName | None, float], ...] = (
        ("input", 0.0),
        *(("forward", 0.01), ("backward", 0.002)),
        *(("forward", 0.01), ("backward", 0.002)),
        *((None, 0.7), ("optimizer", 0.001)),
    )
    for name, seconds in marks:
        loop.wait(seconds)
        device.work(2 * seconds)
        loop.timeline.mark(name)
    loop.timeline.flush()
    (record,) = loop.timed_steps
    assert host_seconds(record) == {"input": 0.0, "forward": 0.02, "backward": 0.004, "optimizer": 0.001}
    assert device_seconds(record) == {"input": 0.0, "forward": 0.04, "backward": 0.008, "optimizer": 0.002}


def test_phases_have_the_device_s_seconds_once_it_has_finished() -> None:
    device = Device()
    loop = Loop(device)
    loop.run(HOST, DEVICE)
    loop.timeline.drain()
    assert loop.timed_steps == []
    device.run()
    loop.timeline.drain()
    assert device_seconds(loop.timed_steps[0]) == DEVICE
    assert host_seconds(loop.timed_steps[0]) == HOST
    assert device.waits == 0


@pytest.mark.gpu
def test_on_a_gpu_the_device_needs_longer_than_the_host_enqueues() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    timed_steps: list[StepTimed] = []
    timeline = StepTimer(device, timed_steps.append)
    torch.cuda._sleep(1)  # loaded now, which may wait
    with no_waits():
        for step in range(1, 4):
            timeline.drain()
            timeline.begin(step, "fp32", False, 0.0)
            timeline.mark("input")
            torch.cuda._sleep(500_000_000)  # a quarter of a second, more or less
            timeline.mark("forward")
            timeline.mark("optimizer")
        timeline.flush()
    forward: Any = timed_steps[0].phases[1]
    assert forward.device_seconds > 10 * forward.host_seconds
