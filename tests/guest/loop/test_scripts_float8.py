"""Float8 layers of a script's own, torchao's or Transformer Engine's: its steps are called by them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui import Monitor
from amptui.guest.auto_observe import observe_from_first_step, search_loop
from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.parameter_owner import LooseParameters, owner_of
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import Note, Record, RunStarted
from amptui.records.steps import StepRecord
from tests.builders import of
from tests.builders import recorded as records
from tests.guest.loop.seen_steps import sgd, steps_of, watching

needs_torchao = pytest.mark.usefixtures("usable_torchao")


def net() -> nn.Module:
    """The head has too few outputs for float8."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))


def convert(model: nn.Module) -> None:
    """As torchao's guide does."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _module, name: name == "0")


def plain() -> AbstractContextManager[object]:
    return nullcontext()


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def batches(steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(8, 16, generator=generator)


def train(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    context: Callable[[], AbstractContextManager[object]],
) -> None:
    for batch in batches(steps):
        optimizer.zero_grad()
        with context():
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()


def precisions(journal: list[Record]) -> list[str]:
    return [step.precision for step in steps_of(journal)]


@needs_torchao
@pytest.mark.parametrize("context", [plain, autocast])
def test_they_are_known_from_the_first_step_on(context: Callable[[], AbstractContextManager[object]]) -> None:
    model = net()
    convert(model)
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        train(model, optimizer, 3, context)
    assert precisions(journal) == [FLOAT8_LAYERS] * 3


@needs_torchao
@pytest.mark.parametrize(("context", "before"), [(plain, "fp32"), (autocast, "bf16")])
def test_they_are_known_from_the_step_on_in_which_they_come(
    context: Callable[[], AbstractContextManager[object]], before: str
) -> None:
    model, other = net(), net()
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        train(model, optimizer, 2, context)
        convert(other)
        train(model, optimizer, 2, context)
        convert(model)
        train(model, optimizer, 2, context)
    assert precisions(journal) == [before] * 4 + [FLOAT8_LAYERS] * 2


@needs_torchao
@pytest.mark.ci  # it compiles
def test_they_are_known_in_a_compiled_model() -> None:
    model = net()
    convert(model)
    optimizer = sgd(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    with watching(model, optimizer) as journal:
        train(compiled, optimizer, 3, plain)
    assert precisions(journal) == [FLOAT8_LAYERS] * 3


@needs_torchao
def test_observe_tells_them(runs: Path) -> None:
    model = net()
    optimizer = sgd(model)
    with amptui.observe(model, optimizer):
        convert(model)
        train(model, optimizer, 3, autocast)
    journal = records(runs)
    assert [step.precision for step in of(StepRecord, journal)] == [FLOAT8_LAYERS] * 3
    assert of(RunStarted, journal)[0].precision == FLOAT8_LAYERS


@needs_torchao
def test_watch_tells_them_and_says_whose_they_are(runs: Path) -> None:
    model = net()
    convert(model)
    optimizer = sgd(model)
    with amptui.watch(model, optimizer, precision="bf16") as monitor:
        for batch in batches(3):
            with monitor.autocast():
                loss = model(batch).float().square().mean()
            monitor.backward(loss)
            monitor.step()
    journal = records(runs)
    assert [step.precision for step in of(StepRecord, journal)] == [FLOAT8_LAYERS] * 3
    warnings = [note.text for note in of(Note, journal) if note.severity == "warning"]
    assert warnings == ["steps in bf16 were computed in float8 layers: the script has made them itself"]


@needs_torchao
def test_a_script_that_never_calls_amptui_is_told_them_too(runs: Path) -> None:
    model = net()
    convert(model)
    monitors: list[Monitor] = []

    def open_first(optimizer: torch.optim.Optimizer, loop: ObservedLoop) -> None:
        monitors.append(observe_from_first_step(optimizer, loop))

    search_loop(open_first=open_first, on_fault=_fail)
    train(model, sgd(model), 3, autocast)
    monitors[0].close()
    assert [step.precision for step in of(StepRecord, records(runs))] == [FLOAT8_LAYERS] * 3


def _fail(error: Exception) -> None:
    raise error


class EngineLinear(nn.Linear):
    """Notes in each forward pass whether that was in float8, as the layers of Transformer Engine do.

    The library itself needs a GPU: a layer of the same module and with the same attribute stands for it.
    """

    in_float8 = False

    recipe: object = None

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.fp8 = False
        self.fp8_meta: dict[str, object] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        self.fp8 = self.in_float8
        self.fp8_meta["recipe"] = self.recipe
        return super().forward(inputs)


class NVFP4BlockScaling:
    """Has the name of the library's recipe for FP4."""


EngineLinear.__module__ = "transformer_engine.pytorch.module.linear"


def train_engine(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4)).float().square().mean()
        loss.backward()
        optimizer.step()


def test_its_steps_are_told_apart_from_those_of_the_autocast_around_it() -> None:
    layer = EngineLinear()
    model = nn.Sequential(nn.Linear(4, 4), layer)
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        for layer.in_float8 in (False, True, False):
            train_engine(model, optimizer, 2)
    precisions = [step.precision for step in steps_of(journal)]
    assert precisions == ["bf16", "bf16", FLOAT8_LAYERS, FLOAT8_LAYERS, "bf16", "bf16"]


def test_it_is_known_where_no_one_module_has_all_parameters() -> None:
    body, head = nn.Linear(4, 4), EngineLinear()
    head.in_float8 = True
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    owner = owner_of(optimizer)
    assert isinstance(owner, LooseParameters)
    with watching(owner, optimizer) as journal:
        train_engine(lambda batch: head(body(batch)), optimizer, 2)
    assert [step.precision for step in steps_of(journal)] == [FLOAT8_LAYERS] * 2


def test_float4_is_not_called_float8() -> None:
    layer = EngineLinear()
    layer.in_float8, layer.recipe = True, NVFP4BlockScaling()
    model = nn.Sequential(nn.Linear(4, 4), layer)
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        train_engine(model, optimizer, 2)
    assert [step.precision for step in steps_of(journal)] == ["unknown"] * 2
