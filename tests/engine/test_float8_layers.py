"""The layers that multiply in float8: any batch, what is copied of them, and what compiles them."""

import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from amptui.engine.float8 import Float8Form, Float8Linears
from amptui.recipe.request import FP8_RECIPES

pytestmark = pytest.mark.usefixtures("usable_torchao")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def in_float8(model: nn.Module, form: Float8Form = "emulated", recipe: str | None = None) -> Float8Linears:
    """The layers of ``model``, which multiply in float8 from here on."""
    linears = Float8Linears(model, recipe)
    assert linears.prepare(form) == ""
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


# ------------------------------------------------------------------------------------ what they take


@pytest.mark.parametrize("form", ["emulated", "hardware"])
@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_a_batch_without_rows_has_no_outputs_and_no_influence(recipe: str, form: Float8Form) -> None:
    """An expert's without a token: there is no largest value by which it could be scaled."""
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16))
    in_float8(model, form, recipe)
    outputs, *grads = gradients(model, torch.randn(0, 32))
    assert (outputs.shape, outputs.dtype) == ((0, 16), torch.bfloat16)
    assert [gradient.abs().sum().item() for gradient in grads] == [0.0] * 4


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_a_batch_has_any_number_of_rows(recipe: str, rows: int) -> None:
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16))
    inputs = torch.randn(rows, 32)
    exact = gradients(model, inputs)
    in_float8(model, "emulated", recipe)
    for rounded, expected in zip(gradients(model, inputs), exact, strict=True):
        assert rounded.shape == expected.shape
        # Of 200 batches with one row the worst had 0.87.
        assert nn.functional.cosine_similarity(rounded.flatten(), expected.flatten(), 0) > 0.8


def test_a_single_infinite_number_makes_the_whole_product_nan() -> None:
    """The scale of its tensor becomes 0; in bfloat16 only its own row is lost."""
    linear, inputs = nn.Linear(32, 16), torch.randn(4, 32)
    inputs[0, 0] = torch.inf
    lost_rows = (~linear(inputs).isfinite()).any(1).tolist()
    in_float8(linear)
    assert lost_rows == [True, False, False, False]
    assert linear(inputs).isnan().all()


def test_a_layer_that_is_called_twice_and_shares_its_weight_gets_both_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(32, 16)
            self.inner = nn.Linear(16, 16)
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, words: Tensor) -> Any:
            return self.head(self.inner(self.inner(self.embedding(words)).relu()))

    model, words = Tied(), torch.randint(0, 32, (4, 5))
    exact = gradients(model, words)
    linears = in_float8(model)
    assert list(linears.linears) == ["inner", "head"]
    assert linears.record(step=1, precision="fp8-emulated").parameters == 32 * 16 + 16 * 16 + 16
    assert model.head.weight is model.embedding.weight
    for rounded, expected in zip(gradients(model, words), exact, strict=True):
        assert nn.functional.cosine_similarity(rounded.flatten(), expected.flatten(), 0) > 0.9


def test_frozen_weights_get_no_gradient_and_adapters_beside_them_do() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    model[0].requires_grad_(requires_grad=False)
    in_float8(model)
    assert len(gradients(model, torch.randn(4, 32))) == 3
    assert model[0].weight.grad is None


def test_activations_that_are_computed_again_give_the_same_gradients() -> None:
    model, inputs = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), torch.randn(4, 32)
    in_float8(model)
    again = gradients(model, inputs, lambda x: checkpoint(model, x, use_reentrant=False))
    assert all(map(torch.equal, gradients(model, inputs), again))


def test_without_gradients_the_outputs_are_the_same() -> None:
    model, inputs = nn.Sequential(nn.Linear(32, 16)), torch.randn(4, 32)
    in_float8(model)
    with torch.no_grad():
        outputs = model(inputs)
    assert torch.equal(outputs, model(inputs).detach())


@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_the_formats_are_those_of_all_hardware_where_torchao_would_choose_amds_own(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an MI300 its defaults are ``float8_e4m3fnuz``, with other ranges."""
    monkeypatch.setattr("torchao.float8.config.e4m3_dtype", torch.float8_e4m3fnuz)
    monkeypatch.setattr("torchao.float8.config.e5m2_dtype", torch.float8_e5m2fnuz)
    linear: Any = nn.Linear(32, 16)
    in_float8(linear, "emulated", recipe)
    casts = [value for name, value in vars(linear.config).items() if name.startswith("cast_config_")]
    assert len(casts) == 6
    assert {cast.target_dtype for cast in casts} <= {torch.float8_e4m3fn, torch.float8_e5m2}


# ------------------------------------------------------------------------------- what becomes of them


def test_what_is_copied_or_saved_whole_in_float8_is_a_plain_layer() -> None:
    """Nothing would lead a copy out of float8 again, and a file would need torchao and amptui."""
    model, inputs = nn.Sequential(nn.Linear(32, 16)), torch.randn(4, 32)
    plain_outputs, attributes = model(inputs), vars(model[0]).keys()
    linears = in_float8(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        *(copy.deepcopy(model), copy.copy(model[0]), AveragedModel(model).module),
        *(pickle.loads(pickle.dumps(model, protocol)) for protocol in (2, 5)),  # noqa: S301 - our own
        torch.load(file, weights_only=False),
    ]
    linears.become(None)
    for copied in copies:
        (layer,) = (module for module in copied.modules() if hasattr(module, "in_features"))
        assert type(layer) is nn.Linear
        assert vars(layer).keys() == attributes
        assert torch.equal(layer(inputs), plain_outputs)


@pytest.mark.parametrize("while_in_float8", [True, False])
def test_a_layer_that_somebody_has_parametrized_since_is_left_alone(while_in_float8: bool) -> None:
    model, inputs = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 16)), torch.randn(4, 32)
    linears = Float8Linears(model)
    assert linears.prepare("emulated") == ""
    linears.become("emulated" if while_in_float8 else None)
    parametrizations.weight_norm(model[0])
    parametrized = type(model[0])
    for form in ("emulated", None, "emulated", None):
        linears.become(form)
        assert gradients(model, inputs)[0].isfinite().all()
        assert type(model[0]) is parametrized
        assert (type(model[1]) is nn.Linear) == (form is None)


def test_a_thousand_toggles_leave_nothing_behind() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
    linears = in_float8(model)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    linears.become(None)
    before = objects()
    for _ in range(1000):
        linears.become("emulated")
        linears.become(None)
    assert objects() - before < 100


def test_compiled_code_of_each_form_is_made_once_and_whole() -> None:
    """Coming back to a form uses its own code again, and nothing breaks the graph."""
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model, inputs = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)), torch.randn(4, 32)
    linears = Float8Linears(model)
    assert linears.prepare("emulated") == ""
    eager = nn.Sequential(*model)
    model.compile(backend=backend, fullgraph=True)
    compiled = []
    for form in (None, "emulated", None, "emulated", None):
        linears.become(form)
        assert torch.equal(gradients(model, inputs)[0], gradients(eager, inputs)[0])
        compiled.append(len(graphs))
    assert compiled == [1, 2, 2, 2, 2]
