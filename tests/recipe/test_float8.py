"""FP8: which layers take part, what they compute, that leaving it leaves no trace, and what asks for it."""

import copy
import importlib.util
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from amptui.base.errors import UsageError
from amptui.recipe.float8 import NO_LAYER, Float8Linears
from amptui.records.findings import Float8Layers, FlopsCounted
from amptui.records.run import Note, PrecisionChanged
from tests.loops.compiled_runs import keeping
from tests.tiny import Tiny, log_of, losses, prepare

needs_torchao = pytest.mark.usefixtures("usable_torchao")


class Kinds(nn.Module):
    """One layer of each kind that float8 takes or leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.taken = nn.Linear(16, 32, bias=False)
        self.taken.weight = self.embedding.weight
        self.other = nn.Linear(32, 16)
        self.narrow = nn.Linear(16, 10)
        self.convolution = nn.Conv2d(16, 16, 3)
        self.attention = nn.MultiheadAttention(16, 2)
        self.patched = nn.Linear(16, 16)
        self.patched.forward = torch.relu  # type: ignore[method-assign]
        self.alias = self.taken
        self.float64 = nn.Linear(16, 16, dtype=torch.float64)
        self.empty = nn.Linear(16, 16)
        self.empty.weight = nn.Parameter(torch.empty(0, 16))


def test_linear_layers_of_the_right_sizes_take_part_and_others_say_why_not() -> None:
    linears = Float8Linears(Kinds())
    assert list(linears.linears) == ["taken", "other"]
    assert {layer.name: layer.why for layer in linears.left_out} == {
        "narrow": "size",
        "convolution": "kind",
        "attention": "kind",
        "attention.out_proj": "subclass",
        "patched": "forward",
        "float64": "weight",
        "empty": "size",
    }
    record = linears.record(step=3, precision="fp8")
    assert (record.layers, record.left_out_count) == (2, 7)
    assert record.parameters == 32 * 16 + 32 * 16 + 16


@needs_torchao
def test_fp8_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=NO_LAYER):
        prepare(Tiny(width=12), precision="fp8")
    assert prepare(Tiny(width=12)).unsupported["fp8"] == NO_LAYER
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "torchao" else find_spec(name, *rest)
    )
    with pytest.raises(UsageError, match=r"pip install 'amptui\[fp8\]'"):
        prepare(Tiny(), precision="fp8")


# ----------------------------------------------------------------------------------- the layers


def in_float8(model: nn.Module) -> Float8Linears:
    """The layers of ``model``, which multiply in float8 from here on."""
    linears = Float8Linears(model)
    assert linears.prepare() == ""
    linears.become(on=True)
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


@needs_torchao
def test_layers_stay_the_same_objects_and_leave_float8_without_a_trace() -> None:
    model, inputs = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 16)), torch.randn(4, 32)
    modules, parameters = list(model.modules()), list(map(id, model.parameters()))
    attributes = [set(vars(module)) for module in modules]
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    before = gradients(model, inputs)
    linears = in_float8(model)
    assert not any(map(torch.equal, gradients(model, inputs), before))
    assert (list(model.modules()), list(map(id, model.parameters()))) == (modules, parameters)
    forward = model[1].forward
    linears.become(on=False)
    assert all(map(torch.equal, gradients(model, inputs), before))
    assert torch.equal(forward(torch.ones(1, 48)), model[1](torch.ones(1, 48)))
    assert calls == [1, 1, 1]
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]
    assert [set(vars(module)) for module in modules] == attributes


class Used(nn.Module):
    """A weight shared with an embedding, a layer called twice, one frozen, outputs changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(32, 16), nn.Linear(16, 16, bias=False)
        self.frozen, self.head = nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Any:
        outputs = self.inner(self.inner(self.embedding(words)).mul_(2).relu_()).mul_(2)
        return self.head(self.frozen(outputs.transpose(0, 1))).mul_(2)


@needs_torchao
def test_layers_are_used_as_models_use_them() -> None:
    """Computed again, in inference mode, and of an expert that gets no token, too."""
    torch.manual_seed(0)
    model, words = Used(), torch.randint(0, 32, (4, 5))
    exact = gradients(model, words)
    in_float8(model)
    rounded = gradients(model, words)
    for mine, theirs in zip(rounded, exact, strict=True):
        assert nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), 0) > 0.9
    assert model.frozen.weight.grad is None
    again = gradients(model, words, partial(checkpoint, model, use_reentrant=False))
    assert all(map(torch.equal, again, rounded))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert torch.equal(model(words), rounded[0])
    outputs, *grads = gradients(model, words[:0])
    assert (outputs.numel(), outputs.dtype) == (0, torch.bfloat16)
    assert not any(gradient.any() for gradient in grads)


