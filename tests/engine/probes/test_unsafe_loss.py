"""Binary cross entropy on probabilities is noticed before autocast refuses it, and nothing else changes."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.engine.probes.schedule import unsafe_loss_calls

PROBABILITIES = torch.tensor([0.1, 0.6, 0.9])
TARGETS = torch.tensor([0.0, 1.0, 1.0])


def noticed(code: Callable[[], object]) -> bool:
    own = torch._C._nn.binary_cross_entropy
    with unsafe_loss_calls() as sentences:
        code()
    assert torch._C._nn.binary_cross_entropy is own
    return bool(sentences)


def function() -> Tensor:
    return functional.binary_cross_entropy(PROBABILITIES, TARGETS)


def module() -> Tensor:
    loss: Tensor = nn.BCELoss(reduction="sum")(PROBABILITIES, target=TARGETS)
    return loss


@pytest.mark.parametrize("code", [function, module])
def test_binary_cross_entropy_is_noticed_in_fp32_with_the_hint(code: Callable[[], Tensor]) -> None:
    with unsafe_loss_calls() as sentences:
        for _ in range(3):
            code()
    (sentence,) = sentences
    assert "binary_cross_entropy (BCELoss) is unsafe under CUDA autocast" in sentence
    assert "BCEWithLogitsLoss" in sentence


@pytest.mark.parametrize(
    "code",
    [
        lambda: nn.BCEWithLogitsLoss()(PROBABILITIES, TARGETS),
        lambda: functional.binary_cross_entropy_with_logits(PROBABILITIES, TARGETS),
        lambda: functional.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 1])),
    ],
    ids=["module", "function", "cross entropy"],
)
def test_safe_losses_are_not_noticed(code: Callable[[], object]) -> None:
    assert not noticed(code)


def test_a_call_after_the_step_is_not_noticed() -> None:
    with unsafe_loss_calls() as sentences:
        pass
    function()
    assert sentences == []


def test_the_function_is_restored_when_the_step_raises() -> None:
    def refused() -> None:
        functional.binary_cross_entropy(PROBABILITIES, torch.zeros(2))

    own = torch._C._nn.binary_cross_entropy
    with pytest.raises(ValueError, match="target size"), unsafe_loss_calls():
        refused()
    assert torch._C._nn.binary_cross_entropy is own


# ------------------------------------------------------------------------------- safe islands


def in_autocast(*enabled: bool) -> Tensor:
    if not enabled:
        return function()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled[0]):
        return in_autocast(*enabled[1:])


@pytest.mark.parametrize(
    ("enabled", "unsafe"),
    [
        ((), True),
        ((True,), True),
        ((False,), False),
        ((True, False), False),
        ((False, True), True),
        ((True, False, True), True),
    ],
)
def test_disabled_autocast_is_safe_even_in_an_fp32_step(enabled: tuple[bool, ...], unsafe: bool) -> None:
    assert noticed(lambda: in_autocast(*enabled)) == unsafe


def test_autocast_s_nesting_is_unchanged() -> None:
    before = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    noticed(lambda: in_autocast(True, False))
    assert torch.autocast_increment_nesting() == before
    torch.autocast_decrement_nesting()


# ------------------------------------------------------------------------ as if nothing had been


def gradients_of(*, watching: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
    weight = torch.tensor([1.0, 2.0, 3.0])
    own = nn.BCELoss(weight=weight)
    with unsafe_loss_calls() if watching else torch.enable_grad():
        loss = own(model(torch.randn(5, 4)), torch.rand(5, 3))
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def test_losses_and_gradients_are_bit_for_bit_the_same() -> None:
    plain, watched = gradients_of(watching=False), gradients_of(watching=True)
    assert len(plain) == 3
    assert all(map(torch.equal, plain, watched))


class Counting(TorchFunctionMode):
    """A mode that a person's own code may run in."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.calls += func is functional.binary_cross_entropy
        return func(*args, **(kwargs or {}))


class Passing(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_user_s_modes_work_inside_and_outside() -> None:
    def within() -> None:
        with Counting() as inner, Passing():  # type: ignore[no-untyped-call]
            function()
        assert inner.calls == 1

    with Counting() as outer:
        assert noticed(within)
    assert outer.calls == 1


def test_contexts_may_be_nested() -> None:
    with unsafe_loss_calls() as outer:
        assert noticed(function)
        module()
    assert len(outer) == 1


def test_calls_in_a_thread_are_noticed_too() -> None:
    thread = threading.Thread(target=function)

    def run() -> None:
        thread.start()
        thread.join()

    assert noticed(run)


def test_compiled_code_is_noticed_and_not_recompiled_in_the_second_step() -> None:
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    loss = torch.compile(nn.BCELoss(), backend=backend, fullgraph=True)
    assert noticed(lambda: loss(PROBABILITIES, TARGETS))
    loss(PROBABILITIES, TARGETS)
    assert len(compiled) == 1
