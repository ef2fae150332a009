"""Accelerate, Fabric, Hugging Face and Lightning: what is their own, beside tests/conformance."""

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.checkout import ROOT, child_environment
from tests.conformance.frameworks import Accelerate, Fabric, Framework, HuggingFace, Lightning, as_on_a_gpu
from tests.conformance.recorded import Asking, Recorded, Request, only_run
from tests.conformance.situations import STEPS, Situation, Training
from tests.loops.compiled_runs import nothing_compiled

pytestmark = [
    pytest.mark.ci,  # importing a framework takes seconds
    pytest.mark.filterwarnings("default"),  # their own
]

ACCELERATE, FABRIC, HUGGING_FACE, LIGHTNING = Accelerate(), Fabric(), HuggingFace(), Lightning()

CHECKPOINT: Request = {"request": "checkpoint"}


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # older TrainingArguments set it for good
    monkeypatch.chdir(tmp_path)


def door(name: str) -> Any:
    return pytest.importorskip(f"amptui.{name}", exc_type=ImportError)


def to(precision: str) -> Request:
    return {"request": "precision", "precision": precision}


def run(
    framework: Framework,
    training: Training,
    runs: Path,
    requests: dict[int, list[Request]],
    watch: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Recorded]:
    """Train with somebody who makes ``requests``; the scaler's state, and the run that came."""
    framework.need()
    training.during = asking = Asking(runs, requests)
    before = {*runs.iterdir()} if runs.exists() else set()
    state = framework.run(training, runs.parent, watch or {}, **options)
    asking.close()
    (folder,) = {path for path in runs.iterdir() if path.is_dir()} - before
    return state, Recorded(folder)


# ------------------------------------------------------------------------------- several of them


@pytest.mark.parametrize(
    ("framework", "option", "name"),
    [
        (LIGHTNING, "dirpath", "epoch=1-step=16.ckpt"),
        (ACCELERATE, "save_dir", "step-16"),
        (Accelerate(steps=False), "save_dir", "step-16"),
        (HUGGING_FACE, "", "checkpoint-16"),
    ],
)
def test_a_checkpoint_continues_with_the_scale_with_amptui_or_without(
    framework: Framework, option: str, name: str, runs: Path
) -> None:
    path = runs.parent / name
    training = Training(Situation(schedules=True))
    requests = {1: [to("fp16")], 15: [to("bf16")], 16: [CHECKPOINT]}
    scaler, first = run(framework, training, runs, requests, {option: path.parent} if option else {})
    assert scaler["scale"] == 2.0**12
    assert [line["request"]["kind"] for line in first.of("RequestTaken")][2:] == ["checkpoint"]
    assert any(str(path) in note["text"] for note in first.of("Note"))
    again, alone = (Training(Situation({1: "bf16"}, schedules=True)) for _ in range(2))
    state, second = run(framework, again, runs, {}, checkpoint=str(path))
    assert state == scaler
    framework.run(alone, runs.parent, None, checkpoint=str(path))
    assert again.digests() == alone.digests() == training.digests()
    start = 1 if isinstance(framework, Accelerate) else 17
    assert [int(row["step"]) for row in second.table()] == [*range(start, start + 8)]


