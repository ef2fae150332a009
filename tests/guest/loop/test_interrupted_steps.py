"""Steps that raise or lose their gradients, and optimizers that are let go of: the next step is whole."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.engine.readback import HostReadback
from amptui.records.run import Record
from tests.guest.loop.seen_steps import batches, loss_of, net, observed_loop, sgd, steps_of, watching


class _LostError(Exception):
    """What a script's own step raises."""


class _FailsOnce(torch.optim.SGD):
    """Raises in its first step, after the closure has run."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.05)
        self.fails = True

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if self.fails:
            self.fails = False
            raise _LostError
        super().step()
        return loss


class _Sam(torch.optim.Optimizer):
    """Moves by the optimizer that it wraps, and shares its groups."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__([p for group in base.param_groups for p in group["params"]], {})
        self.base, self.param_groups = base, base.param_groups

    def step(self, closure: Any = None) -> Any:
        self.base.step(closure)


def _losses(records: list[Record], optimizer: str = "") -> list[tuple[Any, str]]:
    return [(step.loss, step.loss_form) for step in steps_of(records, optimizer)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_a_step_that_raises_leaves_nothing_to_the_next_one() -> None:
    model = net()
    optimizer = _FailsOnce(model)
    truth: list[tuple[Any, str]] = []
    with watching(model, optimizer) as records:
        for number, batch in enumerate(batches()):

            def closure(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            with contextlib.suppress(_LostError):
                loss = optimizer.step(closure)
                truth.append((pytest.approx(loss.item()), ""))
            if number == 0:
                optimizer.zero_grad()
    assert _losses(records) == truth


def test_gradients_cleared_just_before_the_step_leave_it_without_a_pass() -> None:
    model = net()
    optimizer = sgd(model)
    with watching(model, optimizer) as records:
        for batch in batches():
            loss_of(model, batch).backward()
            optimizer.zero_grad()
            optimizer.step()
    assert set(_losses(records)) == {(None, "no backward")}


@pytest.mark.parametrize("raises", ["the first", "a wrapper"])
def test_after_a_step_that_raised_another_optimizer_or_the_one_inside_goes_on(raises: str) -> None:
    model = net()
    base = _FailsOnce(model)
    optimizer: torch.optim.Optimizer = base if raises == "the first" else _Sam(base)
    truth: list[tuple[Any, str]] = []
    with watching(model, base) as records:
        for batch in batches():
            loss = loss_of(model, batch)
            loss.backward()
            try:
                optimizer.step()
            except _LostError:
                optimizer = torch.optim.Adam(model.parameters()) if optimizer is base else base
            else:
                truth.append((pytest.approx(loss.item()), ""))
            optimizer.zero_grad()
    assert _losses(records) == truth
    assert len(truth) == 5


class BlockedDevice(HostReadback):
    """A device that waits for a collective of a rank that has ended: nothing arrives any more."""

    def drain(self) -> None:
        """What has arrived, which is nothing."""

    def flush(self) -> None:
        raise AssertionError("this would wait for ever")


def test_after_an_error_of_a_rank_its_device_is_not_awaited() -> None:
    model = nn.Linear(3, 1)
    optimizer, records = sgd(model), list[Any]()
    loop = observed_loop(model, optimizer, records.append)
    loop.first._sender.readback = loop.first.updates._readback = BlockedDevice(lambda: 0.0)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(AssertionError, match="for ever"):
        loop.first.close(waits=True)
    loop.close(waits=False)
    assert not loop.active
    assert records == []
