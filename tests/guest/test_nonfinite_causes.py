"""Where NaN or Inf came from: one table of situations, trained through every door in every precision."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui.cli import main
from amptui.diagnosis.summary import summary_lines
from amptui.records.findings import ModulesTraced
from amptui.records.run import NonFinite
from tests.builders import of, recorded
from tests.loops.compiled_runs import nothing_compiled
from tests.observed import AUTOCAST
from tests.telemetry.whole_runs import session_of
from tests.tiny import Tiny

NAN, INF = float("nan"), float("inf")
FULL_RANGE = "fp32", "bf16"


def lowest(x: Tensor) -> Tensor:
    return x.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else x


def bad_backward(x: Tensor) -> Tensor:
    x = x * 1
    x.register_hook(lambda gradient: gradient * NAN)
    return x


class Situation(NamedTuple):
    traced: str
    observed: str
    """The first cause and its place, found with hooks and without; in float16 what follows a comma."""
    at: str = ""
    """What holds ``value`` from the start: an input, a label (``y``), or a part of the model's state."""
    value: float = NAN
    last: Callable[[Tensor], Tensor] = nn.Identity()
    """The model's last operation."""
    loss: Callable[[Tensor], Tensor] = nn.Identity()
    gradient: Callable[[Tensor], Tensor] = nn.Identity()
    batch: int = 0
    """The number of the only one that holds it; 0: all do."""


LOST = "weights first.weight"
BIAS = f"{LOST}, weights first.bias"
UNKNOWN = f"{LOST}, unknown"

SITUATIONS = {
    "NaN in the data": Situation("input 0", "input 0", "x"),
    "NaN in one batch": Situation("input 0", "input 0", "x", batch=33),
    "Inf in the data": Situation("input 0", "input 0", "x", INF),
    "NaN in the second input": Situation("input 1", "input 1", "other"),
    "NaN in a keyword": Situation("input mask", "input mask", "mask"),
    "-Inf in a mask": Situation("", "", "mask", -INF),
    "a NaN label": Situation(f"{LOST}, gradient last", UNKNOWN, "y"),
    "NaN in a weight": Situation(LOST, LOST, "first.weight"),
    "Inf in a bias": Situation(BIAS, BIAS, "first.bias", INF),
    "NaN in statistics": Situation("", "buffer norm.running_var", "norm.running_var"),
    "NaN in an average": Situation("", "buffer average", "average"),
    "float16 overflows": Situation(", overflow last", ", unknown", last=lambda x: lowest(x) * 6e4 * 2),
    "log of a negative": Situation(f"{LOST}, output last", UNKNOWN, last=lambda x: (-x.abs()).log()),
    "0 / 0": Situation(f"{LOST}, output last", UNKNOWN, last=lambda x: lowest(x) * 0 / lowest(x * 0)),
    "the loss overflows": Situation(", gradient last", ", unknown", loss=lambda x: lowest(x + 1) * 6e4 * 2),
    "a loss too large": Situation(", gradient norm", ", unknown", loss=lambda x: x * 1e6),
    "a bad backward": Situation(f"{LOST}, gradient last", UNKNOWN, last=bad_backward),
    "norm of a zero": Situation(f"{LOST}, ", UNKNOWN, gradient=lambda x: x * 0 / (x * 0).norm()),
    "nothing": Situation("", ""),
}  # fmt: skip


