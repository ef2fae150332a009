"""amptui.huggingface.watch() switches a Trainer's precision, and tells what the Trainer hides."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.control import CheckpointRequest, PrecisionRequest, StopRequest, XRayRequest
from amptui.records.run import (
    EpochFinished,
    Note,
    PrecisionChanged,
    RunFinished,
    RunStarted,
    StepSkipped,
    Validated,
)
from amptui.records.steps import StepRecord
from tests.own_loops import ask, switching
from tests.run_records import of, records
from tests.single_steps import read

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no transformers"),
    pytest.mark.ci,  # importing transformers takes seconds
    pytest.mark.filterwarnings("default"),  # transformers' own
]

ROOT = Path(__file__).parent.parent

SWITCHES = {1: "fp32", 3: "bf16", 6: "fp16", 9: "fp32", 11: "fp16", 16: "bf16"}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # older TrainingArguments set it for good
    return tmp_path / "state" / "amptui" / "runs"


@pytest.mark.parametrize(
    "options",
    [{}, {"bf16": True, "gradient_accumulation_steps": 2}, {"max_grad_norm": 0.0, "logging_steps": 5}],
    ids=str,
)
def test_a_fixed_precision_leaves_the_bits_and_the_logs_of_the_trainer(
    options: dict[str, Any], tmp_path: Path, runs: Path
) -> None:
    import amptui.huggingface
    from tests.huggingface_training import bits, logged, new_trainer

    options = {**options, "eval_strategy": "epoch", "num_train_epochs": 2}
    bare = new_trainer(tmp_path, **options)
    bare.train()
    expected = bits(bare.model)
    trainer = new_trainer(tmp_path, **options)
    with amptui.huggingface.watch(trainer) as monitor:
        assert monitor.precision == ("bf16" if "bf16" in options else "fp32")
        trainer.train()
        assert bits(trainer.model) == expected
    assert logged(trainer) == logged(bare)
    assert len(of(StepRecord, records(runs))) == trainer.state.global_step == 40


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_switches_leave_the_bits_of_a_handwritten_loop(
    optim: str, accumulate: int, tmp_path: Path, runs: Path
) -> None:
    import amptui.huggingface
    from tests.huggingface_training import OVERFLOWS, EachStep, bits, handwritten, new_trainer

    model, scaler, losses = handwritten(SWITCHES, accumulate=accumulate, fused="fused" in optim)
    expected = bits(model)
    trainer = new_trainer(tmp_path, optim=optim, gradient_accumulation_steps=accumulate)
    with amptui.huggingface.watch(trainer) as monitor:
        trainer.add_callback(EachStep(switching(monitor, SWITCHES)))
        trainer.train()
        assert bits(trainer.model) == expected
        assert monitor._scaler_state == scaler
    journal = records(runs)
    steps = of(StepRecord, journal)
    assert [record.loss for record in steps] == pytest.approx(losses, rel=1e-6, nan_ok=True)
    assert [record.step for record in steps if record.skipped] == list(OVERFLOWS)
    changed = of(PrecisionChanged, journal)
    assert [(record.step, record.current) for record in changed] == list(SWITCHES.items())[1:]
    assert {record.samples for record in steps} == {4 * accumulate}
    assert all(record.data_seconds is not None for record in steps)


def test_a_skipped_step_whose_nan_the_trainer_hides_is_told(tmp_path: Path, runs: Path) -> None:
    import amptui.huggingface
    from tests.huggingface_training import EachStep, new_trainer

    trainer, events = new_trainer(tmp_path), EachStep()
    trainer.add_callback(events)
    with amptui.huggingface.watch(trainer, precision="fp16"):
        trainer.train()
    # The Trainer, with its defaults: a loss of 0, no skipped step.
    hidden = [entry for entry in trainer.state.log_history if entry["step"] == 7 and "loss" in entry]
    assert [entry["loss"] for entry in hidden] == [0.0]
    assert not any(events.said_skipped)
    journal = records(runs)
    steps = of(StepRecord, journal)
    assert math.isnan(steps[6].loss)
    assert steps[6].losses["logged_loss"] == 0.0
    assert [record.step for record in steps if record.skipped] == [7, 12]
    assert [steps[6].loss_scale, steps[7].loss_scale, steps[12].loss_scale] == [2.0**16, 2.0**15, 2.0**14]
    skipped = of(StepSkipped, journal)
    assert skipped[0].names


def test_its_length_its_epochs_and_what_it_logs_are_shown(tmp_path: Path, runs: Path) -> None:
    import amptui.huggingface
    from tests.huggingface_training import new_trainer

    trainer = new_trainer(
        tmp_path, steps=4, num_train_epochs=3, eval_strategy="epoch", logging_strategy="epoch"
    )
    trainer.compute_metrics = lambda prediction: {"accuracy": 0.25, "top5": len(prediction.label_ids) / 16}
    with amptui.huggingface.watch(trainer):
        trainer.train()
    journal = records(runs)
    (started,) = of(RunStarted, journal)
    assert (started.steps_per_epoch, started.total_epochs, started.total_steps) == (4, 3, 12)
    assert [record.step for record in of(EpochFinished, journal)] == [4, 8, 12]
    validated = of(Validated, journal)
    assert [record.step for record in validated] == [4, 8, 12]
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [record.validation.loss for record in validated] == pytest.approx(
        [entry["eval_loss"] for entry in history]
    )
    assert {record.validation.accuracy for record in validated} == {0.25}
    assert {record.validation.metrics["top5"] for record in validated} == {0.5}
    mean = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    steps = of(StepRecord, journal)
    assert [steps[at].losses["logged_loss"] for at in (3, 7, 11)] == pytest.approx(mean)


def test_a_checkpoint_continues_with_the_scale_with_amptui_or_without(tmp_path: Path, runs: Path) -> None:
    import amptui.huggingface
    from tests.huggingface_training import EachStep, bits, new_trainer

    switches = {2: "fp16", 14: "bf16"}

    def during(step: int) -> None:
        switching(monitor, switches)(step)
        if step == 14:
            ask(monitor, CheckpointRequest())

    whole = new_trainer(tmp_path)
    with amptui.huggingface.watch(whole) as monitor:
        whole.add_callback(EachStep(during))
        whole.train()
        expected, scaler = bits(whole.model), monitor._scaler_state
    assert scaler is not None
    assert scaler["scale"] == 2.0**14
    checkpoint = tmp_path / "checkpoint-14"
    assert not (checkpoint / "scaler.pt").exists()
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == 14
    journal = records(runs)
    assert [r.request.kind for r in of(RequestTaken, journal)] == ["precision", "precision", "checkpoint"]
    assert any(str(checkpoint) in note.text for note in of(Note, journal))

    first = set(runs.iterdir())
    resumed = new_trainer(tmp_path)
    with amptui.huggingface.watch(resumed, precision="bf16") as monitor:
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert bits(resumed.model) == expected
        assert monitor._scaler_state == scaler
    (run,) = set(runs.iterdir()) - first
    assert [record.step for record in of(StepRecord, list(read(run / "journal.jsonl")))] == [*range(15, 21)]

    alone = new_trainer(tmp_path, bf16=True)
    alone.train(resume_from_checkpoint=str(checkpoint))
    assert bits(alone.model) == expected


def test_a_stop_ends_the_training_after_the_step(tmp_path: Path, runs: Path) -> None:
    import amptui.huggingface
    from tests.huggingface_training import EachStep, new_trainer

    def during(step: int) -> None:
        if step == 3:
            ask(monitor, XRayRequest())
        if step == 5:
            ask(monitor, StopRequest("q"))

    trainer = new_trainer(tmp_path, gradient_accumulation_steps=2)
    with amptui.huggingface.watch(trainer) as monitor:
        trainer.add_callback(EachStep(during))
        trainer.train()
    journal = records(runs)
    (finished,) = of(RunFinished, journal)
    assert (finished.steps, finished.reason, trainer.state.global_step) == (5, "stopped", 5)
    assert [record.reason for record in of(RequestRefused, journal)] == ["unavailable"]
    assert of(EpochFinished, journal) == []


@pytest.mark.parametrize(
    "place",
    [
        *(f"observed_loop.ObservedLoop.{name}" for name in ("take_batch", "finish_epoch")),
        *(
            f"switched_optimizer.SwitchedOptimizer.{name}"
            for name in ("log", "end_step", "begin_validation", "finish_validation")
        ),
    ],
)
def test_a_fault_in_any_hook_costs_the_training_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import amptui.huggingface
    from tests.huggingface_training import bits, new_trainer

    bare = new_trainer(tmp_path, steps=5, eval_strategy="epoch")
    bare.train()
    expected = bits(bare.model)
    capsys.readouterr()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(f"amptui.guest.loop.{place}", fail)
    trainer = new_trainer(tmp_path, steps=5, eval_strategy="epoch")
    with amptui.huggingface.watch(trainer):
        trainer.train()
        assert bits(trainer.model) == expected
    assert capsys.readouterr().err.count("a fault") == 1


def test_evaluations_around_it_and_a_second_training_go_on(tmp_path: Path, runs: Path) -> None:
    import amptui.huggingface
    from tests.huggingface_training import bits, new_trainer

    bare = new_trainer(tmp_path, steps=4, bf16=True)
    bare.evaluate()
    bare.train()
    bare.evaluate()
    bare.train()
    expected = bits(bare.model)
    trainer = new_trainer(tmp_path, steps=4, bf16=True)
    with amptui.huggingface.watch(trainer):
        trainer.evaluate()
        trainer.train()
        trainer.evaluate()
        trainer.train()
        assert bits(trainer.model) == expected
    journal = records(runs)
    assert [record.step for record in of(StepRecord, journal)] == [*range(1, 9)]
    assert [record.step for record in of(Validated, journal)] == [4]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    import amptui.huggingface
    from tests.huggingface_training import new_trainer

    with pytest.raises(TypeError, match="not int"):
        amptui.huggingface.watch(3)
    trainer = new_trainer(tmp_path, steps=2)
    with pytest.raises(ValueError, match="TF32 needs an NVIDIA GPU"):
        amptui.huggingface.watch(trainer, precision="tf32")
    trainer.train()
    with pytest.raises(RuntimeError, match=r"before trainer\.train"):
        amptui.huggingface.watch(trainer)


def test_the_demo_shows_what_the_trainer_hides(tmp_path: Path, runs: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "hf_hides_nan.py"), "30"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    steps = of(StepRecord, records(runs))
    hidden = [record for record in steps if math.isnan(record.loss)]
    assert [record.step for record in hidden] == [20]
    assert all(record.skipped for record in hidden)
    assert {record.losses["logged_loss"] for record in hidden} == {0.0}
    assert torch.tensor([record.loss_scale for record in steps[:20]]).unique().tolist() == [2.0**16]
    assert steps[20].loss_scale == 2.0**15


def test_no_precision_but_float32_weights(tmp_path: Path, runs: Path) -> None:
    import amptui.huggingface
    from tests.huggingface_training import EachStep, new_trainer

    trainer = new_trainer(tmp_path, steps=4)
    for parameter in trainer.model.parameters():
        parameter.data = parameter.data.double()
    trainer.model.layers[0].register_forward_pre_hook(lambda _module, inputs: inputs[0].double())
    with amptui.huggingface.watch(trainer) as monitor:
        trainer.add_callback(
            EachStep(lambda step: ask(monitor, PrecisionRequest("bf16")) if step == 2 else None)
        )
        trainer.train()
    journal = records(runs)
    (note,) = of(Note, journal)
    assert "float64, not float32" in note.text
    assert [record.detail for record in of(RequestRefused, journal)] == [note.text]
    assert len(of(StepRecord, journal)) == 4
