"""Where NaN or Inf came from: one table of situations, traced with hooks and looked at without them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from amptui.engine.probes.module_trace import ModuleTrace
from amptui.engine.readback import open_readback
from amptui.guest.loop.nonfinite_origin import NonFiniteOrigin
from amptui.records.findings import ModulesTraced
from tests.engine.traced import autocast, record_of

BAD = float("nan")


class Net(nn.Module):
    """Two inputs, a BatchNorm, and a function at the end that may fail."""

    def __init__(self, last: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), Last(last)

    def forward(self, x: Tensor, other: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.norm(self.first(x)) + other
        result: Tensor = self.last(x if mask is None else x + mask.exp())
        return result


class Last(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def poison(name: str, value: float, net: Net, _inputs: dict[str, Tensor]) -> None:
    net.state_dict()[name].view(-1)[0] = value
    net.train(name != "norm.running_var")


def spoil(name: str, value: float, _net: Net, inputs: dict[str, Tensor]) -> None:
    inputs[name].view(-1)[0] = value


def spoil_both(net: Net, inputs: dict[str, Tensor]) -> None:
    poison("first.bias", BAD, net, inputs)
    spoil("x", BAD, net, inputs)


def nothing(_net: Net, _inputs: dict[str, Tensor]) -> None:
    pass


def zero_x(net: Net, _inputs: dict[str, Tensor]) -> None:
    nn.init.zeros_(net.norm.weight)


class Situation(NamedTuple):
    prepare: Callable[[Net, dict[str, Tensor]], None]
    hooked: str
    """What a trace finds, in every precision; ``overflow`` in float16 only, where there is one."""
    unhooked: str
    """What is found without hooks."""
    last: Callable[[Tensor], Tensor] = lambda x: x
    label: float = 0.0


SITUATIONS = {
    "NaN in the data": Situation(partial(spoil, "x", BAD), "input", "input"),
    "Inf in the data": Situation(partial(spoil, "x", float("inf")), "input", "input"),
    "NaN in the second input": Situation(partial(spoil, "other", BAD), "input", "input"),
    "NaN in a keyword": Situation(partial(spoil, "mask", BAD), "input", "input"),
    "-Inf in a mask": Situation(partial(spoil, "mask", -float("inf")), "", "unknown"),
    "NaN in data and weights": Situation(
        spoil_both,
        "input",
        "input",
    ),
    "NaN in a weight": Situation(partial(poison, "first.weight", BAD), "weights", "weights"),
    "Inf in a weight": Situation(partial(poison, "first.bias", float("inf")), "weights", "weights"),
    "NaN in a norm's weight": Situation(partial(poison, "norm.weight", BAD), "weights", "weights"),
    "an exploded weight": Situation(partial(poison, "first.weight", -float("inf")), "weights", "weights"),
    "NaN in read statistics": Situation(partial(poison, "norm.running_var", BAD), "buffer", "buffer"),
    "float16 overflows": Situation(nothing, "overflow", "unknown", lambda x: x.to(lowest()) * 6e4 * 2),
    "log of a negative number": Situation(nothing, "output", "unknown", lambda x: torch.log(-x.abs())),
    "a NaN label": Situation(nothing, "gradient", "unknown", label=BAD),
    "the gradient of sqrt at 0": Situation(zero_x, "gradient", "unknown", lambda x: (x * 0).float().sqrt()),
    "nothing": Situation(nothing, "", "unknown"),
}
DTYPES: dict[str, Any] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def lowest() -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def made(situation: Situation) -> tuple[Net, dict[str, Tensor]]:
    torch.manual_seed(0)
    net = Net(situation.last)
    inputs = {"x": torch.randn(4, 4), "other": torch.ones(4, 4), "mask": torch.zeros(4, 4)}
    situation.prepare(net, inputs)
    return net, inputs


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_cause_is_found_in_its_order_and_nothing_else_is_changed(name: str, precision: str) -> None:
    situation = SITUATIONS[name]
    net, inputs = made(situation)
    trace = ModuleTrace(net)
    with trace, autocast(DTYPES[precision]):
        output = net(inputs["x"], inputs["other"], mask=inputs["mask"])
        (output.float().sum() + situation.label).mul(situation.label or 1.0).backward()
    expected = situation.hooked
    if expected == "overflow" and precision != "fp16":
        expected = ""
    assert record_of(trace).cause == expected

    records: list[Any] = []
    readback = open_readback(torch.device("cpu"), clock=float)
    random, before = torch.get_rng_state(), {k: v.clone() for k, v in net.state_dict().items()}
    origin = NonFiniteOrigin(torch.device("cpu"), readback, records.append)
    origin.measure(net, [*inputs.items()], 1, precision)
    readback.flush()
    assert [record.cause for record in records if isinstance(record, ModulesTraced)] == [situation.unhooked]
    assert torch.equal(random, torch.get_rng_state())
    after = net.state_dict()
    assert all(torch.equal(before[key].nan_to_num(), after[key].nan_to_num()) for key in before)