class HalfWeights(Training):
    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self.model.to(torch.bfloat16)

    def loss(self, batch: tuple[Tensor, Tensor], model: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        return super().loss(batch, lambda inputs: (model or self.model)(inputs.bfloat16()))


def manual(training: Training) -> Any:

    class Manual(type(Lightning.module(training))):  # type: ignore[misc]
        automatic_optimization = False

        def training_step(self, batch: Any, _: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(training.loss(batch))
                optimizer.step()

        def configure_optimizers(self) -> Any:
            layers = self.net[0], self.net[3]
            return [torch.optim.Adam(layer.parameters(), lr=1e-3) for layer in layers]

    return Manual()


@pytest.mark.parametrize(
    ("framework", "kind", "options", "why"),
    [
        (ACCELERATE, HalfWeights, {}, "bfloat16, not float32"),
        (HUGGING_FACE, HalfWeights, {}, "bfloat16, not float32"),
        (LIGHTNING, Training, {"module": manual, "precision": "bf16-mixed"}, "steps the optimizers itself"),
        (LIGHTNING, Training, {"precision": "64-true"}, "64-true"),
        (LIGHTNING, Training, {"package": "pytorch_lightning"}, "use lightning.pytorch"),
    ],
    ids=["Accelerate", "Hugging Face", "manual", "64-true", "another package"],
)
def test_what_cannot_be_taken_over_is_observed(
    framework: Framework, kind: type[Training], options: dict[str, Any], why: str, runs: Path
) -> None:
    framework.need()
    weights = []
    for watched in (False, True):
        training = kind(Situation())
        if watched:
            _, observed = run(framework, training, runs, {4: [to("bf16")]}, **options)
        else:
            framework.run(training, runs.parent, None, **options)
        torch.set_default_dtype(torch.float32)
        weights.append([parameter.tolist() for parameter in training.model.parameters()])
    assert weights[0] == weights[1]
    assert observed.of("RunStarted")[0]["observed"]
    (refused,) = observed.of("RequestRefused")
    assert refused["reason"] == "unavailable"
    assert why in refused["detail"]
    assert [note["text"] for note in observed.of("Note")] == [refused["detail"]]
    assert {int(row["step"]) for row in observed.table()} == {*range(1, STEPS + 1)}


RANKS = """
import os, sys
from pathlib import Path
import torch
from tests.conformance.frameworks import FRAMEWORKS
from tests.conformance.situations import SITUATIONS, Training
torch.set_num_threads(1)
(framework,) = [framework for framework in FRAMEWORKS if framework.name == sys.argv[1]]
options = {"devices": 2, "strategy": "ddp"} if framework.package == "lightning" else {}
ends = []
for watch in (None, {}):
    training = Training(SITUATIONS["bf16"])
    framework.run(training, Path.cwd(), watch, **options)
    ends.append(training.digests())
assert ends[0] == ends[1]
print("same", flush=True)
os._exit(0)  # gloo's thread takes the GIL to drop its last work: if Python ends meanwhile, torch 2.14 aborts
"""


@pytest.mark.parametrize(
    "framework",
    [
        ACCELERATE,
        *(pytest.param(other, marks=pytest.mark.nightly) for other in (FABRIC, HUGGING_FACE, LIGHTNING)),
    ],
    ids=lambda framework: framework.name,
)
def test_of_two_processes_the_first_is_observed(framework: Framework, runs: Path, tmp_path: Path) -> None:
    framework.need()
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, str(script), framework.name], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("same") == 2
    observed = only_run(runs)
    assert observed.of("RunStarted")[0]["observed"]
    assert [row["precision"] for row in observed.table()] == ["bf16"] * STEPS
    assert any("2 processes" in note["text"] for note in observed.of("Note"))


@pytest.mark.parametrize(
    ("demo", "words"),
    [("lightning_toggle.py 1", "trained 50 steps"), ("hf_hides_nan.py 30", "a loss of 0.0 in 1 of 30 steps")],
)
def test_a_demo_runs_without_a_screen(demo: str, words: str, tmp_path: Path) -> None:
    (LIGHTNING if "lightning" in demo else HUGGING_FACE).need()
    name, steps = demo.split()
    folder, script = tmp_path / "run", str(ROOT / "demo" / name)
    command = [sys.executable, "-m", "amptui", "run", "--headless", "--run-dir", str(folder), script, steps]
    with child_environment() as added:
        env = {**os.environ, **added, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert words in result.stdout
    shown = Recorded(folder)
    rows = shown.table()
    if name == "lightning_toggle.py":
        assert len(rows) == 50
        assert shown.of("Validated")[0]["validation"]["accuracy"] > 0
        return
    hidden = [row for row in rows if math.isnan(float(row["loss"]))]
    assert [(row["step"], row["skipped"], float(row["losses.logged_loss"])) for row in hidden] == [
        ("20", "true", 0.0)
    ]
    assert [float(row["loss_scale"]) for row in rows][:21] == [2.0**16] * 20 + [2.0**15]


def prepared() -> Any:
    accelerator = ACCELERATE.accelerator(Situation())
    accelerator.prepare(Training(Situation()).model)
    return accelerator


def trained() -> Any:
    trainer = HUGGING_FACE.trainer(Training(Situation()), Path.cwd())
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("module", "call", "error", "words"),
    [
        ("accelerate", lambda at: at.watch(3), TypeError, "not int"),
        (
            "accelerate",
            lambda at: at.watch(ACCELERATE.accelerator(Situation()), precision="tf32"),
            ValueError,
            "TF32 needs an NVIDIA GPU",
        ),
        ("accelerate", lambda at: at.watch(prepared()), RuntimeError, "before accelerator.prepare"),
        ("huggingface", lambda at: at.watch(3), TypeError, "not int"),
        ("huggingface", lambda at: at.watch(trained()), RuntimeError, "before trainer.train"),
        ("fabric", lambda at: at.Precision("64-true"), ValueError, "64-true"),
        ("fabric", lambda at: at.Precision(amp="tf32"), ValueError, "tf32"),
        ("lightning", lambda at: at.PrecisionMonitor(amp="fp32"), ValueError, "fp32"),
    ],
)
def test_wrong_arguments_are_refused(
    module: str, call: Callable[[Any], object], error: type[Exception], words: str
) -> None:
    at = door(module)
    with pytest.raises(error, match=words):
        call(at)


# ------------------------------------------------------------------------------------ Accelerate


@pytest.fixture
def accelerate() -> Any:
    return door("accelerate")


@pytest.mark.parametrize("fused", [False, True])
def test_an_accelerators_own_scaler_is_continued_and_saved_as_its_own(
    fused: bool, accelerate: Any, runs: Path, tmp_path: Path
) -> None:
    situation = Situation({1: "fp16"}, fused=fused, clip_norm=0.5, schedules=True)

    def prepared() -> Any:
        accelerator = ACCELERATE.accelerator(situation, mixed_precision="fp16")
        as_on_a_gpu(accelerator)
        return accelerator

    bare, alone = Training(situation), prepared()
    ACCELERATE.loop(bare, alone)
    training, accelerator = Training(situation), prepared()
    with accelerate.watch(accelerator) as monitor:
        assert monitor.precision == "fp16"
        ACCELERATE.loop(training, accelerator, monitor)
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


def test_a_state_saved_without_amptui_has_the_first_scale(accelerate: Any, tmp_path: Path) -> None:
    training, alone = Training(Situation()), ACCELERATE.accelerator(Situation())
    ACCELERATE.loop(training, alone)
    alone.save_state(str(tmp_path))
    other, accelerator = Training(Situation()), ACCELERATE.accelerator(Situation())
    with accelerate.watch(accelerator) as monitor:
        accelerator.prepare(other.model, other.optimizer, other.scheduler)
        accelerator.load_state(str(tmp_path))
        assert monitor.amp.scaler.state_dict()["scale"] == 2.0**16
    assert other.digests()["weights"] == training.digests()["weights"]


@pytest.mark.parametrize("mixed_precision", ["no", "bf16", "fp16"])
def test_it_begins_in_the_accelerators_own_precision(
    mixed_precision: str, accelerate: Any, runs: Path
) -> None:
    situation = Situation()
    accelerator = ACCELERATE.accelerator(situation, mixed_precision=mixed_precision)
    # Where anything is compiled, samples are not counted.
    with nothing_compiled(), accelerate.watch(accelerator) as monitor:
        # On a CPU, Accelerate trains float32 when it is asked for fp16.
        assert monitor.precision == ("bf16" if mixed_precision == "bf16" else "fp32")
        ACCELERATE.loop(Training(situation), accelerator)  # without the monitor's steps()
        assert accelerator.scaler is None
    begun = only_run(runs)
    amp = "fp16" if mixed_precision == "fp16" else "bf16"
    assert begun.of("RunStarted")[0]["amp_precision"] == amp
    assert [(row["step"], row["samples"]) for row in begun.table()] == [
        (str(step), "" if step == 1 else "8") for step in range(1, STEPS + 1)
    ]


def test_the_loss_in_accelerators_autocast_follows_the_precision(accelerate: Any, runs: Path) -> None:
    training, accelerator = Training(Situation()), ACCELERATE.accelerator(Situation())
    asking, dtypes = Asking(runs, {1: [to("bf16")]}), []
    with accelerate.watch(accelerator):
        model, optimizer = accelerator.prepare(training.model, training.optimizer)
        for step, (inputs, labels) in zip((1, 2, 3), training.batches, strict=False):
            with accelerator.autocast():
                dtypes.append((inputs @ inputs.T).dtype)
                loss = nn.functional.cross_entropy(model(inputs), labels)
            asking(step)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    asking.close()
    assert dtypes == [torch.float32, torch.bfloat16, torch.bfloat16]


def test_a_second_optimizer_keeps_the_precision(
    accelerate: Any, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Training(Situation()), Training(Situation())
    accelerator, asking = ACCELERATE.accelerator(Situation()), Asking(runs, {2: [to("bf16")]})
    with accelerate.watch(accelerator) as monitor:
        accelerator.prepare(first.model, second.model, first.optimizer, second.optimizer)
        for step, batch in zip((1, 2, 3, 4), first.batches, strict=False):
            asking(step)
            for training in (first, second):
                accelerator.backward(training.loss(batch))
            for optimizer in accelerator._optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert monitor.precision == "fp32"
    asking.close()
    shown = only_run(runs)
    assert [line["reason"] for line in shown.of("RequestRefused")] == ["unavailable"]
    assert capsys.readouterr().err.count("several optimizers") == 1
    rows = shown.table()
    assert sorted(row["step"] for row in rows) == sorted("11223344")
    assert len({row["optimizer"] for row in rows}) == 2
    assert all(row["loss"] for row in rows)


def test_copies_of_a_prepared_model_are_models_of_their_own(accelerate: Any, tmp_path: Path) -> None:
    training, accelerator = Training(Situation()), ACCELERATE.accelerator(Situation())
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


# ---------------------------------------------------------------------------------- Hugging Face


@pytest.fixture
def huggingface() -> Any:
    return door("huggingface")


@pytest.mark.parametrize("options", [{"eval_strategy": "epoch"}, {"bf16": True, "logging_steps": 5}], ids=str)
def test_evaluations_two_trainings_and_their_logs_are_those_of_the_trainer(
    options: dict[str, Any], huggingface: Any, tmp_path: Path, runs: Path
) -> None:
    def train(trainer: Any) -> list[dict[str, float]]:
        for _ in range(2):
            trainer.evaluate()
            trainer.train()
        speeds = "_runtime", "_per_second", "_time"
        return [
            {name: value for name, value in entry.items() if not name.endswith(speeds)}
            for entry in trainer.state.log_history
        ]

    bare, ours = Training(Situation()), Training(Situation())
    expected = train(HUGGING_FACE.trainer(bare, tmp_path, **options))
    trainer = HUGGING_FACE.trainer(ours, tmp_path, **options)
    with huggingface.watch(trainer) as monitor:
        assert monitor.precision == ("bf16" if "bf16" in options else "fp32")
        assert train(trainer) == expected
    assert ours.digests() == bare.digests()
    shown = only_run(runs)
    assert [int(row["step"]) for row in shown.table()] == [*range(1, 2 * STEPS + 1)]
    between = [STEPS] if "bf16" in options else [8, 16, 24, 24, 32, 40, 48]
    assert [line["step"] for line in shown.of("Validated")] == between


def test_what_the_trainer_logs_and_evaluates_is_shown(huggingface: Any, tmp_path: Path, runs: Path) -> None:
    options = {"eval_strategy": "epoch", "logging_strategy": "epoch"}
    trainer = HUGGING_FACE.trainer(Training(Situation()), tmp_path, **options)
    trainer.compute_metrics = lambda prediction: {"accuracy": 0.25, "top5": len(prediction.label_ids) / 16}
    with huggingface.watch(trainer):
        trainer.train()
    shown = only_run(runs)
    validated = shown.of("Validated")
    assert [line["step"] for line in validated] == [8, 16, 24]
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [line["validation"]["loss"] for line in validated] == pytest.approx(
        [entry["eval_loss"] for entry in history]
    )
    assert {line["validation"]["accuracy"] for line in validated} == {0.25}
    assert {line["validation"]["metrics"]["top5"] for line in validated} == {0.5}
    mean = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    rows = shown.table()
    assert [float(rows[at]["losses.logged_loss"]) for at in (7, 15, 23)] == pytest.approx(mean)


# ------------------------------------------------------------------------------------- Lightning


def validating(training: Training, metrics: list[dict[str, Tensor]]) -> Any:
    """Logs and validates; ``metrics``: what Lightning makes of each validation."""

    class Validating(type(Lightning.module(training))):  # type: ignore[misc]
        def training_step(self, batch: Any, _: int) -> Tensor:
            loss = training.loss(batch)
            self.log("train_loss", loss, on_step=True, on_epoch=True)  # Lightning gives it a second name
            self.log("loss", loss)
            return loss

        def val_dataloader(self) -> Any:
            return DataLoader([next(iter(training.batches))], batch_size=None)  # type: ignore[arg-type]

        def validation_step(self, batch: Any, _: int) -> None:
            outputs = self.net(batch[0])
            self.log("val_loss", torch.nn.functional.cross_entropy(outputs, batch[1]))
            self.log("val_acc", (outputs.argmax(dim=1) == batch[1]).float().mean())
            self.log("top5", 1.0)

        def on_validation_end(self) -> None:
            metrics.append(dict(self.trainer.callback_metrics))

    return Validating()


def test_lengths_validations_and_logged_metrics_reach_the_screen(runs: Path) -> None:
    metrics: list[dict[str, Tensor]] = []
    options: dict[str, Any] = {"num_sanity_val_steps": 0, "max_steps": 20, "max_epochs": -1}
    module = lambda training: validating(training, metrics)  # noqa: E731
    _, shown = run(LIGHTNING, Training(Situation()), runs, {}, module=module, **options)
    (started,) = shown.of("RunStarted")
    assert (started["total_steps"], started["total_epochs"]) == (20, 0)
    rows = shown.table()
    assert rows[0]["losses.train_loss"]
    assert {name for row in rows for name in row if name.startswith("losses.")} == {"losses.train_loss"}
    validated = shown.of("Validated")
    assert [line["step"] for line in validated] == [8, 16]
    for line, of_lightning in zip(validated, metrics, strict=True):
        assert line["validation"]["loss"] == pytest.approx(float(of_lightning["val_loss"]))
        assert line["validation"]["accuracy"] == pytest.approx(float(of_lightning["val_acc"]))
        assert line["validation"]["metrics"] == {"top5": 1.0}


def test_after_the_fit_the_trainer_is_in_its_own_precision(runs: Path) -> None:
    monitor, asking = door("lightning").PrecisionMonitor(), Asking(runs, {5: [to("bf16")]})
    net = LIGHTNING.module(Training(Situation(), asking))
    trainer = LIGHTNING.trainer(Situation(), callbacks=[monitor])
    LIGHTNING.fit(trainer, net)
    asking.close()
    assert trainer.precision == "32-true"
    assert "_on_before_fetch" not in vars(trainer.fit_loop.epoch_loop)
    assert {row["precision"] for row in only_run(runs).table()} == {"fp32", "bf16"}
    LIGHTNING.fit(trainer, net)  # nothing is left to do: no run of its own fails
    assert len([path for path in runs.iterdir() if path.is_dir()]) == 1


def test_lbfgs_keeps_its_closure_and_cannot_run_in_fp16(runs: Path) -> None:
    bare, ours = (Training(Situation(closure=True)) for _ in range(2))
    _, shown = run(LIGHTNING, ours, runs, {3: [to("fp16")]})
    LIGHTNING.run(bare, runs.parent, None)
    assert ours.digests() == bare.digests()
    assert [line["reason"] for line in shown.of("RequestRefused")] == ["unavailable"]


STARTED_BY_THE_TRAINER = """
import lightning, sys, torch
from lightning.pytorch.demos.boring_classes import BoringModel
from amptui.lightning import PrecisionMonitor
if __name__ == "__main__":
    torch.set_num_threads(1)
    options = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    options |= {"accelerator": "cpu", "limit_train_batches": 8, "limit_val_batches": 0, "max_epochs": 1}
    trainer = lightning.Trainer(devices=2, strategy=sys.argv[1], callbacks=[PrecisionMonitor()], **options)
    trainer.fit(BoringModel())
"""


@pytest.mark.nightly  # two processes of Lightning's; ranks and Accelerate's two processes are in CI
@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork", "ddp_spawn"])
def test_processes_that_the_trainer_starts_have_one_run(strategy: str, tmp_path: Path, runs: Path) -> None:
    """Those that it forks or spawns open and end their run in themselves."""
    LIGHTNING.need()
    script = tmp_path / "train.py"
    script.write_text(STARTED_BY_THE_TRAINER)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), strategy]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert len(only_run(runs).of("RunFinished")) == 1