class Net(nn.Module):
    """Two inputs and a keyword, BatchNorm, and a last operation that may fail."""

    def __init__(self, situation: Situation) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Identity()
        self.last.register_forward_hook(lambda _module, _inputs, output: situation.last(output))
        self.register_buffer("average", torch.zeros(4))
        if situation.at in self.state_dict():
            self.state_dict()[situation.at].view(-1)[0] = situation.value
        self.first.weight.register_hook(situation.gradient)

    def forward(self, x: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = self.last(self.norm(self.first(x)) + other + mask.exp())
        return result


def batch_of(situation: Situation, number: int, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    other = torch.ones(len(images), 4)
    batch = {"x": images.flatten(1).clone(), "other": other, "mask": other - 1, "y": labels[:, None].float()}
    if situation.at in batch and situation.batch in (0, number):
        batch[situation.at].view(-1)[0] = situation.value
    return batch


def loss_of(situation: Situation, net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    output = net(batch["x"], batch["other"], mask=batch["mask"])
    return situation.loss((output.float() - batch["y"]).square().mean())


class Case(Tiny):
    situation: str = "nothing"

    def build_model(self) -> nn.Module:
        return Net(SITUATIONS[self.situation])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        situation = SITUATIONS[self.situation]
        return loss_of(situation, model, batch_of(situation, 0, *batch))

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self.loss(model, batch)}


def batches(situation: Situation) -> Iterator[dict[str, Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    for number in range(1, 61):
        yield batch_of(situation, number, torch.rand(8, 16, generator=numbers), torch.arange(8) % 4)


def train(name: str, precision: str) -> None:
    options = ["--device", "cpu", "--precision", precision, "--steps", "60", "--headless"]
    main(["train", f"{__file__}:Case", *options, "--set", f"situation={name}"])


def watch(name: str, precision: Any) -> None:
    situation = SITUATIONS[name]
    net = Net(situation)
    optimizer = torch.optim.Adam(net.parameters())
    with amptui.watch(net, optimizer, precision=precision) as monitor:
        for batch in batches(situation):
            optimizer.zero_grad()
            with monitor.autocast():
                loss = loss_of(situation, net, batch)
            monitor.backward(loss)
            monitor.step()


def by_hand(name: str, precision: str, *, observed: bool) -> list[Tensor]:
    situation = SITUATIONS[name]
    net = Net(situation)
    optimizer = torch.optim.Adam(net.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    dtype = AUTOCAST[precision]
    with amptui.observe(net, optimizer) if observed else nullcontext():
        for batch in batches(situation):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = loss_of(situation, net, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [*net.state_dict().values(), torch.get_rng_state()]


def observe(name: str, precision: str) -> None:
    """Observed or not, all bits are the same."""
    pairs = zip(*(by_hand(name, precision, observed=observed) for observed in (False, True)), strict=True)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An observed loop is looked at after few steps; inputs are not, where anything is compiled."""
    monkeypatch.setattr("amptui.monitor.monitor.MAX_STEPS_BETWEEN_LOOKS", 16)
    with nothing_compiled():
        yield


@pytest.mark.parametrize("precision", ["fp16", *(pytest.param(p, marks=pytest.mark.ci) for p in FULL_RANGE)])
@pytest.mark.parametrize("door", [train, watch, observe])
@pytest.mark.parametrize("name", [name for name, situation in SITUATIONS.items() if not situation.batch])
def test_the_cause_is_found(name: str, door: Callable[..., None], precision: str, runs: Path) -> None:
    door(name, precision)
    situation = SITUATIONS[name]
    full, comma, float16 = (situation.observed if door is observe else situation.traced).partition(", ")
    traces = [trace for trace in of(ModulesTraced, recorded(runs)) if trace.cause]
    places = [[*t.inputs, *t.lost, *([t.first.name] if t.first else [])][:1] for t in traces]
    found = [" ".join([trace.cause, *place]) for trace, place in zip(traces, places, strict=True)]
    assert (found or [""])[0] == (float16 if comma and precision == "fp16" else full)
    buffers = [record.names for record in of(NonFinite, recorded(runs)) if record.what == "buffer"]
    assert len(buffers) == len({*buffers}), "they are told once"


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["fp16", *FULL_RANGE])
@pytest.mark.parametrize("door", [watch, observe])
def test_a_bad_batch_is_named_although_it_is_gone_soon(
    door: Callable[..., None], precision: str, runs: Path
) -> None:
    test_the_cause_is_found("NaN in one batch", door, precision, runs)
    lines = summary_lines(session_of(recorded(runs)).view())
    assert "look at the data" in " ".join(lines)
