"""The layers that multiply in float8: what they compute, what becomes of them, and what compiles them."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from amptui.engine.float8 import Float8Form, Float8Linears
from amptui.recipe.request import FP8_RECIPES
from tests.engine.compiled_runs import keeping

pytestmark = pytest.mark.usefixtures("usable_torchao")

BOTH_FORMS = pytest.mark.parametrize(
    ("form", "recipe"),
    [(form, recipe) for recipe in ("tensorwise", "rowwise") for form in ("emulated", "hardware")],
)
"""With the operator that a GPU has, which runs on a CPU too, and as torchao emulates it."""


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def in_float8(model: nn.Module, form: Float8Form = "emulated", recipe: str | None = None) -> Float8Linears:
    """The layers of ``model``, which multiply in float8 from here on."""
    linears = Float8Linears(model, recipe)
    trouble = linears.prepare(form)
    if trouble and form == "hardware":
        pytest.skip(f"this torch multiplies no float8 on a CPU: {trouble}")
    assert trouble == ""
    linears.become(form)
    return linears


def gradients(
    model: nn.Module, inputs: Tensor, call: Callable[[Tensor], Tensor] | None = None
) -> list[Tensor]:
    """Those of all parameters, after the outputs, for one step in bfloat16's autocast."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = (call or model)(inputs)
    outputs.float().square().sum().backward()
    return [outputs.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_alike(rounded: list[Tensor], exact: list[Tensor], cosine: float) -> None:
    for mine, theirs in zip(rounded, exact, strict=True):
        assert mine.shape == theirs.shape
        assert nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), 0) > cosine


# ----------------------------------------------------------------------------------- what they compute


def float8_product(a: Tensor, b: Tensor, dtypes: tuple[torch.dtype, torch.dtype]) -> Tensor:
    """The product of two matrices, each with one scale, as the hardware rounds its operands."""
    operands = []
    for matrix, dtype in zip((a, b), dtypes, strict=True):
        scale = (torch.finfo(dtype).max / matrix.abs().max().double()).float()
        operands.append((matrix.float() * scale).to(dtype).float() / scale)
    return operands[0] @ operands[1]


