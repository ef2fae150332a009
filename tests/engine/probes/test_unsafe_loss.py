"""Binary cross entropy on probabilities is noticed before autocast refuses it, and nothing else changes."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui.engine.probes.schedule import unsafe_loss_calls
from tests.engine.compiled_runs import keeping

PROBABILITIES = torch.tensor([0.1, 0.6, 0.9])
TARGETS = torch.tensor([0.0, 1.0, 1.0])


def unsafe(logits: bool = False) -> Tensor:
    if logits:
        return functional.binary_cross_entropy_with_logits(PROBABILITIES, TARGETS)
    return functional.binary_cross_entropy(PROBABILITIES, TARGETS)


def in_autocast(*enabled: bool) -> Tensor:
    if not enabled:
        return unsafe()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled[0]):
        return in_autocast(*enabled[1:])


def in_a_thread() -> None:
    thread = threading.Thread(target=unsafe)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("code", "noticed"),
    [
        (unsafe, True),
        (lambda: nn.BCELoss(reduction="sum")(PROBABILITIES, target=TARGETS), True),
        (in_a_thread, True),
        (lambda: unsafe(logits=True), False),
        (lambda: nn.BCEWithLogitsLoss()(PROBABILITIES, TARGETS), False),
        (lambda: functional.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 1])), False),
        # Where autocast is off by the model's own word it is safe, even in a step in FP32.
        (lambda: in_autocast(True), True),
        (lambda: in_autocast(False), False),
        (lambda: in_autocast(True, False), False),
        (lambda: in_autocast(False, True), True),
        (lambda: in_autocast(True, False, True), True),
    ],
)
def test_binary_cross_entropy_is_noticed_unless_it_is_safe(code: Callable[[], object], noticed: bool) -> None:
    own, nesting = torch._C._nn.binary_cross_entropy, torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    with unsafe_loss_calls() as sentences:
        for _ in range(2):
            code()
    unsafe()  # after the step
    assert len(sentences) == noticed
    assert all("binary_cross_entropy (BCELoss) is unsafe under CUDA autocast" in each for each in sentences)
    assert torch._C._nn.binary_cross_entropy is own
    assert torch.autocast_increment_nesting() == nesting
    torch.autocast_decrement_nesting()


@pytest.mark.torch
def test_losses_and_gradients_are_bit_for_bit_the_same() -> None:
    results = []
    for context in (torch.enable_grad, unsafe_loss_calls):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
        own = nn.BCELoss(weight=torch.tensor([1.0, 2.0, 3.0]))
        with context():
            loss = own(model(torch.randn(5, 4)), torch.rand(5, 3))
            loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == 3
    assert all(map(torch.equal, *results))


@pytest.mark.torch
def test_compiled_code_is_noticed_and_not_recompiled_in_the_second_step() -> None:
    compiled: list[object] = []
    loss = torch.compile(nn.BCELoss(), backend=keeping(compiled), fullgraph=True)
    with unsafe_loss_calls() as sentences:
        loss(PROBABILITIES, TARGETS)
    loss(PROBABILITIES, TARGETS)
    assert (len(sentences), len(compiled)) == (1, 1)
