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
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from amptui.engine.float8 import NO_LAYER, NO_WEIGHT, Float8Form, Float8Linears
from amptui.recipe.request import FP8_RECIPES
from tests.engine.float8_forms import prepare_form

pytestmark = pytest.mark.usefixtures("usable_torchao")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def in_float8(model: nn.Module, form: Float8Form = "emulated", recipe: str | None = None) -> Float8Linears:
    """The layers of ``model``, which multiply in float8 from here on."""
    linears = Float8Linears(model, recipe)
    prepare_form(linears, form)
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
    """The scale of its tensor becomes 0; in bfloat16, and with a scale for each row, only its row is lost."""
    linear, inputs = nn.Linear(32, 16), torch.randn(4, 32)
    inputs[0, 0] = torch.inf

    def lost_rows() -> list[bool]:
        return list(~gradients(linear, inputs)[0].isfinite().all(1))

    assert lost_rows() == [True, False, False, False]
    linears = in_float8(linear)
    assert lost_rows() == [True] * 4
    linears.become(None)
    in_float8(linear, recipe="rowwise")
    assert lost_rows() == [True, False, False, False]


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


# ------------------------------------------------------------------------- what scripts do with them

FORMS: list[Float8Form] = ["emulated", "hardware"]


class Changing(nn.Module):
    """Changes the output of a layer without a bias in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu = nn.Linear(32, 32, bias=False), nn.ReLU(inplace=True)
        self.second = nn.Linear(32, 16, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.relu(self.first(inputs).mul_(2))).div_(4)
        return outputs


@pytest.mark.parametrize("recipe", FP8_RECIPES)
@pytest.mark.parametrize("form", FORMS)
def test_an_output_can_be_changed_in_place(form: Float8Form, recipe: str) -> None:
    model, inputs = Changing(), torch.randn(4, 32)
    exact = gradients(model, inputs)
    in_float8(model, form, recipe)
    for rounded, expected in zip(gradients(model, inputs), exact, strict=True):
        assert nn.functional.cosine_similarity(rounded.flatten(), expected.flatten(), 0) > 0.9


@pytest.mark.parametrize("recipe", FP8_RECIPES)
@pytest.mark.parametrize("form", FORMS)
def test_evaluation_in_inference_mode_gives_the_outputs_of_no_grad(form: Float8Form, recipe: str) -> None:
    model, inputs = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 16, bias=False)), torch.randn(4, 32)
    in_float8(model, form, recipe)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.inference_mode():
            inferred = model(inputs)
        with torch.no_grad():
            assert torch.equal(inferred, model(inputs))
    assert len(gradients(model, inputs)) == 4


@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_a_transposed_input_is_multiplied_as_its_copy(recipe: str) -> None:
    model, transposed = nn.Linear(32, 16), torch.randn(2, 32, 3, 4).permute(0, 3, 2, 1)
    in_float8(model, recipe=recipe)
    expected = gradients(model, transposed.contiguous())
    assert all(map(torch.equal, gradients(model, transposed), expected))


@pytest.mark.parametrize("recipe", FP8_RECIPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_penalty_has_the_gradients_of_bfloat16(form: Float8Form, recipe: str) -> None:
    """Of all the layers: what is differentiated twice is multiplied in bfloat16 in its backward passes."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 16))
    inputs = torch.randn(4, 32, requires_grad=True)

    def penalized() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.float().sum(), inputs, create_graph=True)
        slope.square().sum().backward(inputs=list(model.parameters()), create_graph=False)
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    exact = penalized()
    in_float8(model, form, recipe)
    for rounded, expected in zip(penalized(), exact, strict=True):
        assert nn.functional.cosine_similarity(rounded.flatten(), expected.flatten(), 0) > 0.98


