"""Samples of a script that says nothing of its batches: counted from its model's input, or absent."""

import copy
import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops.compiled_runs import nothing_compiled
from tests.loops.script.seen_steps import batches, loss_of, net, sgd, steps_of, update, watching


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    """Where anything is compiled, inputs are not looked at."""
    torch.manual_seed(0)
    with nothing_compiled():
        yield


class Recurrent(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 3, batch_first=batch_first)
        self.head = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(inputs)[0])
        return outputs


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor, other: Tensor, scale: float = 1.0) -> Tensor:
        outputs: Tensor = self.layer(inputs) * scale + other.mean()
        return outputs


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The first one: inputs are counted from the next one on."""
    torch.stack([p.square().sum() for p in model.parameters()]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def samples_of(model: nn.Module, batches: Sequence[tuple[Any, ...]], *, per_step: int = 1) -> list[int]:
    optimizer = sgd(model)
    with watching(model, optimizer) as records:
        make_step(model, optimizer)
        for index, inputs in enumerate(batches, 1):
            model(*inputs).square().mean().backward()
            if index % per_step == 0:
                optimizer.step()
                optimizer.zero_grad()
    return [step.samples for step in steps_of(records)][1:]


def rows(*sizes: int) -> list[tuple[Tensor]]:
    return [(torch.randn(size, 4),) for size in sizes]


TIME_FIRST = [(torch.zeros(5, 7, 4),)] * 2


@pytest.mark.parametrize(
    ("model", "batches", "samples"),
    [
        (net(), rows(8, 8, 8, 3), [8, 8, 8, 3]),
        (net(), rows(8, 3, 8, 3), [8, 3, 8, 3]),
        (net(), rows(8, 9, 8, 8), [8, 0, 0, 0]),
        (net(), rows(1, 2, 3, 4), [1, 0, 0, 0]),
        (Recurrent(batch_first=True), TIME_FIRST, [5, 5]),
        (Recurrent(batch_first=False), TIME_FIRST, [0, 0]),
        (TwoInputs(), [(torch.zeros(5, 4), torch.zeros(rows, 1)) for rows in (5, 9)], [5, 0]),
        (TwoInputs(), [(torch.zeros(5, 4), torch.tensor(2.0))], [5]),
        (nn.Linear(4, 1), [(torch.zeros(4),)] * 2, [0, 0]),
        (nn.Embedding(4, 2), [(torch.tensor([1, 2, 3]),)] * 2, [3, 3]),
    ],
    ids=[
        *("last smaller", "epochs", "larger", "growing", "batch first", "time first"),
        *("inputs that disagree", "a number beside", "features of one sample", "indices"),
    ],
)
def test_the_first_dimension_is_the_batch_as_long_as_it_does_not_grow(
    model: nn.Module, batches: list[tuple[Any, ...]], samples: list[int]
) -> None:
    assert samples_of(model, batches) == samples


def test_samples_of_accumulated_batches_add_up() -> None:
    assert samples_of(net(), rows(8, 8, 8, 3), per_step=2) == [16, 11]


@pytest.mark.parametrize(
    ("calls", "same_input", "in_one_pass", "samples"),
    [((2, 1), False, True, [0, 0, 6]), ((2, 2), True, False, [0, 6, 6])],
    ids=["two calls in a pass", "two losses of a batch"],
)
def test_a_batch_is_counted_once_and_calls_of_one_pass_are_not(
    calls: tuple[int, int], same_input: bool, in_one_pass: bool, samples: list[int]
) -> None:
    model = net()
    optimizer, batch = sgd(model), torch.randn(6, 4)
    with watching(model, optimizer) as records:
        make_step(model, optimizer)
        for count in calls:
            inputs = [batch if same_input else torch.randn(6, 4) for _ in range(count)]
            if in_one_pass:
                torch.stack([model(each).square().mean() for each in inputs]).sum().backward()
            else:
                for each in inputs:
                    model(each).square().mean().backward()
            optimizer.step()
    assert [step.samples for step in steps_of(records)] == samples


HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


@pytest.mark.torch
def test_no_copy_and_no_file_of_a_model_knows_of_it_and_its_tables_are_as_before() -> None:
    model, fresh = net(), net()
    optimizer = sgd(model)
    with watching(model, optimizer):
        make_step(model, optimizer)
        called = list[str]()
        first = model.register_forward_pre_hook(lambda *_: called.append("second"))
        second = model.register_forward_pre_hook(lambda *_: called.append("first"), prepend=True)
        model(torch.randn(6, 4)).square().mean().backward()
        assert called == ["first", "second"]
        first.remove()
        second.remove()
        assert model._forward_pre_hooks  # ours
        assert not copy.copy(model._forward_pre_hooks)
        file = io.BytesIO()
        torch.save(model, file)
        pickled = pickle.dumps(model.requires_grad_())
        assert b"amptui" not in file.getvalue() + pickled
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        others = [copy.deepcopy(model), saved, pickle.loads(pickled)]  # noqa: S301 - our own
    for other in (model, *others):
        assert vars(other).keys() == vars(fresh).keys()
        tables = [getattr(other, name) for name in HOOKS]
        assert tables == [getattr(fresh, name) for name in HOOKS] == [{}, {}]
        assert [type(table) for table in tables] == [type(getattr(fresh, name)) for name in HOOKS]


@pytest.mark.torch
def test_who_has_hooks_is_left_alone() -> None:
    model = net()
    handle = model.register_forward_pre_hook(lambda *_: None)
    table, optimizer = model._forward_pre_hooks, sgd(model)
    with watching(model, optimizer):
        make_step(model, optimizer)
        assert model._forward_pre_hooks is table
        assert len(table) == 1
    handle.remove()
    assert not model._forward_pre_hooks


def test_the_samples_of_a_closure_that_is_called_again_count_once() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, lr=0.1)
    with watching(model, optimizer) as records:
        for batch in batches():

            def closure(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
    steps = steps_of(records)
    assert "first closure" in {step.loss_form for step in steps}
    assert [(step.micro_batches, step.samples) for step in steps] == [(1, 0), *[(1, 4)] * 5]


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
    with watching(model, optimizer) as records:
        for batch in batches():
            update(optimizer, loss_of(model, batch))
    assert [step.samples for step in steps_of(records)] == [0, *[4] * 5]
    assert wrapped._forward_pre_hooks is hooks
    assert not hooks
    assert not model._forward_pre_hooks
