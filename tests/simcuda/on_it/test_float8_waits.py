"""Float8 as the hardware multiplies it: layers that change class on the device, and no wait for it."""

from collections import Counter

import pytest
import torch
from torch import nn

from amptui.records.answers import RequestMade
from amptui.records.findings import Float8Layers, ModulesTraced, PrecisionsCompared, XRayTaken
from amptui.records.run import PrecisionChanged
from tests.simcuda.training import Asks, run
from tests.tiny import losses

pytestmark = [
    pytest.mark.usefixtures("usable_torchao"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9),
        reason="float8 products need compute capability 8.9",
    ),
]

NOWHERE: Counter[str] = Counter()


def test_no_float8_step_and_no_toggle_waits() -> None:
    order = ("fp8", "bf16", "fp8", "fp32", "fp8", "bf16")
    asks = {5 * (i + 1): RequestMade("precision", precision=name) for i, name in enumerate(order)}
    trained = run(asks=asks, steps=40, precision="bf16")
    changes = [(record.step, record.current) for record in trained.log.of(PrecisionChanged)]
    assert changes == [(5 * (i + 1) + 1, name) for i, name in enumerate(order)]
    (layers,) = trained.log.of(Float8Layers)
    assert layers.layers == 1
    assert trained.marks.places() == NOWHERE
    linears = [module for module in trained.prepared.model.modules() if isinstance(module, nn.Linear)]
    assert [type(module) for module in linears] == [nn.Linear] * 2


def test_no_comparison_and_no_trace_of_float8_waits() -> None:
    asks: Asks = {
        20: RequestMade("trace"),
        30: RequestMade("comparison", precisions=("bf16", "fp8")),
    }
    trained = run(asks=asks, steps=145, precision="fp8")
    assert len(trained.log.of(ModulesTraced)) == 1
    assert [row.precision for row in trained.log.of(PrecisionsCompared)[-1].rows] == ["bf16", "fp8"]
    assert trained.marks.places() == NOWHERE


def test_an_x_ray_of_float8_leaves_the_training_as_it_is() -> None:
    looked = run(asks={10: RequestMade("x-ray")}, steps=20, precision="fp8")
    (x_ray,) = looked.log.of(XRayTaken)
    assert x_ray.precision == "fp8"
    assert losses(looked.log) == losses(run(steps=20, precision="fp8").log)