def test_what_is_out_of_autocast_stays_in_float32() -> None:
    """A router or a loss that a script keeps there is kept there."""
    model, inputs = nn.Linear(32, 16), torch.randn(4, 32)
    expected = model(inputs)
    in_float8(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(model(inputs), expected)
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(model(inputs), expected)
    assert torch.equal(model(inputs), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # torch's own, in forward mode
def test_what_torchao_cannot_do_a_plain_layer_does() -> None:
    model, inputs = nn.Linear(32, 16), torch.randn(4, 32)

    def per_sample() -> Tensor:
        parameters = dict(model.named_parameters())

        def loss(weights: Any, row: Tensor) -> Tensor:
            output: Tensor = torch.func.functional_call(model, weights, (row[None],))
            return output.float().square().sum()

        slopes: dict[str, Tensor] = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, inputs)
        return slopes["weight"]

    def forward_mode() -> Tensor:
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(model(forward_ad.make_dual(inputs, inputs))).tangent
        assert isinstance(tangent, Tensor)
        return tangent

    def nested() -> Any:
        return model(torch.nested.nested_tensor([inputs[:1], inputs[1:]], layout=torch.jagged)).values()

    calls = (per_sample, forward_mode, nested)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = [call() for call in calls]
        in_float8(model)
        assert all(map(torch.equal, [call() for call in calls], expected))


def test_a_method_that_was_kept_in_float8_is_a_plain_layer_s_afterwards() -> None:
    model, inputs = nn.Linear(32, 16), torch.randn(4, 32)
    expected = gradients(model, inputs)[0]
    linears = in_float8(model)
    forward = model.forward
    linears.become(None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(forward(inputs), expected)


def test_layers_that_float8_would_change_or_cannot_multiply_are_left_out() -> None:
    model = nn.ModuleDict(
        {
            "taken": nn.Linear(16, 16),
            "own": nn.Linear(16, 16),
            "float64": nn.Linear(16, 16, dtype=torch.float64),
            "empty": nn.Linear(16, 16),
        }
    )
    model["empty"].weight = nn.Parameter(torch.empty(0, 16))
    settings: Any = {"of": "the script"}
    model["own"].config = settings
    linears = in_float8(model)
    assert list(linears.linears) == ["taken"]
    assert {layer.name: layer.why for layer in linears.left_out} == {
        "own": "attribute",
        "float64": "weight",
        "empty": "size",
    }
    linears.become(None)
    assert model["own"].config is settings


def test_a_model_of_float64_says_why_it_has_none() -> None:
    assert Float8Linears(nn.Sequential(nn.Linear(16, 16), nn.Conv2d(3, 3, 3)).double()).hindrance == NO_WEIGHT
    assert Float8Linears(nn.Sequential(nn.Linear(16, 10), nn.Linear(16, 16).double())).hindrance == NO_LAYER


def test_layers_of_models_that_are_refused_stay_plain() -> None:
    linears = in_float8(nn.Linear(16, 16))
    other = nn.Sequential(nn.Linear(16, 16), torchao_layer())
    assert linears.follow({"other": other})
    linears.become("emulated")
    assert (linears.form, type(other[0])) == (None, nn.Linear)


def torchao_layer() -> Any:
    """One that a script has made itself."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    return convert_to_float8_training(nn.Sequential(nn.Linear(16, 16)), config=config)


# ------------------------------------------------------------------------------- what becomes of them


def test_what_is_copied_or_saved_whole_in_float8_is_a_plain_layer() -> None:
    """Nothing would lead a copy out of float8 again, and a file would need torchao and amptui."""
    model, inputs = nn.Sequential(nn.Linear(32, 16)), torch.randn(4, 32)
    plain_outputs, attributes = model(inputs), vars(model[0]).keys()
    linears = in_float8(model)
    random_state, file = torch.get_rng_state(), io.BytesIO()
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


class Rectified(nn.Module):
    """Two layers; torch 2.9 does not compile an ``nn.Sequential`` as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs).relu())
        return outputs


@pytest.mark.ci
@pytest.mark.parametrize("recipe", FP8_RECIPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_backward_pass_is_float8_s_to_the_bit(form: Float8Form, recipe: str) -> None:
    """It is traced without a second derivative, for which its products would be bfloat16's."""
    torch._dynamo.reset()
    model, inputs = Rectified(), torch.randn(16, 32)
    plain = gradients(model, inputs)
    in_float8(model, form, recipe)
    eager = gradients(model, inputs, model.forward)
    model.compile(backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, gradients(model, inputs), eager))
    assert not any(map(torch.equal, eager, plain))


def test_compiled_code_of_each_form_is_made_once_and_whole() -> None:
    """Coming back to a form uses its own code again, and nothing breaks the graph."""
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model, inputs = Rectified(), torch.randn(4, 32)
    linears = Float8Linears(model)
    assert linears.prepare("emulated") == ""
    model.compile(backend=backend, fullgraph=True)
    compiled = []
    for form in (None, "emulated", None, "emulated", None):
        linears.become(form)
        assert torch.equal(gradients(model, inputs)[0], gradients(model, inputs, model.forward)[0])
        compiled.append(len(graphs))
    assert compiled == [1, 2, 2, 2, 2]
