"""Numbers on their way to the host and batches to the device: no wait for them, and none comes too early."""

import gc
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from amptui.data.device_copies import MAX_AHEAD, DeviceCopies
from amptui.device.readback import open_readback
from amptui.records.run import EpochFinished
from tests.builders import StepRow
from tests.simcuda.device import configured, watched
from tests.simcuda.training import Small, run
from tests.tiny import losses


class LearningRateOnDevice(Small):
    """Its learning rate is a tensor on the device, as CUDA graphs want it."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        rate = torch.tensor(1e-3, device="cuda")
        return torch.optim.Adam(model.parameters(), lr=rate, fused=True)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_learning_rate_on_the_device_is_told_without_a_wait(precision: str) -> None:
    trained = run(LearningRateOnDevice(), steps=30, precision=precision)
    rates = {record.lr for record in trained.log.of(StepRow)}
    assert rates == {torch.tensor(1e-3).item()}
    assert trained.marks.places() == Counter()


def test_numbers_are_those_of_the_stream_that_computed_them() -> None:
    device = torch.device("cuda", 0)
    rows: list[tuple[Any, float | None]] = []
    with configured(kernel_us=20_000):
        readback = open_readback(device, clock=lambda: 0.0)
        # What it reads too early is NaN.
        with torch.cuda.stream(torch.cuda.Stream(device)):
            readback.begin_interval()
            for number in range(3):
                value = torch.full((2,), float(number), device=device)
                readback.push([value], lambda row, seconds: rows.append((row, seconds)), timed=True)
                readback.drain()
            readback.flush()
    assert [list(row) for row, _ in rows] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert all(seconds is not None and seconds >= 0.02 for _, seconds in rows)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_device_far_behind_the_host_gives_the_same_numbers(precision: str) -> None:
    quick = run(Small(samples=160), steps=24, precision=precision)
    with configured(kernel_us=500):
        slow = run(Small(samples=160), steps=24, precision=precision)
    assert losses(slow.log) == losses(quick.log)
    assert all(loss is not None and math.isfinite(loss) for loss in losses(slow.log))
    assert slow.log.of(EpochFinished)[0].validation == quick.log.of(EpochFinished)[0].validation
    assert slow.marks.places() == Counter()


BATCHES = 4 * MAX_AHEAD


def test_few_batches_wait_on_a_device_that_is_far_behind_and_the_host_waits_for_none() -> None:
    device = torch.device("cuda", 0)
    copies, source = DeviceCopies(device), torch.ones(1 << 19).pin_memory()
    for _ in range(3):
        copies.send(source)
    torch.cuda.synchronize()
    gc.collect()  # other tests' tensors must not be freed meanwhile
    torch.cuda.reset_peak_memory_stats(device)
    active_before = torch.cuda.memory_stats(device)["active_bytes.all.current"]

    def send_all() -> None:
        for _ in range(BATCHES):
            copies.send(source).mul_(2)

    with configured(kernel_us=20_000.0):
        waits = watched(send_all)
        # Active: not to be used again before the device has come past it.
        active_bytes = torch.cuda.memory_stats(device)["active_bytes.all.peak"] - active_before
        torch.cuda.synchronize()
    assert waits == []
    assert 1 < active_bytes / source.nbytes <= MAX_AHEAD + 2
