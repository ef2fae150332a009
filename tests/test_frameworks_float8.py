"""FP8 in Accelerate, Fabric, Lightning and the Hugging Face Trainer: the layers switch, and come back."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from amptui.engine.float8 import NO_LAYER
from amptui.records.answers import RequestRefused
from amptui.records.control import PrecisionRequest
from amptui.records.findings import Float8Layers
from amptui.records.run import RunStarted
from amptui.records.steps import StepRecord
from tests.own_loops import ask, switching
from tests.run_records import of, records

pytestmark = [
    pytest.mark.usefixtures("usable_torchao"),
    pytest.mark.filterwarnings("default"),  # the frameworks' own
]

SWITCHES = {1: "fp32", 3: "fp8-emulated", 6: "bf16", 8: "fp8-emulated", 10: "fp32"}

STEPS = 12


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # older TrainingArguments set it for good
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "amptui" / "runs"


def linears(model: nn.Module) -> set[str]:
    return {type(module).__name__ for module in model.modules() if isinstance(module, nn.Linear)}


def check(runs: Path, model: nn.Module, layer: str, *, recipe: str) -> None:
    """Steps ran in what was asked for, and the model has its own layers."""
    journal = records(runs)
    precision, steps = "", of(StepRecord, journal)
    for step in steps:
        precision = SWITCHES.get(step.step, precision)
        assert step.precision == precision
    assert len(steps) >= STEPS
    (layers,) = of(Float8Layers, journal)
    assert (layers.step, layers.names, layers.emulated) == (3, (layer,), True)
    assert layers.recipe == recipe
    assert linears(model) == {"Linear"}


def test_accelerate_leaves_the_bits_of_a_handwritten_loop(runs: Path) -> None:
    pytest.importorskip("accelerate")
    import amptui.accelerate
    from tests.accelerated import Loop, new_accelerator

    bare = Loop(clip_norm=0.5)
    bare.handwritten(SWITCHES, STEPS)
    own, accelerator = Loop(clip_norm=0.5), new_accelerator()
    with amptui.accelerate.watch(accelerator) as monitor:
        own.accelerated(accelerator, STEPS, during=switching(monitor, SWITCHES))
        assert own.bits() == bare.bits()
    check(runs, own.model, "0", recipe="tensorwise")


def test_accelerate_may_begin_in_fp8(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    import amptui.accelerate
    from tests.accelerated import Loop, new_accelerator

    own, accelerator = Loop(), new_accelerator()
    with amptui.accelerate.watch(accelerator, precision="fp8", fp8_recipe="rowwise") as monitor:
        assert monitor.precision == "fp8-emulated"
        own.accelerated(accelerator, 3)
        assert linears(own.model) == {"Linear", "Float8Linear"}
    assert {step.precision for step in of(StepRecord, records(runs))} == {"fp8-emulated"}
    assert of(Float8Layers, records(runs))[0].recipe == "rowwise"
    assert linears(own.model) == {"Linear"}
    assert "no fp8" not in capsys.readouterr().err


def test_accelerate_trains_in_bf16_where_a_model_cannot_begin_in_fp8(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate")
    import amptui.accelerate
    from tests.accelerated import Loop, new_accelerator

    own, accelerator = Loop(), new_accelerator()
    own.model = nn.Sequential(nn.Linear(16, 10), nn.Linear(10, 4))
    own.optimizer.param_groups[0]["params"] = list(own.model.parameters())
    with amptui.accelerate.watch(accelerator, precision="fp8"):
        own.accelerated(accelerator, 3)
    assert f"no fp8 here, training is in bf16: {NO_LAYER}" in capsys.readouterr().err
    journal = records(runs)
    assert {step.precision for step in of(StepRecord, journal)} == {"bf16"}
    assert of(RunStarted, journal)[0].unsupported["fp8-emulated"] == NO_LAYER


def test_fabric_switches_the_layers_of_what_it_has_set_up(runs: Path) -> None:
    pytest.importorskip("lightning", exc_type=ImportError)
    from tests.test_fabric import Loop, plugin

    own = Loop()
    # A request is taken as the forward pass begins.
    requests: Any = {step: [PrecisionRequest(name)] for step, name in SWITCHES.items() if step > 1}
    precision = plugin(precision="32-true", fp8_recipe="rowwise")
    own.train(precision, requests)
    precision.monitor.close()
    check(runs, own.model, "0", recipe="rowwise")


def test_lightning_switches_the_layers_of_its_module(runs: Path) -> None:
    pytest.importorskip("lightning", exc_type=ImportError)
    from tests import lightning_training

    lit: Any = lightning_training
    monitor, net = lit.PrecisionMonitor(fp8_recipe="rowwise"), lit.Net()
    requests: Any = {step - 1: [PrecisionRequest(name)] for step, name in SWITCHES.items() if step > 1}
    trainer = lit.build_trainer(monitor, requests, precision="32-true", max_epochs=2)
    lit.fit(trainer, net, validate=True)
    check(runs, net, "net.0", recipe="rowwise")
    assert trainer.precision == "32-true"


@pytest.mark.ci  # importing transformers takes seconds
def test_a_trainer_switches_the_layers_of_its_model(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    import amptui.huggingface
    from tests import huggingface_training

    monkeypatch.setattr(huggingface_training, "WIDTH", 16)
    trainer = huggingface_training.new_trainer(tmp_path, steps=STEPS)
    with amptui.huggingface.watch(trainer, fp8_recipe="rowwise") as monitor:
        trainer.add_callback(huggingface_training.EachStep(switching(monitor, SWITCHES)))
        trainer.train()
    journal = records(runs)
    (layers,) = of(Float8Layers, journal)
    assert (layers.names, layers.recipe) == (("layers.0", "layers.3"), "rowwise")
    assert [step.precision for step in of(StepRecord, journal)][2:5] == ["fp8-emulated"] * 3
    assert linears(trainer.model) == {"Linear"}


@pytest.mark.ci
def test_a_trainer_whose_model_has_no_such_layer_says_so(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    import amptui.huggingface
    from tests.huggingface_training import EachStep, new_trainer

    trainer = new_trainer(tmp_path, steps=4)

    def during(step: int) -> None:
        if step == 2:
            ask(monitor, PrecisionRequest("fp8-emulated"))

    with amptui.huggingface.watch(trainer) as monitor:
        trainer.add_callback(EachStep(during))
        trainer.train()
    assert [record.detail for record in of(RequestRefused, records(runs))] == [NO_LAYER]
