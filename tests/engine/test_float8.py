"""FP8 in runs: which layers take part, that leaving it leaves no trace, and what asks for it."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.base.errors import UsageError
from amptui.engine.float8 import NO_LAYER, NO_SPEED, Float8Linears, supported_float8
from amptui.recipe.request import FP8_RECIPES
from amptui.records.answers import RequestRefused
from amptui.records.control import ComparisonRequest, Control, PrecisionRequest
from amptui.records.findings import Float8Layers, FlopsCounted, PrecisionsCompared
from amptui.records.run import Note, PrecisionChanged
from amptui.records.steps import StepRecord
from tests.tiny import Drawing, Log, Tiny, log_of, losses, prepare, resume, switching, train

needs_torchao = pytest.mark.usefixtures("usable_torchao")


class Kinds(nn.Module):
    """One layer of each kind that float8 takes or leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.taken = nn.Linear(16, 32)
        self.bare = nn.Linear(32, 16, bias=False)
        self.narrow = nn.Linear(16, 10)
        self.convolution = nn.Conv2d(16, 16, 3)
        self.attention = nn.MultiheadAttention(16, 2)
        self.patched = nn.Linear(16, 16)
        self.patched.forward = torch.relu  # type: ignore[method-assign]
        self.norm = nn.LayerNorm(16)
        self.alias = self.taken
        self.float64 = nn.Linear(16, 16, dtype=torch.float64)
        self.empty = nn.Linear(16, 16)
        self.empty.weight = nn.Parameter(torch.empty(0, 16))


def test_linear_layers_of_the_right_sizes_take_part_and_others_say_why_not() -> None:
    linears = Float8Linears(Kinds())
    assert list(linears.linears) == ["taken", "bare"]
    assert {layer.name: layer.why for layer in linears.left_out} == {
        "narrow": "size",
        "convolution": "kind",
        "attention": "kind",
        "attention.out_proj": "subclass",
        "patched": "forward",
        "float64": "weight",
        "empty": "size",
    }
    record = linears.record(step=3, precision="fp8-emulated")
    assert (record.layers, record.left_out_count) == (2, 7)
    assert record.parameters == 16 * 32 + 32 + 32 * 16


@needs_torchao
def test_a_shared_weight_is_counted_once_and_a_model_without_such_a_layer_is_refused() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(32, 16), "head": nn.Linear(16, 32, bias=False)})
    model["head"].weight = model["embedding"].weight
    linears = Float8Linears(model)
    assert (list(linears.linears), linears.record(step=1, precision="fp8").parameters) == (["head"], 32 * 16)
    with pytest.raises(UsageError, match=NO_LAYER):
        prepare(Tiny(width=12), precision="fp8")
    assert prepare(Tiny(width=12)).unsupported["fp8-emulated"] == NO_LAYER


def test_a_device_without_float8_products_emulates_them() -> None:
    assert supported_float8("fp8", {"fp8": "no hardware"}) == "fp8-emulated"
    assert supported_float8("fp8", {}) == "fp8"
    assert supported_float8("fp8", {"fp8": "no", "fp8-emulated": "no"}) == "fp8"
    assert supported_float8("bf16", {"fp8": "no hardware"}) == "bf16"


def test_without_torchao_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "torchao" else find_spec(name, *rest)
    )
    with pytest.raises(UsageError, match=r"pip install 'amptui\[fp8\]'"):
        prepare(Tiny(), precision="fp8")


# ---------------------------------------------------------------------------------- no trace of it


@needs_torchao
@pytest.mark.parametrize("recipe", FP8_RECIPES)
def test_layers_stay_the_same_objects_and_leave_float8_without_a_trace(recipe: str) -> None:
    model = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 16))
    modules, parameters = list(model.modules()), list(model.named_parameters())
    attributes = [dict(vars(module)) for module in modules]
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    linears, inputs = Float8Linears(model, recipe), torch.randn(4, 32)
    assert linears.prepare("emulated") == ""

    def outputs() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result: Tensor = model(inputs)
        result.float().square().mean().backward()
        return result.detach()

    before = outputs()
    with linears.kept():
        linears.become("emulated")
        assert not torch.equal(outputs(), before)
        assert list(model.modules()) == modules
        assert [(name, id(p)) for name, p in model.named_parameters()] == [(n, id(p)) for n, p in parameters]
        assert model.state_dict().keys() == {name for name, _ in parameters}
        handle = model[1].register_forward_hook(lambda *_: calls.append(2))
    assert torch.equal(outputs(), before)
    assert calls == [1, 1, 1, 2]
    handle.remove()
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]
    assert [vars(module).keys() for module in modules] == [old.keys() for old in attributes]


