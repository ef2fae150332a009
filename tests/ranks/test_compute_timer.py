"""Local compute time: what of a step counts, on a CPU's clock and by a GPU's events."""

import pytest
import torch
from torch import nn

from amptui.ranks.numbers.compute_timer import ComputeTimer

CPU = torch.device("cpu")


class Device:
    """A device's clock and its events, which it passes when :attr:`passed` says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passed = False

    def event(self) -> "Event":
        return Event(self)

    def clock(self) -> float:
        return self.now


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at: float | None = None

    def record(self, _stream: object) -> None:
        self.at = self._device.now

    def query(self) -> bool:
        return self._device.passed

    def elapsed_time(self, end: "Event") -> float:
        assert self.at is not None
        assert end.at is not None
        return (end.at - self.at) * 1000


def step(device: Device, timer: ComputeTimer, model: nn.Module, *batches: float) -> None:
    """Forward and backward of each batch take so many seconds; then the step waits for others."""
    model.zero_grad()
    timer.begin()
    for number, seconds in enumerate(batches, 1):
        timer.ends_step = number == len(batches)
        loss = model(torch.ones(1, 2)).sum()
        device.now += seconds
        loss.backward()
    device.now += 100.0


@pytest.mark.torch  # hooks of gradients
def test_a_cpu_is_timed_in_all_steps_from_the_first_pass_to_the_last_gradient() -> None:
    device, model = Device(), nn.Linear(2, 2)
    timer = ComputeTimer(model.parameters(), CPU, clock=device.clock)
    assert timer.take_seconds() is None
    step(device, timer, model, 1.0)
    step(device, timer, model, 2.0, 1.0)
    assert timer.take_seconds() == 2.0
    assert timer.take_seconds() is None


def test_a_gpu_is_timed_in_one_step_which_is_read_once_it_is_over() -> None:
    device, model = Device(), nn.Linear(2, 2)
    timer = ComputeTimer(model.parameters(), CPU, clock=device.clock, new_event=device.event)
    step(device, timer, model, 1.0)
    step(device, timer, model, 3.0)
    assert timer.take_seconds() is None  # the device is not there yet
    step(device, timer, model, 5.0)
    device.passed = True
    assert timer.take_seconds() == 1.0
    assert timer.take_seconds() is None
    step(device, timer, model, 7.0)
    assert timer.take_seconds() == 7.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_events_of_a_gpu_time_a_real_step() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to(device)
    timer = ComputeTimer(model.parameters(), device)
    timer.begin()
    model(torch.ones(32, 64, device=device)).sum().backward()
    torch.cuda.synchronize()
    seconds = timer.take_seconds()
    assert seconds is not None
    assert seconds > 0
