"""One batch in FP32 and FP8: against a computation of its own, and no bit of the training changed."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui.probes.xray import take_xray
from tests.probes.test_xray import first_batch, state, trained
from tests.tiny import Tiny

pytestmark = pytest.mark.usefixtures("usable_torchao")


class TiedModel(nn.Module):
    """Reads pixels as tokens; the output projection has the embedding's weight, and a layer is too narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(256, 16), nn.Linear(16, 16)
        self.dropout, self.norm = nn.Dropout(0.1), nn.LayerNorm(16)
        self.head, self.narrow = nn.Linear(16, 256, bias=False), nn.Linear(256, 4)
        self.head.weight = self.embedding.weight

    def forward(self, images: Tensor) -> Any:
        tokens = images.flatten(1).mul(255).long()
        hidden = self.dropout(self.norm(self.inner(self.embedding(tokens))))
        return self.narrow(self.head(hidden).mean(1))


class Tied(Tiny):
    """Its embedding's gradient is partly that of a product in float8."""

    def build_model(self) -> nn.Module:
        return TiedModel()


class Cast(nn.Module):
    """torchao's layer as it computes on a GPU, where autocast hands it bfloat16."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            out: Tensor = self.inner(inputs.to(torch.bfloat16))
        return out


def in_float8(model: nn.Module) -> nn.Module:
    """``model``, of which torchao converts the layers that float8 can multiply."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(pad_inner_dim=True)

    def takes_part(module: nn.Module, _name: str) -> bool:
        return isinstance(module, nn.Linear) and not (module.in_features % 16 or module.out_features % 16)

    convert_to_float8_training(model, config=config, module_filter_fn=takes_part)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Float8Linear":
                setattr(parent, name, Cast(child))
    return model


def gradients_of(
    model: nn.Module, batch: Any, context: AbstractContextManager[object], before: Tensor
) -> tuple[float, list[Tensor]]:
    """Loss and gradients of a copy of ``model``, its random numbers drawn from the state ``before``."""
    torch.set_rng_state(before)
    inputs, targets = batch
    with context:
        loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.item(), [
        parameter.grad.flatten().double() for parameter in model.parameters() if parameter.grad is not None
    ]


@pytest.mark.torch
def test_all_figures_are_those_of_two_passes_of_ones_own() -> None:
    prepared = trained(Tied(), precision="fp8")
    batch = first_batch(prepared)
    before = torch.get_rng_state()
    record = take_xray(prepared, [batch], step=6, precision="fp8", loss_scale=None)
    prepared.precisions["fp32"].enter()
    model = prepared.model
    model.zero_grad()
    full_loss, full = gradients_of(copy.deepcopy(model), batch, nullcontext(), before)
    bfloat16 = torch.autocast("cpu", dtype=torch.bfloat16)
    fp8_loss, fp8 = gradients_of(in_float8(copy.deepcopy(model)), batch, bfloat16, before)
    assert (record.loss_fp32, record.loss_amp) == (full_loss, fp8_loss)
    names = [name.rpartition(".")[0] for name, _ in model.named_parameters()]
    for layer in record.layers:
        places = [place for place, name in enumerate(names) if name == layer.name]
        one, other = (torch.cat([gradients[place] for place in places]) for gradients in (fp8, full))
        cosine, error = one @ other / (one.norm() * other.norm()), (one - other).norm() / other.norm()
        assert layer.cosine == pytest.approx(cosine.item(), abs=1e-6)
        assert layer.relative_error == pytest.approx(error.item(), rel=1e-4)


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
def test_an_x_ray_in_fp8_changes_no_bit(precision: str) -> None:
    """Whichever precision runs: the layers stay the objects, and of the class, that they were."""
    prepared = trained(Tied(), precision="fp8")
    prepared.precisions[precision].enter()
    batch = first_batch(prepared)

    def everything() -> tuple[Any, ...]:
        modules = list(prepared.model.modules())
        return state(prepared, batch), modules, [type(module) for module in modules]

    before = everything()
    attributes = [dict(vars(module)) for module in prepared.model.modules()]
    record = take_xray(prepared, [batch], step=6, precision="fp8", loss_scale=None)
    assert everything() == before
    assert [vars(module).keys() for module in prepared.model.modules()] == [one.keys() for one in attributes]
    assert record.random
