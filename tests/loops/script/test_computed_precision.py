"""The precision of compiled steps, and of those in float8 layers of a script's own, is what was computed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import Note, Record
from tests.builders import StepRow, of, recorded
from tests.loops.script.seen_steps import BATCHES, batches, loss_of, net, sgd, steps_of, update, watching


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def precisions(records: list[Record]) -> list[str]:
    return [step.precision for step in steps_of(records)]


@pytest.mark.ci  # it compiles
@pytest.mark.torch
@pytest.mark.parametrize(("low", "inside"), [(True, True), (True, False), (False, True)])
def test_a_compiled_model_is_read_too(low: bool, inside: bool) -> None:
    model = net()
    optimizer = sgd(model)

    def compute(batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low and inside):
            return loss_of(model, batch)

    torch.compiler.reset()
    compiled = torch.compile(compute, backend="aot_eager")
    with watching(model, optimizer) as records:
        for batch in batches():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low and not inside):
                loss = compiled(batch)
            update(optimizer, loss)
    assert precisions(records) == ["bf16" if low else "fp32"] * BATCHES


# Float8 layers of a script's own, torchao's or Transformer Engine's: its steps are called by them.

Context = Callable[[], AbstractContextManager[object]]

needs_torchao = pytest.mark.usefixtures("usable_torchao")


def wide_net() -> nn.Module:
    """The head has too few outputs for float8."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))


def convert(model: nn.Module) -> None:
    """As torchao's guide does."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _module, name: name == "0")


def rows(steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(8, 16, generator=generator)


def train_rows(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    context: Context,
) -> None:
    for batch in rows(steps):
        with context():
            loss = model(batch).float().square().mean()
        update(optimizer, loss)


@needs_torchao
@pytest.mark.parametrize("context", [nullcontext, autocast])
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_they_are_known_from_the_first_step_on(compiles: bool, context: Context) -> None:
    model = wide_net()
    convert(model)
    optimizer = sgd(model)
    torch.compiler.reset()
    with watching(model, optimizer) as journal:
        train_rows(torch.compile(model, backend="aot_eager") if compiles else model, optimizer, 3, context)
    assert precisions(journal) == [FLOAT8_LAYERS] * 3


@needs_torchao
@pytest.mark.parametrize(("context", "before"), [(nullcontext, "fp32"), (autocast, "bf16")])
def test_they_are_known_from_the_step_on_in_which_they_come(context: Context, before: str) -> None:
    model, other = wide_net(), wide_net()
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        train_rows(model, optimizer, 2, context)
        convert(other)
        train_rows(model, optimizer, 2, context)
        convert(model)
        train_rows(model, optimizer, 2, context)
    assert precisions(journal) == [before] * 4 + [FLOAT8_LAYERS] * 2


@needs_torchao
def test_watch_tells_them_and_says_whose_they_are(runs: Path) -> None:
    model = wide_net()
    convert(model)
    optimizer = sgd(model)
    with amptui.watch(model, optimizer, precision="bf16") as monitor:
        for batch in rows(3):
            with monitor.autocast():
                loss = model(batch).float().square().mean()
            monitor.backward(loss)
            monitor.step()
    journal = recorded(runs)
    assert [step.precision for step in of(StepRow, journal)] == [FLOAT8_LAYERS] * 3
    warnings = [note.text for note in of(Note, journal) if note.severity == "warning"]
    assert warnings == ["steps in bf16 were computed in float8 layers: the script has made them itself"]
