"""amptui.huggingface.watch() in the real Trainer: what is the Trainer's own, beside tests/conformance."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import ROOT
from tests.conformance.frameworks import HuggingFace
from tests.conformance.recorded import Asking, Recorded, Request, only_run
from tests.conformance.situations import STEPS, Situation, Training

new = HuggingFace.trainer

pytestmark = [
    pytest.mark.ci,  # importing transformers takes seconds
    pytest.mark.filterwarnings("default"),  # transformers' own
]


@pytest.fixture(autouse=True)
def huggingface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of amptui's that imports transformers."""
    HuggingFace().need()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # older TrainingArguments set it for good
    monkeypatch.chdir(tmp_path)
    import amptui.huggingface

    return amptui.huggingface


def logged(trainer: Any) -> list[dict[str, float]]:
    """What the Trainer logged, without speeds."""
    return [
        {name: value for name, value in entry.items() if "_runtime" not in name and "_per_second" not in name}
        for entry in trainer.state.log_history
    ]


@pytest.mark.parametrize("options", [{}, {"bf16": True, "logging_steps": 5}], ids=str)
def test_the_bits_and_the_logs_are_those_of_the_trainer(
    options: dict[str, Any], huggingface: Any, tmp_path: Path
) -> None:
    trainings, trainers = [], []
    for watched in (False, True):
        trainings.append(Training(Situation()))
        trainers.append(new(trainings[-1], tmp_path, eval_strategy="epoch", **options))
        if watched:
            with huggingface.watch(trainers[-1]) as monitor:
                assert monitor.precision == ("bf16" if "bf16" in options else "fp32")
                trainers[-1].train()
        else:
            trainers[-1].train()
    assert trainings[0].digests() == trainings[1].digests()
    assert logged(trainers[0]) == logged(trainers[1])


def test_what_it_logs_and_evaluates_is_shown(huggingface: Any, tmp_path: Path, runs: Path) -> None:
    trainer = new(Training(Situation()), tmp_path, eval_strategy="epoch", logging_strategy="epoch")
    trainer.compute_metrics = lambda prediction: {"accuracy": 0.25, "top5": len(prediction.label_ids) / 16}
    with huggingface.watch(trainer):
        trainer.train()
    run = only_run(runs)
    validated = run.of("Validated")
    assert [line["step"] for line in validated] == [8, 16, 24]
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [line["validation"]["loss"] for line in validated] == pytest.approx(
        [entry["eval_loss"] for entry in history]
    )
    assert {line["validation"]["accuracy"] for line in validated} == {0.25}
    assert {line["validation"]["metrics"]["top5"] for line in validated} == {0.5}
    mean = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    rows = run.table()
    assert [float(rows[at]["losses.logged_loss"]) for at in (7, 15, 23)] == pytest.approx(mean)


def test_a_checkpoint_continues_with_the_scale_with_amptui_or_without(
    huggingface: Any, tmp_path: Path, runs: Path
) -> None:
    requests: dict[int, list[Request]] = {
        1: [{"request": "precision", "precision": "fp16"}],
        15: [{"request": "precision", "precision": "bf16"}],
        16: [{"request": "checkpoint"}],
    }
    asking = Asking(runs, requests)
    training = Training(Situation(schedules=True), asking)
    trainer = new(training, tmp_path)
    with huggingface.watch(trainer) as monitor:
        trainer.train()
        scaler = monitor._scaler_state
    asking.close()
    expected = training.digests()
    assert scaler is not None
    assert scaler["scale"] == 2.0**12
    checkpoint = tmp_path / "checkpoint-16"
    assert not (checkpoint / "scaler.pt").exists()
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == 16
    run = only_run(runs)
    kinds = [line["request"]["kind"] for line in run.of("RequestTaken")]
    assert kinds == ["precision", "precision", "checkpoint"]
    assert any(str(checkpoint) in note["text"] for note in run.of("Note"))

    again = Training(Situation(schedules=True))
    resumed = new(again, tmp_path)
    with huggingface.watch(resumed, precision="bf16") as monitor:
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert monitor._scaler_state == scaler
    assert again.digests() == expected
    (second,) = {*runs.iterdir()} - {run.folder}
    assert [int(row["step"]) for row in Recorded(second).table()] == [*range(17, STEPS + 1)]

    alone = Training(Situation(schedules=True))
    new(alone, tmp_path, bf16=True).train(resume_from_checkpoint=str(checkpoint))
    assert alone.digests() == expected


def test_the_scale_is_saved_too_where_nothing_is_watched_after_a_fault(
    huggingface: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface.TrainerMonitor, "_script", None)
    trainer = new(Training(Situation()), tmp_path, save_strategy="steps", save_steps=4)
    with huggingface.watch(trainer, precision="bf16"):
        trainer.train()
    assert capfd.readouterr().err.count("amptui: cannot watch this training") == 1
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert "scale" in state["stateful_callbacks"]["amptui"]


def test_evaluations_around_it_and_a_second_training_go_on(
    huggingface: Any, tmp_path: Path, runs: Path
) -> None:
    def train(trainer: Any) -> None:
        for _ in range(2):
            trainer.evaluate()
            trainer.train()

    bare, ours = Training(Situation()), Training(Situation())
    train(new(bare, tmp_path, bf16=True))
    trainer = new(ours, tmp_path, bf16=True)
    with huggingface.watch(trainer):
        train(trainer)
    assert ours.digests() == bare.digests()
    run = only_run(runs)
    assert [int(row["step"]) for row in run.table()] == [*range(1, 2 * STEPS + 1)]
    assert [line["step"] for line in run.of("Validated")] == [STEPS]


def test_wrong_arguments_are_refused(huggingface: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not int"):
        huggingface.watch(3)
    trainer = new(Training(Situation()), tmp_path)
    with pytest.raises(ValueError, match="TF32 needs an NVIDIA GPU"):
        huggingface.watch(trainer, precision="tf32")
    trainer.train()
    with pytest.raises(RuntimeError, match=r"before trainer\.train"):
        huggingface.watch(trainer)


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
    rows = only_run(runs).table()
    hidden = [row for row in rows if math.isnan(float(row["loss"]))]
    assert [(row["step"], row["skipped"], float(row["losses.logged_loss"])) for row in hidden] == [
        ("20", "true", 0.0)
    ]
    scales = [float(row["loss_scale"]) for row in rows]
    assert scales[:21] == [2.0**16] * 20 + [2.0**15]