@needs_torchao
@pytest.mark.torch
def test_what_torchao_cannot_do_and_what_is_out_of_autocast_a_plain_layer_does() -> None:
    model, inputs = nn.Linear(32, 16), torch.randn(4, 32)

    def per_sample() -> Tensor:
        def loss(weights: Any, row: Tensor) -> Any:
            return torch.func.functional_call(model, weights, (row[None],)).float().square().sum()

        parameters = dict(model.named_parameters())
        slopes: dict[str, Tensor] = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, inputs)
        return slopes["weight"]

    def in_float32() -> Any:
        """A router or a loss that a script keeps there is kept there."""
        with torch.autocast("cpu", enabled=False):
            return model(inputs)

    calls = (per_sample, in_float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = [call() for call in calls]
        in_float8(model)
        assert all(map(torch.equal, [call() for call in calls], expected))


@needs_torchao
def test_what_is_copied_or_saved_in_float8_is_a_plain_layer() -> None:
    """Nothing would lead a copy out of float8 again, and a file would need torchao and amptui."""
    model, inputs = nn.Sequential(nn.Linear(32, 16)), torch.randn(4, 32)
    plain_outputs, attributes = model(inputs), set(vars(model[0]))
    in_float8(model)
    random_state = torch.get_rng_state()
    copies = [copy.deepcopy(model), *(pickle.loads(pickle.dumps(model, number)) for number in (2, 5))]  # noqa: S301 - our own
    assert torch.equal(torch.get_rng_state(), random_state)
    for copied in copies:
        assert type(copied[0]) is nn.Linear
        assert set(vars(copied[0])) == attributes
        assert torch.equal(copied(inputs), plain_outputs)


class Rectified(nn.Module):
    """Two layers; torch 2.9 does not compile an ``nn.Sequential`` as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs).relu())
        return outputs


@needs_torchao
@pytest.mark.ci
@pytest.mark.torch
def test_a_compiled_backward_pass_is_float8_s_to_the_bit() -> None:
    torch._dynamo.reset()
    model, inputs = Rectified(), torch.randn(16, 32)
    in_float8(model)
    eager = gradients(model, inputs, model.forward)
    model.compile(backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, gradients(model, inputs), eager))


@needs_torchao
@pytest.mark.torch
def test_compiled_code_with_float8_and_without_is_made_once_and_whole() -> None:
    """Coming back to one uses its own code again, and nothing breaks the graph."""
    graphs: list[object] = []
    torch._dynamo.reset()
    model, inputs = Rectified(), torch.randn(4, 32)
    linears = in_float8(model)
    model.compile(backend=keeping(graphs), fullgraph=True)
    compiled = []
    for on in (False, True, False, True, False):
        linears.become(on=on)
        assert torch.equal(gradients(model, inputs)[0], gradients(model, inputs, model.forward)[0])
        compiled.append(len(graphs))
    assert compiled == [1, 2, 2, 2, 2]


# --------------------------------------------------------------------------------------- the runs


@needs_torchao
@pytest.mark.torch
def test_a_run_enters_float8_says_what_takes_part_and_comes_back_to_the_very_modules() -> None:
    prepared = prepare(Tiny())
    modules = [(type(module), id(module)) for module in prepared.model.modules()]
    log = log_of(prepared, at={3: "fp8", 6: "bf16", 8: "fp8", 10: "fp32"})
    changes = [(change.step, change.current) for change in log.of(PrecisionChanged)]
    assert changes == [(4, "fp8"), (7, "bf16"), (9, "fp8"), (11, "fp32")]
    (layers,) = log.of(Float8Layers)
    assert (layers.step, layers.names) == (4, ("1",))
    assert [layer.name for layer in layers.left_out] == ["4"]
    assert [(type(module), id(module)) for module in prepared.model.modules()] == modules
    # Forward, and backward for the weight and the input; torchao computes that even for the first layer.
    full, float8, bf16 = log.of(FlopsCounted)
    assert full.uncounted == float8.uncounted == bf16.uncounted == ()
    assert float8.flops_by_type["float8"] == 3 * (2 * 8 * 16 * 16)
    assert float8.flops == bf16.flops + 2 * 8 * 16 * 16


class Broken(Tiny):
    """Fails in its first step with a layer in float8."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if model.training and any(type(module).__name__ == "Float8Linear" for module in model.modules()):
            raise RuntimeError("no float8")
        return super().loss(model, batch)


class Bypassing(Tiny):
    """Uses the weights of its layers and calls none."""

    def loss(self, model: Any, batch: Any) -> Any:
        inputs, targets = batch
        hidden = nn.functional.linear(inputs.flatten(1), model[1].weight).relu()
        return nn.functional.cross_entropy(model[4](hidden), targets)


@needs_torchao
@pytest.mark.parametrize(("experiment", "words"), [(Broken, "no float8"), (Bypassing, "no float8 layer ran")])
def test_a_first_float8_step_that_fails_is_undone_and_one_without_float8_is_told(
    experiment: type[Tiny], words: str
) -> None:
    log = log_of(prepare(experiment(), steps=10), at={3: "fp8"})
    (note,) = [note for note in log.of(Note) if note.severity in ("warning", "error")]
    assert words in note.text
    if experiment is Broken:
        assert losses(log) == losses(log_of(prepare(Tiny(), steps=10)))
