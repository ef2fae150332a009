"""Of a model whose weights were lost before the step, a trace names no module."""

import math
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from amptui.base.errors import ExperimentError
from amptui.records.findings import ModulesTraced
from amptui.telemetry.health import judge_trace
from tests.builders import assert_holds
from tests.engine.traced import traced_step
from tests.tiny import Log, Tiny, prepare, train


class Burning(Tiny):
    """In step ``at`` one gradient overflows, which without a scaler makes its parameter Inf or NaN."""

    at: int = 6
    epochs: int = 60

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.get_parameter("4.weight").register_hook(self._overflow)
        return model

    def _overflow(self, gradient: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return gradient * math.inf if self.calls == self.at else gradient


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_automatic_trace_of_a_run_without_a_scaler_names_no_module(precision: str) -> None:
    log = Log()
    with suppress(ExperimentError):  # the run ends because of it
        train(prepare(Burning(), precision=precision, steps=20), log)
    trace = log.of(ModulesTraced)[0]
    assert trace.step > Burning.at
    assert (trace.first, trace.nearest) == (None, ())
    assert "4.weight" in trace.lost
    assert judge_trace(trace).state == "weights lost"


def overflowing_linear() -> nn.Linear:
    linear = nn.Linear(4, 4, bias=False)
    nn.init.constant_(linear.weight, 1e5)
    return linear


class Scaled(nn.Module):
    """Has a parameter beside its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.linear(inputs * self.scale)
        return result


@pytest.mark.parametrize(("name", "bad"), [("2.bias", -math.inf), ("1.scale", math.nan)])
def test_no_module_is_named_if_a_weight_was_not_finite_before(name: str, bad: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 4), nn.Linear(4, 2))
    with torch.no_grad():
        model.get_parameter(name)[1] = bad
    record = traced_step(model, torch.ones(3, 4), dtype=None)
    assert (record.first, record.nearest) == (None, ())
    assert (record.lost, record.lost_count) == ((name,), 1)


def test_a_weight_without_a_part_in_the_loss_is_not_to_blame() -> None:
    model = nn.Sequential(overflowing_linear())
    model.register_parameter("never_used", nn.Parameter(torch.full((2,), math.nan)))
    record = traced_step(model, torch.ones(3, 4))
    assert_holds(record, {"first.name": "0", "lost_count": 0})


def test_lost_statistics_are_to_blame_only_where_they_are_read() -> None:
    model = nn.Sequential(overflowing_linear(), nn.BatchNorm1d(4))
    model.get_buffer("1.running_mean").fill_(math.nan)  # as the overflow of an earlier step left it
    assert_holds(traced_step(model, torch.ones(3, 4)), {"first.name": "0"})
    nn.init.constant_(model.get_parameter("0.weight"), 0.1)
    model.get_buffer("1.running_mean").fill_(math.nan)
    model.get_buffer("1.running_var").fill_(1.0)
    lost = traced_step(model.eval(), torch.ones(3, 4))
    assert (lost.first, lost.lost) == (None, ("1.running_mean",))
