"""What a usual step sends to the device beyond a plain loop's."""

import pytest
import torch
from torch import nn

from amptui.engine.probes.float16_window import Float16WindowProbe
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.probes.update_probe import UpdateProbe
from tests.simcuda import device
from tests.simcuda.training import run, run_plain

MAX_ADDED = {"fp32": 2, "bf16": 2, "fp16": 5}


@pytest.mark.parametrize("probes", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_few_operators_are_added(precision: str, clip_norm: float | None, probes: bool) -> None:
    plain = run_plain(precision=precision, clip_norm=clip_norm).usual()
    ours = run(precision=precision, clip_norm=clip_norm, probes=probes, steps=50).marks.usual()
    assert ours.total() - plain.total() <= MAX_ADDED[precision], (ours - plain, plain - ours)


MAX_IN_SEGMENT, MAX_AT_END = 17, 3
"""Of a float16 window: ten operators count the elements of a segment, six give its norms."""


def test_a_float16_window_takes_few_operators_and_no_wait() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2000), nn.Linear(2000, 8)).to("cuda")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    probe = Float16WindowProbe(GradientProbe(model))
    probe.measure(3.0)
    device.take_operators()
    device.take_waits()
    probe.measure(3.0)
    assert device.take_waits() == []
    operators = device.take_operators()
    segments = 3  # all small parameters together, and two large ones
    assert operators.total() <= segments * MAX_IN_SEGMENT + MAX_AT_END, operators


MAX_COPIED, MAX_COMPARED = 1, 4
"""Of all whole parameters together, and of all that are sampled: a copy; then another, their difference, and
the norms of both."""


def test_update_ratios_take_few_operators_and_no_wait() -> None:
    model = nn.Sequential(*(nn.Linear(200, 200) for _ in range(20))).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    probe = UpdateProbe(model)
    probe.copy(optimizer).compare()
    device.take_operators()
    device.take_waits()
    probe.copy(optimizer).compare()
    assert device.take_waits() == []
    operators = device.take_operators()
    groups, at_end = 2, 1  # the weights are sampled, the biases are whole
    assert operators.total() <= groups * (MAX_COPIED + MAX_COMPARED) + at_end, operators
