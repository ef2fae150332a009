"""The float8 window of models that do more than call each layer once: nothing of theirs changes by it."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from amptui.engine.float8 import Float8Form, Float8Linears
from amptui.engine.probes.float8_window import RANGES, Float8WindowProbe
from amptui.records.findings import Float8Operand, Float8Role

pytestmark = pytest.mark.usefixtures("usable_torchao")

aten = torch.ops.aten

ALL = {"input", "weight", "gradient"}


def bfloat16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@contextmanager
def in_float8(
    model: nn.Module, recipe: str | None = None, form: Float8Form = "emulated"
) -> Iterator[Float8Linears]:
    linears = Float8Linears(model, recipe)
    assert linears.prepare(form) == ""
    linears.become(form)
    try:
        yield linears
    finally:
        linears.become(None)


def layers(count: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(count) for part in (nn.Linear(32, 32), nn.Tanh())))


def operands(probe: Float8WindowProbe) -> dict[tuple[str, Float8Role], Float8Operand]:
    record = probe.record(probe.values().tolist(), step=1, precision="fp8-emulated", requested=True)
    return {(layer.name, operand.role): operand for layer in record.layers for operand in layer.operands}


def roles(probe: Float8WindowProbe, layer: str) -> set[Float8Role]:
    return {role for name, role in operands(probe) if name == layer}


def max_and_every_second_product() -> Any:
    """What to save of a checkpointed part: as published training code chooses it."""
    counts = {True: 0, False: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator == aten.mm.default:
            counts[context.is_recompute] += 1
        is_every_second = operator == aten.mm.default and counts[context.is_recompute] % 2
        saves = operator == aten.max.default or is_every_second
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@pytest.mark.parametrize(
    "saved",
    [partial(create_selective_checkpoint_contexts, [aten.max.default]), max_and_every_second_product],
    ids=["max", "max and products"],
)
def test_selective_checkpointing_gets_the_same_gradients(saved: Callable[[], Any]) -> None:
    model, batch = layers(), torch.randn(16, 32) * 50

    def gradients(probe: Any) -> list[Tensor]:
        model.zero_grad()
        with probe:
            with bfloat16():
                output = checkpoint(model, batch, use_reentrant=False, context_fn=saved)
            output.float().square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    with in_float8(model) as linears:
        expected = gradients(nullcontext())
        measured = gradients(probe := Float8WindowProbe(linears))
    assert len(expected) == 6
    assert all(map(torch.equal, expected, measured))
    assert probe.trouble is None
    assert roles(probe, "2") == ALL


def test_a_layer_whose_hook_returns_several_tensors_is_measured() -> None:
    model = nn.Sequential(nn.Linear(32, 48))
    model[0].register_forward_hook(lambda _layer, _inputs, output: output.chunk(3, -1))
    with in_float8(model) as linears, Float8WindowProbe(linears) as probe:
        with bfloat16():
            query, key, value = model(torch.randn(8, 32))
        (query * key + value).float().sum().backward()
    assert probe.trouble is None
    assert roles(probe, "0") == ALL


def pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copy_that_is_made_while_it_measures_is_plain_and_is_not_measured(
    copied: Callable[[nn.Module], Any],
) -> None:
    model = layers(1)
    with in_float8(model) as linears, Float8WindowProbe(linears) as probe, bfloat16():
        other = copied(model)
        other(torch.randn(4, 32))
        assert not probe.layers_called
        model(torch.randn(8, 32))
    other(torch.randn(4, 32))
    assert type(other[0]) is nn.Linear
    assert not other[0]._forward_hooks
    assert operands(probe)["0", "input"].elements == 8 * 32


def test_what_cannot_be_measured_reaches_neither_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Tensor:
        raise AttributeError("of another torchao")

    monkeypatch.setattr("amptui.engine.probes.float8_window.operand_numbers", broken)
    model = layers(1)
    with in_float8(model) as linears, Float8WindowProbe(linears) as probe:
        with bfloat16():
            output = model(torch.randn(8, 32))
        output.float().sum().backward()
    assert "of another torchao" in str(probe.trouble)
    assert not probe.values().numel()


@pytest.mark.parametrize("call", ["reentrant checkpoint", "no grad first"])
def test_the_gradient_is_that_of_the_first_call_that_has_one(call: str) -> None:
    model, batch = layers(2), torch.randn(8, 32, requires_grad=True)
    with in_float8(model) as linears, Float8WindowProbe(linears) as probe:
        with bfloat16():
            if call == "no grad first":
                with torch.no_grad():
                    model(batch)
                output = model(batch)
                model(batch)  # and only of that one
            else:
                output = checkpoint(model, batch, use_reentrant=True)
        output.float().square().mean().backward()
    assert roles(probe, "0") == roles(probe, "2") == ALL


class ByForward(nn.Module):
    """Calls the ``forward`` of its layer, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, batch: Tensor) -> Tensor:
        return self.layer.forward(batch)


