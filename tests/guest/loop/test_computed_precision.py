"""A step's precision is what torch computed, whatever contexts the loop entered and layers it has."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui.guest.loop import computed_precision
from amptui.records.own_loop import FLOAT8_LAYERS, OptimizerFollowed
from amptui.records.run import Note, Record
from amptui.records.steps import StepRecord
from tests.builders import of, recorded
from tests.guest.loop.seen_steps import BATCHES, batches, loss_of, net, sgd, steps_of, update, watching


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, dtype: torch.dtype = torch.float32) -> None:
    for inputs, labels in batches():
        update(optimizer, loss_of(model, (inputs.to(dtype), labels)))


def precisions(records: list[Record]) -> list[str]:
    return [step.precision for step in steps_of(records)]


@pytest.mark.parametrize(
    ("dtype", "word"),
    [(torch.bfloat16, "bf16 weights"), (torch.float64, "float64"), (torch.float16, "fp16 weights")],
)
def test_weights_of_another_dtype_are_a_precision_of_their_own(dtype: torch.dtype, word: str) -> None:
    """From the step on in which the model is cast, or from the first one on as in the generated loops."""
    model = net()
    optimizer = sgd(model)
    with watching(model, optimizer) as records:
        train(model, optimizer)
        model.to(dtype)
        train(model, optimizer, dtype=dtype)
    assert precisions(records) == ["fp32"] * BATCHES + [word] * BATCHES


def test_micro_batches_in_several_precisions_are_mixed() -> None:
    model = net()
    optimizer = sgd(model)
    with watching(model, optimizer) as records:
        for batch in batches():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            with autocast():
                loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
    assert precisions(records) == ["mixed"] * BATCHES


def test_forward_passes_before_the_backward_passes_keep_their_precisions() -> None:
    first, second = net(), net()
    of_first, of_second = sgd(first), sgd(second)
    with watching(first, of_first) as records:
        for batch in batches():
            with autocast():
                loss = loss_of(first, batch)
            other = loss_of(second, batch)
            other.backward()
            loss.backward()
            of_first.step()
            of_second.step()
            of_first.zero_grad()
            of_second.zero_grad()
    assert precisions(records) == ["bf16"] * BATCHES
    (name,) = {record.optimizer for record in records if isinstance(record, OptimizerFollowed)} - {""}
    assert {step.precision for step in steps_of(records, name)} == {"fp32"}


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


def test_a_body_in_bfloat16_below_a_large_head_in_float32_is_bf16() -> None:
    body, scales = nn.Linear(4, 4), nn.Parameter(torch.ones(600, 4))
    head = nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters(), scales], lr=0.01)
    with watching(nn.ModuleList([body, head]), optimizer) as records:
        for inputs, labels in batches():
            with autocast():
                features = body(inputs)
            features = features.float()
            for scale in scales:
                features = features * scale
            update(optimizer, nn.functional.cross_entropy(head(features), labels))
    assert {step.precision for step in steps_of(records)} == {"bf16"}


def test_a_graph_too_large_to_look_at_has_no_known_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_precision, "_MAX_NODES", 12)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(12)], nn.Linear(4, 2))
    optimizer = sgd(model)
    with watching(model, optimizer) as records:
        train(model, optimizer)
    assert set(precisions(records)) == {"unknown"}


# Float8 layers of a script's own, torchao's or Transformer Engine's: its steps are called by them.

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


Context = Callable[[], AbstractContextManager[object]]


def plain() -> AbstractContextManager[object]:
    return nullcontext()


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
@pytest.mark.parametrize("context", [plain, autocast])
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
@pytest.mark.parametrize(("context", "before"), [(plain, "fp32"), (autocast, "bf16")])
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
    assert [step.precision for step in of(StepRecord, journal)] == [FLOAT8_LAYERS] * 3
    warnings = [note.text for note in of(Note, journal) if note.severity == "warning"]
    assert warnings == ["steps in bf16 were computed in float8 layers: the script has made them itself"]