@pytest.mark.torch
def test_a_layer_computes_with_float8_numbers_and_bfloat16_results() -> None:
    inputs: Any = torch.randn(8, 32, requires_grad=True)
    linear: Any = nn.Linear(32, 16, bias=False)
    in_float8(linear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = linear(inputs)
    gradient = torch.randn(8, 16).bfloat16()
    outputs.backward(gradient)
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    rounded, weight = inputs.detach().bfloat16(), linear.weight.detach()
    assert torch.equal(outputs, float8_product(rounded, weight.t(), (e4m3, e4m3)).bfloat16())
    of_weight = float8_product(gradient.t(), rounded, (e5m2, e4m3)).bfloat16().float()
    assert torch.equal(linear.weight.grad, of_weight)
    of_input = float8_product(gradient, weight, (e5m2, e4m3)).bfloat16().float()
    assert torch.equal(inputs.grad, of_input)


@pytest.mark.torch
@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_emulated_products_are_those_of_torchs_float8_operator(recipe: str) -> None:
    """Five rows are no multiple of 16, as a last batch may be."""
    model, inputs, results = nn.Linear(32, 48), torch.randn(5, 32), []
    for form in ("emulated", "hardware"):
        linears = in_float8(model, form, recipe)
        results.append(gradients(model, inputs)[:2])
        linears.become(None)
    (emulated, emulated_gradient), (real, real_gradient) = results
    assert torch.allclose(emulated, real, rtol=2**-7, atol=1e-6)
    assert torch.allclose(emulated_gradient, real_gradient, rtol=2**-7, atol=1e-3)


class Tied(nn.Module):
    """Its head has the embedding's weight, and its inner layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Any:
        return self.head(self.inner(self.inner(self.embedding(words)).relu()))


class Changing(nn.Module):
    """Changes the output of a layer without a bias in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu = nn.Linear(32, 32, bias=False), nn.ReLU(inplace=True)
        self.second = nn.Linear(32, 16, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.relu(self.first(inputs).mul_(2))).div_(4)
        return outputs


@BOTH_FORMS
def test_layers_are_used_as_models_use_them(form: Float8Form, recipe: str) -> None:
    """Twice, with a shared weight, frozen, changed in place, computed again, in inference mode.

    With one row, and with none, as an expert may get: there is no maximum to scale by.
    """
    words, inputs = torch.randint(0, 32, (4, 5)), torch.randn(4, 32)
    frozen = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    frozen[0].requires_grad_(requires_grad=False)
    cases: list[tuple[nn.Module, Tensor]] = [(Tied(), words), (Changing(), inputs), (frozen, inputs)]
    for model, batch in cases:
        exact = gradients(model, batch)
        in_float8(model, form, recipe)
        rounded = gradients(model, batch)
        assert_alike(rounded, exact, 0.9)
        again = gradients(model, batch, partial(checkpoint, model, use_reentrant=False))
        assert all(map(torch.equal, again, rounded))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for mode in (torch.inference_mode, torch.no_grad):
                with mode():
                    assert torch.equal(model(batch), rounded[0])
    assert frozen[0].weight.grad is None
    transposed = torch.randn(2, 32, 3, 4).permute(0, 3, 2, 1)  # multiplied as its copy
    expected = gradients(frozen, transposed.contiguous())
    assert all(map(torch.equal, gradients(frozen, transposed), expected))
    assert gradients(frozen, inputs[:1])[0].isfinite().all()
    outputs, *grads = gradients(frozen, inputs[:0])
    assert (outputs.shape, outputs.dtype) == ((0, 32), torch.bfloat16)
    assert not any(gradient.any() for gradient in grads)


@pytest.mark.torch
def test_what_torchao_cannot_do_and_what_is_out_of_autocast_a_plain_layer_does() -> None:
    model, inputs = nn.Linear(32, 16), torch.randn(4, 32)

    def per_sample() -> Tensor:
        parameters = dict(model.named_parameters())

        def loss(weights: Any, row: Tensor) -> Tensor:
            output: Tensor = torch.func.functional_call(model, weights, (row[None],))
            return output.float().square().sum()

        slopes: dict[str, Tensor] = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, inputs)
        return slopes["weight"]

    def in_float32() -> Any:
        """A router or a loss that a script keeps there is kept there."""
        with torch.autocast("cpu", enabled=False):
            return model(inputs)

    calls = (per_sample, in_float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, plain = [call() for call in calls], model(inputs)
        in_float8(model)
        assert all(map(torch.equal, [call() for call in calls], expected))
        assert not torch.equal(model(inputs), plain)
    assert torch.equal(model(inputs), expected[-1])


# ------------------------------------------------------------------------------- what becomes of them


def test_what_is_copied_saved_or_kept_in_float8_is_a_plain_layer() -> None:
    """Nothing would lead a copy out of float8 again, and a file would need torchao and amptui."""
    model, inputs = nn.Sequential(nn.Linear(32, 16)), torch.randn(4, 32)
    plain_outputs, attributes = model(inputs), vars(model[0]).keys()
    linears = in_float8(model)
    random_state, file, forward = torch.get_rng_state(), io.BytesIO(), model[0].forward
    torch.save(model, file)
    file.seek(0)
    copies = [
        *(copy.deepcopy(model), copy.copy(model[0]), AveragedModel(model).module),
        *(pickle.loads(pickle.dumps(model, protocol)) for protocol in (2, 5)),  # noqa: S301 - our own
        torch.load(file, weights_only=False),
    ]
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear]):
        copies.append(torch.load(file, weights_only=True))
    assert torch.equal(torch.get_rng_state(), random_state)
    linears.become(None)
    assert torch.equal(forward(inputs), plain_outputs)
    for copied in copies:
        (layer,) = (module for module in copied.modules() if hasattr(module, "in_features"))
        assert type(layer) is nn.Linear
        assert vars(layer).keys() == attributes
        assert torch.equal(layer(inputs), plain_outputs)


# ----------------------------------------------------------------------------------------- compiled


class Rectified(nn.Module):
    """Two layers; torch 2.9 does not compile an ``nn.Sequential`` as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs).relu())
        return outputs


@pytest.mark.ci
@pytest.mark.torch
@pytest.mark.parametrize(("form", "recipe"), [("emulated", "rowwise"), ("hardware", "tensorwise")])
def test_a_compiled_backward_pass_is_float8_s_to_the_bit(form: Float8Form, recipe: str) -> None:
    torch._dynamo.reset()
    model, inputs = Rectified(), torch.randn(16, 32)
    plain = gradients(model, inputs)
    in_float8(model, form, recipe)
    eager = gradients(model, inputs, model.forward)
    model.compile(backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, gradients(model, inputs), eager))
    assert not any(map(torch.equal, eager, plain))


@pytest.mark.torch
def test_compiled_code_of_each_form_is_made_once_and_whole() -> None:
    """Coming back to a form uses its own code again, and nothing breaks the graph."""
    graphs: list[object] = []
    torch._dynamo.reset()
    model, inputs = Rectified(), torch.randn(4, 32)
    linears = in_float8(model)
    model.compile(backend=keeping(graphs), fullgraph=True)
    compiled = []
    for form in (None, "emulated", None, "emulated", None):
        linears.become(form)
        assert torch.equal(gradients(model, inputs)[0], gradients(model, inputs, model.forward)[0])
        compiled.append(len(graphs))
    assert compiled == [1, 2, 2, 2, 2]
