"""Local compute time: what of a step counts, on a CPU's clock and by a GPU's events."""

import pytest
import torch
from torch import nn

from amptui.ranks.numbers import compute_timer
from amptui.ranks.numbers.compute_timer import ComputeTimer


@pytest.mark.torch  # hooks of gradients
def test_a_cpu_is_timed_in_all_steps_from_the_first_pass_to_the_last_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, model = 0.0, nn.Linear(2, 2)
    monkeypatch.setattr(compute_timer, "perf_counter", lambda: now)
    timer = ComputeTimer(model.parameters(), torch.device("cpu"))
    assert timer.take_seconds() is None
    for batches in ((1.0,), (2.0, 1.0)):
        model.zero_grad()
        timer.begin()
        for number, seconds in enumerate(batches, 1):
            timer.ends_step = number == len(batches)
            loss = model(torch.ones(1, 2)).sum()
            now += seconds
            loss.backward()
        now += 100.0  # it waits for others
    assert timer.take_seconds() == 2.0
    assert timer.take_seconds() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_is_timed_in_one_step_which_is_read_once_it_is_over() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to(device)
    inputs = torch.ones(32, 64, device=device)
    model(inputs).sum().backward()  # what a first step waits for
    timer = ComputeTimer(model.parameters(), device)

    def steps() -> None:
        for _ in range(2):
            timer.begin()
            torch.cuda._sleep(200_000_000)
            model(inputs).sum().backward()

    steps()
    assert timer.take_seconds() is None  # the device is not there yet
    torch.cuda.synchronize()
    first = timer.take_seconds()
    assert first is not None
    assert first > 0
    assert timer.take_seconds() is None
    steps()
    torch.cuda.synchronize()
    assert timer.take_seconds() is not None
