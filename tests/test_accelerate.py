"""watch() in the real Accelerate and in the Trainer of Hugging Face: what is their own."""

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.checkout import ROOT
from tests.conformance.frameworks import Accelerate, HuggingFace, as_on_a_gpu
from tests.conformance.recorded import Asking, Recorded, Request, only_run
from tests.conformance.situations import STEPS, Situation, Training
from tests.loops.compiled_runs import nothing_compiled

pytestmark = [
    pytest.mark.ci,  # with the other frameworks
    pytest.mark.filterwarnings("default"),  # Accelerate's own
]

new = Accelerate.accelerator


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # older TrainingArguments set it for good
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def accelerate() -> Any:
    """The module of amptui's that imports Accelerate."""
    Accelerate().need()
    import amptui.accelerate

    return amptui.accelerate


@contextmanager
def asked(runs: Path, requests: dict[int, list[Request]]) -> Iterator[Callable[[int], object]]:
    asking = Asking(runs, requests)
    yield asking
    asking.close()


def to(precision: str) -> list[Request]:
    return [{"request": "precision", "precision": precision}]


@pytest.mark.parametrize("fused", [False, True])
def test_an_accelerators_own_scaler_is_continued_and_saved_as_its_own(
    fused: bool, accelerate: Any, runs: Path, tmp_path: Path
) -> None:
    situation = Situation({1: "fp16"}, fused=fused, clip_norm=0.5, schedules=True)

    def prepared() -> Any:
        accelerator = new(situation, mixed_precision="fp16")
        as_on_a_gpu(accelerator)
        return accelerator

    bare, alone = Training(situation), prepared()
    Accelerate.loop(bare, alone)
    training, accelerator = Training(situation), prepared()
    with accelerate.watch(accelerator) as monitor:
        assert monitor.precision == "fp16"
        Accelerate.loop(training, accelerator, monitor)
        accelerator.save_state(str(tmp_path / "saved"))
        assert accelerator.optimizer_step_was_skipped == alone.optimizer_step_was_skipped
    assert training.digests() == bare.digests()
    assert accelerator.scaler.state_dict() == alone.scaler.state_dict()
    skipped = [row["step"] for row in only_run(runs).table() if row["skipped"] == "true"]
    assert skipped == ["3", "4", "11", "12", "19", "20"]
    again, other = prepared(), Training(situation)
    again.prepare(other.model, other.optimizer, other.scheduler)
    again.load_state(str(tmp_path / "saved"))
    assert again.scaler.state_dict() == alone.scaler.state_dict()


@pytest.mark.parametrize("mixed_precision", ["no", "bf16", "fp16"])
def test_it_begins_in_the_accelerators_own_precision(
    mixed_precision: str, accelerate: Any, runs: Path
) -> None:
    situation = Situation()
    accelerator = new(situation, mixed_precision=mixed_precision)
    # Where anything is compiled, samples are not counted.
    with nothing_compiled(), accelerate.watch(accelerator) as monitor:
        # On a CPU, Accelerate trains float32 when it is asked for fp16.
        assert monitor.precision == ("bf16" if mixed_precision == "bf16" else "fp32")
        Accelerate.loop(Training(situation), accelerator)  # without the monitor's steps()
        assert accelerator.scaler is None
    run = only_run(runs)
    assert run.of("RunStarted")[0]["amp_precision"] == ("fp16" if mixed_precision == "fp16" else "bf16")
    assert [(row["step"], row["samples"]) for row in run.table()] == [
        (str(step), "" if step == 1 else "8") for step in range(1, STEPS + 1)
    ]


