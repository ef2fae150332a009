"""PrecisionMonitor in the real Lightning and in Fabric: what is their own, beside tests/conformance."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.checkout import ROOT, child_environment
from tests.conformance.frameworks import Fabric, Lightning
from tests.conformance.recorded import Asking, Recorded, Request, only_run
from tests.conformance.situations import SITUATIONS, STEPS, STEPS_PER_EPOCH, Situation, Training

pytestmark = [
    pytest.mark.ci,  # importing Lightning takes seconds
    pytest.mark.filterwarnings("default"),  # Lightning's own
]

TO_BF16: Request = {"request": "precision", "precision": "bf16"}


@pytest.fixture(autouse=True)
def lit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of amptui's that imports Lightning."""
    LIGHTNING.need()
    monkeypatch.chdir(tmp_path)
    import amptui.lightning

    return amptui.lightning


LIGHTNING = Lightning()


def fit(
    runs: Path,
    situation: Situation,
    monitor: Any = None,
    requests: dict[int, list[Request]] | None = None,
    *,
    build: Any = Lightning.module,
    ckpt_path: Path | None = None,
    **options: Any,
) -> tuple[dict[str, str], Any]:
    """Train; what was left behind, and the Trainer."""
    asking = Asking(runs, requests or {})
    training = Training(situation, asking)
    callbacks = [] if monitor is None else [monitor]
    trainer = LIGHTNING.trainer(situation, callbacks=callbacks, **options)
    LIGHTNING.fit(trainer, build(training), ckpt_path=ckpt_path)
    asking.close()
    return training.digests(), trainer


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


def test_lengths_validations_and_logged_metrics_reach_the_screen(lit: Any, runs: Path) -> None:
    metrics: list[dict[str, Tensor]] = []
    build = partial(validating, metrics=metrics)
    fit(runs, Situation(), lit.PrecisionMonitor(), build=build, num_sanity_val_steps=0)
    run = only_run(runs)
    rows = run.table()
    assert rows[0]["losses.train_loss"]
    assert {name for row in rows for name in row if name.startswith("losses.")} == {"losses.train_loss"}
    validated = run.of("Validated")
    assert [line["step"] for line in validated] == [8, 16, 24]
    for line, of_lightning in zip(validated, metrics, strict=True):
        assert line["validation"]["loss"] == pytest.approx(float(of_lightning["val_loss"]))
        assert line["validation"]["accuracy"] == pytest.approx(float(of_lightning["val_acc"]))
        assert line["validation"]["metrics"] == {"top5": 1.0}


def test_the_length_is_that_of_max_steps(lit: Any, runs: Path) -> None:
    fit(runs, Situation(), lit.PrecisionMonitor(), max_steps=7, max_epochs=-1)
    (started,) = only_run(runs).of("RunStarted")
    assert (started["total_steps"], started["total_epochs"]) == (7, 0)


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_a_checkpoint_resumes_with_and_without_the_callback(name: str, lit: Any, runs: Path) -> None:
    """The situation in fp16 has a schedule, the other none."""
    situation, folder = SITUATIONS[name], runs.parent / "saved"
    requests: dict[int, list[Request]] = {STEPS_PER_EPOCH: [{"request": "checkpoint"}]}
    expected, _ = fit(runs, situation, lit.PrecisionMonitor(dirpath=folder), requests)
    (path,) = folder.iterdir()
    assert path.name == "epoch=0-step=8.ckpt"
    saved = torch.load(path, weights_only=False)
    assert saved["global_step"] == 8
    assert saved["MixedPrecision"]["scale"] > 0
    before = {*runs.iterdir()}
    for monitor in (None, lit.PrecisionMonitor()):
        left, trainer = fit(runs, situation, monitor, ckpt_path=path)
        assert {**left, "average": ""} == {**expected, "average": ""}  # which Lightning does not save
        assert trainer.global_step == STEPS
    (folder,) = {*runs.iterdir()} - before
    rows = Recorded(folder).table()
    assert [int(row["step"]) for row in rows] == list(range(9, STEPS + 1))
    assert {int(row["epoch"]) for row in rows} == {2, 3}


