"""Float8 layers of a script's own, torchao's or Transformer Engine's: its steps are called by them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import Note, Record
from amptui.records.steps import StepRecord
from tests.builders import of
from tests.builders import recorded as records
from tests.guest.loop.seen_steps import sgd, steps_of, update, watching

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
        with context():
            loss = model(batch).float().square().mean()
        update(optimizer, loss)


def precisions(journal: list[Record]) -> list[str]:
    return [step.precision for step in steps_of(journal)]


@needs_torchao
@pytest.mark.parametrize("context", [plain, autocast])
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_they_are_known_from_the_first_step_on(
    compiles: bool, context: Callable[[], AbstractContextManager[object]]
) -> None:
    model = net()
    convert(model)
    optimizer = sgd(model)
    torch.compiler.reset()
    with watching(model, optimizer) as journal:
        train(torch.compile(model, backend="aot_eager") if compiles else model, optimizer, 3, context)
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


class EngineLinear(nn.Linear):
    """Notes in each forward pass whether that was in float8, as the layers of Transformer Engine do.

    The library itself needs a GPU: a layer of the same module and with the same attribute stands for it.
    """

    fp8 = in_float8 = False

    def forward(self, inputs: Tensor) -> Tensor:
        self.fp8 = self.in_float8
        return super().forward(inputs)


EngineLinear.__module__ = "transformer_engine.pytorch.module.linear"


def test_its_steps_are_told_apart_from_those_of_the_autocast_around_it() -> None:
    layer = EngineLinear(16, 16)
    model = nn.Sequential(nn.Linear(16, 16), layer)
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        for layer.in_float8 in (False, True, False):
            train(model, optimizer, 2, autocast)
    assert precisions(journal) == ["bf16", "bf16", FLOAT8_LAYERS, FLOAT8_LAYERS, "bf16", "bf16"]
