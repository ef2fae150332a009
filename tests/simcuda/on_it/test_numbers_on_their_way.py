"""A step's numbers reach the host from wherever they are, without a wait and not before they are there."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from amptui.engine.readback import open_readback
from amptui.records.run import EpochFinished
from amptui.records.steps import StepRecord
from tests.simcuda.device import configured
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
    rates = {record.lr for record in trained.log.of(StepRecord)}
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