def test_a_checkpoint_in_fp32_holds_the_scalers_state(lit: Any, runs: Path) -> None:
    requests: dict[int, list[Request]] = {
        12: [{"request": "precision", "precision": "fp32"}],
        15: [{"request": "checkpoint"}],
    }
    fit(runs, SITUATIONS["fp16"], lit.PrecisionMonitor(), requests)
    (path,) = next(runs.iterdir()).glob("*.ckpt")
    state = torch.load(path, weights_only=False)["MixedPrecision"]
    assert state["scale"] == 2.0**12  # after four skipped steps


def test_after_the_fit_the_trainer_is_in_its_own_precision(lit: Any, runs: Path) -> None:
    monitor = lit.PrecisionMonitor()
    net = Lightning.module(Training(Situation(), Asking(runs, {5: [TO_BF16]})))
    trainer = LIGHTNING.trainer(Situation(), callbacks=[monitor])
    LIGHTNING.fit(trainer, net)
    assert trainer.precision == "32-true"
    assert not hasattr(vars(trainer.fit_loop.epoch_loop), "_on_before_fetch")
    assert {row["precision"] for row in only_run(runs).table()} == {"fp32", "bf16"}
    LIGHTNING.fit(trainer, net)  # nothing is left to do: no run of its own fails
    assert len([*runs.iterdir()]) == 1


def manual(training: Training) -> Any:
    """Steps two optimizers itself."""

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
    ("build", "precision"), [(manual, "bf16-mixed"), (Lightning.module, "64-true")], ids=["manual", "64-true"]
)
def test_what_cannot_be_taken_over_is_observed(build: Any, precision: str, lit: Any, runs: Path) -> None:
    ends = []
    for monitor in (None, lit.PrecisionMonitor()):
        requests: dict[int, list[Request]] = {4: [TO_BF16]} if monitor else {}
        ends.append(fit(runs, Situation(), monitor, requests, build=build, precision=precision))
        torch.set_default_dtype(torch.float32)
    assert ends[0][0] == ends[1][0]
    assert type(ends[1][1].precision_plugin).__module__.startswith("lightning")
    run = only_run(runs)
    assert run.of("RunStarted")[0]["observed"]
    (refused,) = run.of("RequestRefused")
    assert refused["reason"] == "unavailable"
    assert any(refused["detail"] in note["text"] for note in run.of("Note"))
    assert {int(row["step"]) for row in run.table()} == {*range(1, STEPS + 1)}


def test_lbfgs_keeps_its_closure_and_cannot_run_in_fp16(lit: Any, runs: Path) -> None:
    situation = Situation(closure=True)
    half: Request = {"request": "precision", "precision": "fp16"}
    ours, _ = fit(runs, situation, lit.PrecisionMonitor(), {3: [half]})
    assert ours == fit(runs, situation)[0]
    assert [line["reason"] for line in only_run(runs).of("RequestRefused")] == ["unavailable"]


def test_the_trainer_of_the_other_package_is_observed(lit: Any, runs: Path) -> None:
    other = pytest.importorskip("pytorch_lightning")
    from pytorch_lightning.demos.boring_classes import BoringModel

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    options = {"accelerator": "cpu", "limit_train_batches": 8, "limit_val_batches": 0, "max_epochs": 1}
    other.Trainer(callbacks=[lit.PrecisionMonitor()], **options, **quiet).fit(BoringModel())
    run = only_run(runs)
    assert any("pytorch_lightning" in note["text"] for note in run.of("Note"))
    assert len(run.table()) == 8


TWO_PROCESSES = """
import torch
from tests.conformance.frameworks import Fabric, Lightning
from tests.conformance.situations import SITUATIONS, Training
from amptui.lightning import PrecisionMonitor
torch.set_num_threads(1)
ends = []
for callbacks in ([], [PrecisionMonitor()]):
    training, situation = Training(SITUATIONS["bf16"]), SITUATIONS["bf16"]
    trainer = Lightning.trainer(situation, callbacks=callbacks, devices=2, strategy="ddp")
    Lightning.fit(trainer, Lightning.module(training))
    ends.append(training.digests())
assert ends[0] == ends[1]
print("rank", trainer.global_rank, "same")
"""