def test_the_loss_in_accelerators_autocast_follows_the_precision(accelerate: Any, runs: Path) -> None:
    training, accelerator = Training(Situation()), new(Situation())
    dtypes = []
    with asked(runs, {1: to("bf16")}) as asking, accelerate.watch(accelerator):
        model, optimizer = accelerator.prepare(training.model, training.optimizer)
        for step, (inputs, labels) in zip((1, 2, 3), training.batches, strict=False):
            with accelerator.autocast():
                dtypes.append((inputs @ inputs.T).dtype)
                loss = nn.functional.cross_entropy(model(inputs), labels)
            asking(step)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert dtypes == [torch.float32, torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("with_steps", [False, True])
def test_a_saved_state_continues_with_the_scale_in_any_precision(
    with_steps: bool, accelerate: Any, runs: Path, tmp_path: Path
) -> None:
    situation, accelerator = Situation(schedules=True), new(Situation())
    checkpoint: list[Request] = [{"request": "checkpoint"}]
    requests = {5: to("fp16"), 21: to("fp32"), STEPS: checkpoint}
    with asked(runs, requests) as asking, accelerate.watch(accelerator, save_dir="saved") as monitor:
        training = Training(situation, asking)
        Accelerate.loop(training, accelerator, monitor if with_steps else None)
        # Without steps(), the step is over when the next one begins.
        if not with_steps:
            accelerator._models[0](torch.zeros(1, 16))
        scaler = monitor.amp.scaler.state_dict()
    expected = training.digests()
    assert scaler["scale"] == 2.0**12
    (saved,) = (tmp_path / "saved").iterdir()
    assert saved.name == f"step-{STEPS}"

    def resume(again: Any, folder: Path) -> None:
        other = Training(situation)
        again.prepare(other.model, other.optimizer, other.scheduler)
        again.load_state(str(folder))
        left = other.digests()
        assert {name: left[name] for name in ("weights", "moments", "learning rate")} == {
            name: expected[name] for name in ("weights", "moments", "learning rate")
        }

    again = new(situation)
    with accelerate.watch(again, precision="fp16") as monitor:
        resume(again, saved)
        assert monitor.amp.scaler.state_dict() == scaler
    # What was saved with amptui is loaded without it, and the other way round.
    alone = new(situation)
    resume(alone, saved)
    alone.save_state(str(tmp_path / "alone"))
    third = new(situation)
    with accelerate.watch(third) as monitor:
        resume(third, tmp_path / "alone")
        assert monitor.amp.scaler.state_dict()["scale"] == 2.0**16


def test_weights_of_another_type_are_only_observed(accelerate: Any, runs: Path) -> None:
    def train(accelerator: Any, asking: Callable[[int], object]) -> list[Any]:
        training = Training(Situation())
        training.model.to(torch.bfloat16)
        model, optimizer = accelerator.prepare(training.model, torch.optim.AdamW(training.model.parameters()))
        for step, (inputs, labels) in enumerate(training.batches, 1):
            asking(step)
            loss = nn.functional.cross_entropy(model(inputs.bfloat16()), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.tolist() for parameter in training.model.parameters()]

    expected = train(new(Situation()), lambda _step: None)
    accelerator = new(Situation())
    with asked(runs, {3: to("fp16")}) as asking, accelerate.watch(accelerator):
        assert train(accelerator, asking) == expected
    run = only_run(runs)
    (note,) = run.of("Note")
    assert "bfloat16, not float32" in note["text"]
    assert [line["detail"] for line in run.of("RequestRefused")] == [note["text"]]
    assert run.of("RunStarted")[0]["observed"]


def test_a_second_optimizer_keeps_the_precision(
    accelerate: Any, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, accelerator = Training(Situation()), Training(Situation()), new(Situation())
    with asked(runs, {2: to("bf16")}) as asking, accelerate.watch(accelerator) as monitor:
        accelerator.prepare(first.model, second.model, first.optimizer, second.optimizer)
        for step, batch in zip((1, 2, 3, 4), first.batches, strict=False):
            asking(step)
            for training in (first, second):
                accelerator.backward(training.loss(batch))
            for optimizer in accelerator._optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert monitor.precision == "fp32"
    run = only_run(runs)
    assert [line["reason"] for line in run.of("RequestRefused")] == ["unavailable"]
    assert capsys.readouterr().err.count("several optimizers") == 1
    rows = run.table()
    names = {row["optimizer"] for row in rows}
    assert len(names) == 2
    for name in names:
        steps = [row for row in rows if row["optimizer"] == name]
        assert [row["step"] for row in steps] == ["1", "2", "3", "4"]
        assert all(row["loss"] for row in steps)


def test_copies_of_a_prepared_model_are_models_of_their_own(accelerate: Any, tmp_path: Path) -> None:
    training, accelerator = Training(Situation()), new(Situation())
    with accelerate.watch(accelerator):
        model = accelerator.prepare(training.model)
        average = copy.deepcopy(model)
        with torch.no_grad():
            average[0].weight.zero_()
            average[3].weight.zero_()
        inputs = torch.ones(1, 16)
        average.eval()
        assert torch.equal(average(inputs)[0], average[3].bias)
        torch.save(model, tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(loaded.eval()(inputs), model.eval()(inputs))
        bare = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        assert torch.equal(bare(inputs), model(inputs))


def test_wrong_arguments_are_refused(accelerate: Any) -> None:
    with pytest.raises(TypeError, match="not int"):
        accelerate.watch(3)
    with pytest.raises(ValueError, match="TF32 needs an NVIDIA GPU"):
        accelerate.watch(new(Situation()), precision="tf32")
    accelerator = new(Situation())
    accelerator.prepare(Training(Situation()).model)
    with pytest.raises(RuntimeError, match=r"before accelerator\.prepare"):
        accelerate.watch(accelerator)


@pytest.mark.usefixtures("usable_torchao")
@pytest.mark.parametrize("fits", [True, False])
def test_it_may_begin_in_fp8_if_the_model_can_and_else_trains_in_bf16(
    *, fits: bool, accelerate: Any, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training, accelerator = Training(Situation()), new(Situation())
    if not fits:
        training.model = nn.Sequential(nn.Linear(16, 10), nn.Linear(10, 4))
        training.optimizer.param_groups[0]["params"] = list(training.model.parameters())
    with accelerate.watch(accelerator, precision="fp8", fp8_recipe="rowwise") as monitor:
        assert monitor.precision == "fp8-emulated"
        Accelerate.loop(training, accelerator, monitor)
        assert (type(training.model[0]).__name__ == "Float8Linear") == fits
    assert type(training.model[0]) is nn.Linear
    run, said = only_run(runs), capsys.readouterr().err
    assert {row["precision"] for row in run.table()} == {"fp8-emulated" if fits else "bf16"}
    if fits:
        assert run.of("Float8Layers")[0]["recipe"] == "rowwise"
        assert "no fp8" not in said
    else:
        why = run.of("RunStarted")[0]["unsupported"]["fp8-emulated"]
        assert f"no fp8: {why}; training in bf16 instead" in said


_TWO = """
import os, sys
import torch, amptui.accelerate
from accelerate import Accelerator
from torch import nn
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
if sys.argv[1] == "watched":
    monitor = amptui.accelerate.watch(accelerator)
model = nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
torch.manual_seed(accelerator.process_index)
for _ in range(10):
    accelerator.backward(model(torch.randn(4, 8)).square().mean())
    accelerator.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
if accelerator.is_main_process:
    print("weights", [p.tolist() for p in model.parameters()])
accelerator.end_training()
if sys.argv[1] == "watched":
    monitor.close()
sys.stdout.flush()
os._exit(0)  # gloo's thread takes the GIL to drop its last work: if Python ends meanwhile, torch 2.14 aborts
"""


@pytest.mark.usefixtures("accelerate")
def test_of_two_processes_the_first_is_observed(runs: Path, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(_TWO)

    def train(how: str) -> list[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        result = subprocess.run(
            [*command, str(script), how], capture_output=True, text=True, check=False, timeout=200
        )
        assert result.returncode == 0, result.stderr
        return [line for line in result.stdout.splitlines() if line.startswith("weights")]

    assert train("bare") == train("watched")
    run = only_run(runs)
    assert [row["precision"] for row in run.table()] == ["bf16"] * 10
    assert any("2 processes" in note["text"] for note in run.of("Note"))


# -------------------------------------------------------------------------- the Trainer of Hugging Face

new_trainer = HuggingFace.trainer


@pytest.fixture
def huggingface() -> Any:
    """The module of amptui's that imports transformers."""
    HuggingFace().need()
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
        trainers.append(new_trainer(trainings[-1], tmp_path, eval_strategy="epoch", **options))
        if watched:
            with huggingface.watch(trainers[-1]) as monitor:
                assert monitor.precision == ("bf16" if "bf16" in options else "fp32")
                trainers[-1].train()
        else:
            trainers[-1].train()
    assert trainings[0].digests() == trainings[1].digests()
    assert logged(trainers[0]) == logged(trainers[1])


def test_what_it_logs_and_evaluates_is_shown(huggingface: Any, tmp_path: Path, runs: Path) -> None:
    trainer = new_trainer(Training(Situation()), tmp_path, eval_strategy="epoch", logging_strategy="epoch")
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
    trainer = new_trainer(training, tmp_path)
    with huggingface.watch(trainer) as monitor:
        trainer.train()
        scaler = monitor.amp.scaler.state_dict()
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
    resumed = new_trainer(again, tmp_path)
    with huggingface.watch(resumed, precision="bf16") as monitor:
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert monitor.amp.scaler.state_dict() == scaler
    assert again.digests() == expected
    (second,) = {*runs.iterdir()} - {run.folder}
    assert [int(row["step"]) for row in Recorded(second).table()] == [*range(17, STEPS + 1)]

    alone = Training(Situation(schedules=True))
    new_trainer(alone, tmp_path, bf16=True).train(resume_from_checkpoint=str(checkpoint))
    assert alone.digests() == expected


def test_the_scale_is_saved_too_where_nothing_is_watched_after_a_fault(
    huggingface: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("amptui.guest.framework.NamedOptimizer", None)
    trainer = new_trainer(Training(Situation()), tmp_path, save_strategy="steps", save_steps=4)
    with huggingface.watch(trainer, precision="bf16"):
        trainer.train()
    assert capfd.readouterr().err.count("amptui: cannot watch this training") == 1
    assert "scale" in torch.load(tmp_path / "checkpoint-4" / "amptui_scaler.bin", weights_only=True)


def test_evaluations_around_it_and_a_second_training_go_on(
    huggingface: Any, tmp_path: Path, runs: Path
) -> None:
    def train(trainer: Any) -> None:
        for _ in range(2):
            trainer.evaluate()
            trainer.train()

    bare, ours = Training(Situation()), Training(Situation())
    train(new_trainer(bare, tmp_path, bf16=True))
    trainer = new_trainer(ours, tmp_path, bf16=True)
    with huggingface.watch(trainer):
        train(trainer)
    assert ours.digests() == bare.digests()
    run = only_run(runs)
    assert [int(row["step"]) for row in run.table()] == [*range(1, 2 * STEPS + 1)]
    assert [line["step"] for line in run.of("Validated")] == [STEPS]


def test_wrong_arguments_are_refused_by_its_trainer(huggingface: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not int"):
        huggingface.watch(3)
    trainer = new_trainer(Training(Situation()), tmp_path)
    with pytest.raises(ValueError, match="TF32 needs an NVIDIA GPU"):
        huggingface.watch(trainer, precision="tf32")
    trainer.train()
    with pytest.raises(RuntimeError, match=r"before trainer\.train"):
        huggingface.watch(trainer)


def test_the_demo_shows_what_the_trainer_hides(huggingface: Any, tmp_path: Path, runs: Path) -> None:
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