# ---------------------------------------------------------------------------------------- Fabric


def test_the_script_s_own_function_saves(runs: Path) -> None:
    saved: list[int] = []
    watch = {"save": lambda: saved.append(1)}
    _, shown = run(FABRIC, Training(Situation()), runs, {5: [CHECKPOINT]}, watch)
    assert saved == [1]
    assert [line["request"]["kind"] for line in shown.of("RequestTaken")] == ["checkpoint"]


def test_the_scalers_state_may_be_loaded_before_setup() -> None:
    plugin = door("fabric").Precision("16-mixed")
    state = torch.amp.GradScaler("cpu", growth_interval=5).state_dict()
    plugin.load_state_dict({**state, "scale": 4.0})
    FABRIC.loop(Training(Situation({1: "fp16"}, clip_norm=0.5)), plugin)
    plugin.monitor.close()
    assert plugin.state_dict()["scale"] < 65536.0
    assert plugin.state_dict()["growth_interval"] == 5


def test_two_optimizers_may_step_in_turn(runs: Path) -> None:
    plugin = door("fabric").Precision("16-mixed")
    from lightning.fabric import Fabric as RealFabric

    torch.manual_seed(0)
    models = [nn.Linear(4, 4) for _ in range(2)]
    fabric = RealFabric(accelerator="cpu", devices=1, plugins=[plugin])
    pairs = [fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in models]
    asking = Asking(runs, {3: [to("fp32")], 7: [to("fp16")]})
    for step in range(12):
        asking(step)
        for model, optimizer in pairs:
            fabric.backward(model(torch.ones(2, 4)).square().mean())
            gradients = [parameter.grad.abs().max() for parameter in model.parameters()]
            optimizer.step()
            scale = plugin.state_dict()["scale"] if plugin.precision == "16-mixed" else 1.0
            assert all(0 < gradient / scale < 10 for gradient in gradients)
            optimizer.zero_grad()
    asking.close()
    plugin.monitor.close()
    rows = only_run(runs).table()
    # A switch comes after a step of the first; the second's step of the same iteration runs in it already.
    for name, first in (("Linear", 4), ("Linear 2", 3)):
        expected = ["fp16"] * first + ["fp32"] * 4 + ["fp16"] * (8 - first)
        assert [row["precision"] for row in rows if row["optimizer"] == name] == expected