STARTED_BY_THE_TRAINER = """
import lightning, sys, torch
from lightning.pytorch.demos.boring_classes import BoringModel
from amptui.lightning import PrecisionMonitor
if __name__ == "__main__":
    torch.set_num_threads(1)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    options = {"accelerator": "cpu", "limit_train_batches": 8, "limit_val_batches": 0, "max_epochs": 1}
    callbacks = [PrecisionMonitor()]
    trainer = lightning.Trainer(devices=2, strategy=sys.argv[1], callbacks=callbacks, **options, **quiet)
    trainer.fit(BoringModel())
"""


@pytest.mark.nightly  # two processes of Lightning's; ranks and Accelerate's two processes are in CI
@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork", "ddp_spawn"])
def test_of_several_processes_only_rank_0_is_observed(strategy: str, tmp_path: Path, runs: Path) -> None:
    """Those that the Trainer forks or spawns open and end their run in themselves."""
    script = tmp_path / "train.py"
    script.write_text(TWO_PROCESSES if strategy == "ddp" else STARTED_BY_THE_TRAINER)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), strategy]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    run = only_run(runs)
    assert len(run.of("RunFinished")) == 1
    if strategy == "ddp":
        assert sorted(result.stdout.split("rank")[1:]) == [" 0 same\n", " 1 same\n"]
        assert run.of("RunStarted")[0]["observed"]
        assert len(run.table()) == STEPS


def test_the_demo_runs_without_a_screen(tmp_path: Path) -> None:
    folder, demo = tmp_path / "run", ROOT / "demo" / "lightning_toggle.py"
    command = [sys.executable, "-m", "amptui", "run", "--headless", "--run-dir", str(folder), str(demo), "1"]
    with child_environment() as added:
        env = {**os.environ, **added, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "trained 50 steps" in result.stdout
    run = Recorded(folder)
    assert len(run.table()) == 50
    assert run.of("Validated")[0]["validation"]["accuracy"] > 0


# --------------------------------------------------------------------------------------------- Fabric


def test_the_script_s_own_function_saves(runs: Path) -> None:
    saved: list[int] = []
    asking = Asking(runs, {5: [{"request": "checkpoint"}]})
    plugin = Fabric.plugin(save=lambda: saved.append(1))
    with plugin.monitor:
        Fabric.loop(Training(Situation(), asking), plugin)
    asking.close()
    assert saved == [1]
    assert [line["request"]["kind"] for line in only_run(runs).of("RequestTaken")] == ["checkpoint"]


def test_the_scalers_state_may_be_loaded_before_setup() -> None:
    plugin = Fabric.plugin("16-mixed")
    state = torch.amp.GradScaler("cpu", growth_interval=5).state_dict()
    plugin.load_state_dict({**state, "scale": 4.0})
    Fabric.loop(Training(SITUATIONS["fp16"]), plugin)
    plugin.monitor.close()
    assert plugin.state_dict()["scale"] < 65536.0
    assert plugin.state_dict()["growth_interval"] == 5


def test_two_optimizers_may_step_in_turn(runs: Path) -> None:
    from lightning.fabric import Fabric as RealFabric

    torch.manual_seed(0)
    models = [nn.Linear(4, 4) for _ in range(2)]
    plugin = Fabric.plugin("16-mixed")
    fabric = RealFabric(accelerator="cpu", devices=1, plugins=[plugin])
    pairs = [fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in models]
    requests: Any = {3: "fp32", 7: "fp16"}
    asking = Asking(runs, {at: [{"request": "precision", "precision": to}] for at, to in requests.items()})
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


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="64-true"):
        Fabric.plugin("64-true")
    with pytest.raises(ValueError, match="tf32"):
        Fabric.plugin(amp="tf32")