def test_a_call_of_forward_itself_is_measured() -> None:
    model = ByForward()
    with in_float8(model) as linears, Float8WindowProbe(linears) as probe, bfloat16():
        model(torch.randn(8, 32)).float().sum().backward()
    assert roles(probe, "layer") == ALL


@pytest.mark.parametrize("fails", [True, False])
def test_whether_a_layer_multiplied_is_known_even_if_it_fails(fails: bool) -> None:
    linear = nn.Linear(32, 32)
    failure = pytest.raises((RuntimeError, AssertionError)) if fails else nullcontext()
    with (
        in_float8(nn.Sequential(linear)) as linears,
        Float8WindowProbe(linears) as probe,
        bfloat16(),
        failure,
    ):
        linear(torch.randn(8, 16 if fails else 32))
    assert probe.layers_multiplied
    with in_float8(nn.Sequential(linear)) as linears, Float8WindowProbe(linears) as probe, bfloat16():
        linear(torch.randn(0, 32))
    assert (probe.layers_called, probe.layers_multiplied) == (True, False)


def test_afterwards_the_layers_class_is_as_before() -> None:
    model = layers(1)
    with in_float8(model) as linears:
        before = dict(vars(type(model[0])))
        with Float8WindowProbe(linears):
            assert dict(vars(type(model[0]))) != before
        assert dict(vars(type(model[0]))) == before


# ----------------------------------------------------------------------- both casts of an operand


def cast_error(operand: Tensor, dim: int | None, by: int, *, is_power: bool = True) -> float:
    """The median error, by rows (1) or columns (0), of a cast with a scale along ``dim``; E4M3."""
    exact = operand.double()
    peaks = exact.abs().amax() if dim is None else exact.abs().amax(dim, keepdim=True)
    scale = RANGES["e4m3"].largest / peaks
    scale = torch.exp2(torch.floor(torch.log2(scale))) if is_power else scale
    rounded = (exact * scale).float().to(torch.float8_e4m3fn).double() / scale
    return float(((rounded - exact).norm(dim=by) / exact.norm(dim=by)).median())


def uneven(rows: int, columns: int) -> Tensor:
    """A few rows and one column far above the rest."""
    values = torch.randn(rows, columns)
    values[:3] *= 1e3
    values[:, 5] *= 3e4
    return values


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp"])
def test_of_two_casts_of_an_operand_the_worse_one_counts(recipe: str) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(32, 48, bias=False)
    model = nn.Sequential(linear)
    batch, direction = uneven(21, 32).bfloat16(), uneven(21, 48).bfloat16()
    with torch.no_grad():
        linear.weight.copy_(uneven(48, 32))
    with in_float8(model, recipe) as linears, Float8WindowProbe(linears) as probe:
        with bfloat16():
            output = model(batch)
        output.backward(direction)
    weight = linear.weight.detach().t()
    # Scaled along rows, whose products are the output and the input's gradient, then along columns.
    casts: dict[Float8Role, tuple[Tensor, list[int | None]]] = {
        "input": (batch, [1, 0] if recipe == "rowwise" else [1]),
        "weight": (weight, [0, 1] if recipe == "rowwise" else [0, None]),
        "gradient": (direction, [1, 0] if recipe == "rowwise" else [1]),
    }
    for (_, role), operand in operands(probe).items():
        tensor, dims = casts[role]
        by_channel = [cast_error(tensor, dim, by=0) for dim in dims]
        by_row = [cast_error(tensor, dim, by=1) for dim in dims]
        judged = by_channel if role == "gradient" else list(map(max, by_channel, by_row))
        worse = judged.index(max(judged))
        assert operand.judged_error == pytest.approx(judged[worse], rel=1e-4)
        assert operand.channel_error == pytest.approx(by_channel[worse], rel=1e-4)
        assert operand.row_error == pytest.approx(by_row[worse], rel=1e-4)


def test_a_token_far_above_the_others_loses_them_though_no_channel_shows_it() -> None:
    torch.manual_seed(0)
    linear, batch = nn.Linear(64, 64), torch.randn(128, 64)
    batch[0] *= 1e8
    with (
        in_float8(model := nn.Sequential(linear), "tensorwise") as linears,
        Float8WindowProbe(linears) as probe,
    ):
        with bfloat16():
            output = model(batch)
        output[1:].float().square().mean().backward()  # that token is masked
    operand = operands(probe)["0", "input"]
    rows = cast_error(batch.bfloat16(), None, by=1, is_power=False)
    assert operand.channel_error < 0.1
    assert operand.row_error == pytest.approx(rows, rel=1e-3)
    assert operand.judged_error == operand.row_error
    assert operand.judged_error > 0.9
    assert linear.weight.grad is not None
    assert not linear.weight.grad.any()  # float8 has lost all of it