# --------------------------------------------------------------------------------------- the runs


@needs_torchao
@pytest.mark.torch
def test_a_run_enters_float8_says_what_takes_part_and_comes_back_to_the_very_modules() -> None:
    prepared = prepare(Tiny())
    modules = [(type(module), id(module)) for module in prepared.model.modules()]
    log = log_of(prepared, at={3: "fp8-emulated", 6: "bf16", 8: "fp8-emulated", 10: "fp32"})
    changes = [(change.step, change.current) for change in log.of(PrecisionChanged)]
    assert changes == [(4, "fp8-emulated"), (7, "bf16"), (9, "fp8-emulated"), (11, "fp32")]
    (layers,) = log.of(Float8Layers)
    assert (layers.step, layers.recipe, layers.emulated, layers.names) == (4, "tensorwise", True, ("1",))
    assert [layer.name for layer in layers.left_out] == ["4"]
    assert [(type(module), id(module)) for module in prepared.model.modules()] == modules
    assert all(step.loss is not None for step in log.of(StepRecord))
    # Forward, and backward for the weight and the input; torchao computes that even for the first layer.
    full, float8, bf16 = log.of(FlopsCounted)
    assert full.uncounted == float8.uncounted == bf16.uncounted == ()
    assert float8.flops_by_type["float8"] == 3 * (2 * 8 * 16 * 16)
    assert float8.flops == bf16.flops + 2 * 8 * 16 * 16


@needs_torchao
@pytest.mark.parametrize(
    ("before", "after"), [("fp8-emulated", "fp32"), ("fp8-emulated", "bf16"), ("bf16", "fp8-emulated")]
)
def test_what_follows_a_switch_is_what_the_precision_does_from_the_same_state(
    before: str, after: str, tmp_path: Path
) -> None:
    """A checkpoint taken in the last step before it, resumed by a process that never ran the precision."""
    log = log_of(
        prepare(Drawing(epochs=1)),
        at={2: before, 5: after},
        checkpoints=tmp_path,
        every=5,
        epoch_budget=0.0,
    )
    assert [change.current for change in log.of(PrecisionChanged)] == [before, after]
    for path in sorted(tmp_path.iterdir())[1:]:
        path.unlink()
    resumed = Log()
    control = Control()
    control.ask(PrecisionRequest(after))
    resume(prepare(Drawing(epochs=1), precision=before), tmp_path, resumed, control)
    assert [step.precision for step in resumed.of(StepRecord)] == [after] * 3
    assert losses(resumed) == losses(log)[5:]


@needs_torchao
@pytest.mark.torch
def test_a_resumed_float8_run_equals_one_that_was_never_interrupted(tmp_path: Path) -> None:
    whole = log_of(prepare(Tiny(), precision="fp8"))
    assert {step.precision for step in whole.of(StepRecord)} == {"fp8-emulated"}
    first, second = Log(), Log()
    train(prepare(Tiny(epochs=1), precision="fp8"), first, Control(), checkpoints=tmp_path)
    resume(prepare(Tiny(), precision="fp8"), tmp_path, second)
    assert losses(first) + losses(second) == losses(whole)


@needs_torchao
def test_emulated_steps_are_compared_with_nothing_in_speed() -> None:
    log = Log()
    control = Control(log.emit)
    log.watch = switching(control, {3: ComparisonRequest(("fp32", "fp8-emulated"))})
    train(prepare(Tiny(), precision="fp8"), log, control)
    (refused,) = log.of(RequestRefused)
    assert (refused.reason, refused.detail) == ("unavailable", NO_SPEED)
    assert log.of(PrecisionsCompared) == []


class Broken(Tiny):
    """Fails in its first step with a layer in float8."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if model.training and any(type(module).__name__ == "Float8Linear" for module in model.modules()):
            raise RuntimeError("no float8")
        return super().loss(model, batch)


@needs_torchao
def test_a_first_float8_step_that_fails_is_undone() -> None:
    log = log_of(prepare(Broken(), steps=10), at={3: "fp8-emulated"})
    assert losses(log) == losses(log_of(prepare(Tiny(), steps=10)))
    assert any(note.severity == "error" and "no float8" in note.text for note in log.of(Note))
