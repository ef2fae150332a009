"""Loops as they stand in published scripts: each number is what the script itself would print."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.compiled_runs import nothing_compiled
from tests.guest.loop.seen_steps import batches, loss_of, net, sgd, steps_of, update, watching


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    """Where anything is compiled, inputs are not looked at."""
    with nothing_compiled():
        yield


def test_the_samples_of_a_closure_that_is_called_again_count_once() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, lr=0.1)
    with watching(model, optimizer, counts_inputs=True) as records:
        for batch in batches():

            def closure(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
    steps = steps_of(records)
    assert {step.loss_form for step in steps} == {"first closure"}
    assert {(step.micro_batches, step.samples) for step in steps} == {(1, 4)}


class _Wrapper(nn.Module):
    """Sets what the wrapped module has on that one, as the modules of Fabric do."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if "wrapped" in self._modules and name != "wrapped" and hasattr(self.wrapped, name):
            setattr(self.wrapped, name, value)

    def forward(self, inputs: Tensor) -> Any:
        return self.wrapped(inputs)


def test_the_inputs_of_a_wrapper_are_counted_and_what_it_wraps_has_no_hooks() -> None:
    wrapped = net()
    model = _Wrapper(wrapped)
    optimizer = sgd(model)
    hooks = wrapped._forward_pre_hooks
    with watching(model, optimizer, counts_inputs=True) as records:
        for batch in batches():
            update(optimizer, loss_of(model, batch))
    assert [step.samples for step in steps_of(records)] == [4] * 6
    assert wrapped._forward_pre_hooks is hooks
    assert not hooks
    assert not model._forward_pre_hooks
