"""A step's precision is what torch computed, whatever contexts the loop entered."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.guest.loop import computed_precision
from amptui.records.own_loop import OptimizerFollowed
from amptui.records.run import Record
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
