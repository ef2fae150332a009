"""PrecisionMonitor in the real Lightning: the bits are those without it, and the numbers the true ones."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.control import (
    CheckpointRequest,
    ComparisonRequest,
    PrecisionRequest,
    Request,
    StopRequest,
    TraceRequest,
    XRayRequest,
)
from amptui.records.findings import ModulesTraced, PrecisionsCompared
from amptui.records.run import (
    EpochFinished,
    Note,
    PrecisionChanged,
    Record,
    RunFailed,
    RunFinished,
    RunStarted,
    Validated,
)
from amptui.records.steps import StepRecord
from tests.checkout import ROOT, child_environment
from tests.run_records import of
from tests.single_steps import read

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test are."""
    pytest.importorskip(
        "lightning", reason="needs lightning: pip install 'amptui[lightning]'", exc_type=ImportError
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "amptui" / "runs"


@pytest.fixture
def lit(runs: Path) -> Any:
    """The module of the trainings, which imports Lightning."""
    from tests import lightning_training

    return lightning_training


def records(runs: Path) -> list[Record]:
    """Those of the newest run."""
    run = max(runs.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return list(read(run / "journal.jsonl"))


def switching(switches: dict[int, str]) -> dict[int, list[Request]]:
    """The precision of a step is asked for at the end of the one before."""
    return {step - 1: [PrecisionRequest(name)] for step, name in switches.items() if step > 1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 3, "clip": 0.5, "schedule": True},
        {"accumulate": 2, "clip": 0.5, "fused": True},
    ],
    ids=str,
)
def test_switches_leave_the_bits_of_a_loop_that_switches_by_itself(
    options: dict[str, Any], lit: Any, runs: Path
) -> None:
    net_options = {key: options[key] for key in ("schedule", "fused") if key in options}
    accumulate, clip = options.get("accumulate", 1), options.get("clip")
    bare = lit.Handwritten(accumulate=accumulate, clip=clip, **net_options)
    expected = bare.train()

    monitor = lit.PrecisionMonitor()
    trainer = lit.build_trainer(
        monitor,
        switching(lit.SWITCHES),
        plugins=[lit.half()],
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
    )
    assert lit.fit(trainer, lit.Net(**net_options)) == expected
    assert trainer.precision_plugin.state_dict() == bare.scaler.state_dict()

    journal = records(runs)
    steps = of(StepRecord, journal)
    assert [record.step for record in steps] == list(range(1, 41))
    precision = ""
    for record in steps:
        precision = lit.SWITCHES.get(record.step, precision)
        assert record.precision == precision
    assert [record.loss for record in steps] == pytest.approx(bare.losses, rel=1e-6, nan_ok=True)
    assert [record.loss_scale for record in steps] == bare.scales
    assert [record.step for record in steps if record.skipped] == bare.skipped
    assert {record.samples for record in steps} == {lit.BATCH_SIZE * accumulate}
    assert all(record.data_seconds is not None for record in steps)
    changed = of(PrecisionChanged, journal)
    assert [(record.step, record.current) for record in changed] == list(lit.SWITCHES.items())[1:]


@pytest.mark.parametrize(
    "precision", [pytest.param(name, marks=pytest.mark.ci) for name in ("32-true", "bf16-mixed")] + ["half"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"fused": True}, marks=pytest.mark.ci),
        pytest.param(
            {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "schedule": True}, marks=pytest.mark.ci
        ),
    ],
    ids=str,
)
def test_a_fixed_precision_leaves_the_trainers_own_bits(
    precision: str, options: dict[str, Any], lit: Any
) -> None:
    options = dict(options)
    net_options = {key: options.pop(key) for key in ("schedule", "fused") if key in options}

    def chosen() -> dict[str, Any]:
        return {"plugins": [lit.half()]} if precision == "half" else {"precision": precision}

    bare = lit.build_trainer(**chosen(), **options)
    expected = lit.fit(bare, lit.Net(**net_options), validate=True)
    watched = lit.build_trainer(lit.PrecisionMonitor(), **chosen(), **options)
    assert lit.fit(watched, lit.Net(**net_options), validate=True) == expected
    assert watched.precision == bare.precision
    if precision == "half":
        assert watched.scaler.state_dict() == bare.scaler.state_dict()


def test_lengths_validations_and_logged_metrics_reach_the_screen(lit: Any, runs: Path) -> None:
    net = lit.Net()
    lit.fit(lit.build_trainer(lit.PrecisionMonitor(), accumulate_grad_batches=5), net, validate=True)
    journal = records(runs)
    (started,) = of(RunStarted, journal)
    assert (started.observed, started.precision, started.amp_precision) == (False, "fp32", "bf16")
    assert (started.steps_per_epoch, started.total_epochs, started.total_steps) == (10, 4, 40)
    assert [(record.step, record.epoch) for record in of(EpochFinished, journal)] == [
        (10, 1), (20, 2), (30, 3), (40, 4),
    ]  # fmt: skip
    steps = of(StepRecord, journal)
    logged = [record for record in steps if record.losses]
    assert logged[0] is steps[0]
    assert {name for record in logged for name in record.losses} == {"train_loss"}
    validated = of(Validated, journal)
    assert [record.step for record in validated] == [10, 20, 30, 40]
    last = validated[-1].validation
    assert last.loss == pytest.approx(float(net.trainer.callback_metrics["val_loss"]))
    assert last.accuracy == pytest.approx(float(net.trainer.callback_metrics["val_acc"]))
    assert last.metrics == {"top5": 1.0}
    assert of(RunFinished, journal)[0].reason == "done"


def test_the_length_is_that_of_max_steps(lit: Any, runs: Path) -> None:
    lit.fit(lit.build_trainer(lit.PrecisionMonitor(), max_steps=7, max_epochs=-1), lit.Net())
    (started,) = of(RunStarted, records(runs))
    assert (started.total_steps, started.total_epochs) == (7, 0)


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["32-true", "half"])
def test_a_checkpoint_resumes_with_and_without_the_callback(precision: str, lit: Any, runs: Path) -> None:
    def build(monitor: Any = None, requests: Any = None) -> Any:
        chosen = {"plugins": [lit.half()]} if precision == "half" else {"precision": precision}
        return lit.build_trainer(monitor, requests, **chosen)

    folder = runs.parent / "saved"
    monitor = lit.PrecisionMonitor(dirpath=folder)
    lit.fit(build(monitor, {10: [CheckpointRequest()]}), lit.Net(schedule=True))
    (answer,) = of(RequestTaken, records(runs))
    assert answer.request.kind == "checkpoint"
    (path,) = folder.iterdir()
    assert path.name == "epoch=0-step=10.ckpt"
    saved = torch.load(path, weights_only=False)
    assert saved["global_step"] == 10
    assert saved["MixedPrecision"]["scale"] > 0
    ends = []
    for resumed_by in (None, lit.PrecisionMonitor()):
        net, trainer = lit.Net(schedule=True), build(resumed_by)
        ends.append(lit.fit(trainer, net, ckpt_path=path))
        assert trainer.global_step == 40
    assert ends[0] == ends[1]
    steps = of(StepRecord, records(runs))
    assert [record.step for record in steps] == list(range(11, 41))
    assert {record.epoch for record in steps} == {2, 3, 4}


def test_a_checkpoint_in_fp32_holds_the_scalers_state(lit: Any, runs: Path) -> None:
    monitor = lit.PrecisionMonitor()
    requests = {12: [PrecisionRequest("fp32")], 15: [CheckpointRequest()]}
    trainer = lit.build_trainer(monitor, requests, plugins=[lit.half()])
    lit.fit(trainer, lit.Net())
    (path,) = next(runs.iterdir()).glob("*.ckpt")
    state = torch.load(path, weights_only=False)["MixedPrecision"]
    assert state["scale"] == 2.0**15  # two halvings, one growth, in twelve steps
    assert state["growth_interval"] == 5


def test_q_stops_and_what_cannot_be_run_again_is_refused(lit: Any, runs: Path) -> None:
    requests: dict[int, list[Request]] = {5: [XRayRequest(), TraceRequest()], 12: [StopRequest("q")]}
    trainer = lit.build_trainer(lit.PrecisionMonitor(), requests)
    lit.fit(trainer, lit.Net())
    assert trainer.global_step == 12
    journal = records(runs)
    assert [record.step for record in of(ModulesTraced, journal) if record.asked]
    assert [(r.request.kind, r.reason) for r in of(RequestRefused, journal)] == [("x-ray", "unavailable")]
    (finished,) = of(RunFinished, journal)
    assert (finished.steps, finished.reason) == (12, "stopped")


@pytest.mark.ci
def test_a_comparison_returns_to_the_precision_before(lit: Any, runs: Path) -> None:
    requests: dict[int, list[Request]] = {
        2: [ComparisonRequest(("fp32", "bf16"))],
        190: [ComparisonRequest()],
    }
    trainer = lit.build_trainer(lit.PrecisionMonitor(), requests, max_epochs=20)
    lit.fit(trainer, lit.Net())
    journal = records(runs)
    assert of(PrecisionsCompared, journal)[-1].rows[1].steps > 0
    assert {record.precision for record in of(StepRecord, journal)} == {"fp32", "bf16"}
    assert trainer.precision == "32-true"


def test_after_the_fit_the_trainer_is_in_its_own_precision(lit: Any, runs: Path) -> None:
    trainer = lit.build_trainer(lit.PrecisionMonitor(), {5: [PrecisionRequest("bf16")]}, precision="32-true")
    net = lit.Net()
    lit.fit(trainer, net)
    assert trainer.precision == "32-true"
    assert not hasattr(vars(trainer.fit_loop.epoch_loop), "_on_before_fetch")
    lit.fit(trainer, net)  # nothing is left to do: no run of its own fails
    assert {record.precision for record in of(StepRecord, records(runs))} == {"fp32", "bf16"}


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["manual", "64-true"])
def test_what_cannot_be_taken_over_is_observed(kind: str, lit: Any, runs: Path) -> None:
    def train(monitor: Any = None) -> list[Any]:
        requests: dict[int, list[Request]] = {4: [PrecisionRequest("bf16")]}
        precision = "64-true" if kind == "64-true" else "bf16-mixed"
        net = lit.Manual() if kind == "manual" else lit.Net()
        trainer = lit.build_trainer(monitor, requests, precision=precision)
        torch.set_default_dtype(torch.float32)
        result: list[Any] = lit.fit(trainer, net)
        assert type(trainer.precision_plugin).__module__.startswith("lightning")
        return result

    assert train(lit.PrecisionMonitor()) == train()
    journal = records(runs)
    (started,) = of(RunStarted, journal)
    assert started.observed
    assert [record.reason for record in of(RequestRefused, journal)] == ["unavailable"]
    (why,) = {record.detail for record in of(RequestRefused, journal)}
    assert any(why in record.text for record in of(Note, journal))
    assert len(of(StepRecord, journal)) == 40


def test_lbfgs_keeps_its_closure_and_cannot_run_in_fp16(lit: Any, runs: Path) -> None:
    requests: dict[int, list[Request]] = {3: [PrecisionRequest("fp16")]}
    bare = lit.fit(lit.build_trainer(max_epochs=1), lit.Lbfgs())
    assert lit.fit(lit.build_trainer(lit.PrecisionMonitor(), requests, max_epochs=1), lit.Lbfgs()) == bare
    assert [record.reason for record in of(RequestRefused, records(runs))] == ["unavailable"]


def test_an_error_of_the_scripts_own_passes_through(lit: Any, runs: Path) -> None:
    net = lit.Net()
    net.training_step = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        lit.fit(lit.build_trainer(lit.PrecisionMonitor()), net)
    (failed,) = of(RunFailed, records(runs))
    assert "ZeroDivisionError" in failed.error


PARTS = [f"{when}_{what}" for what in ("epoch", "validation") for when in ("begin", "end")]


@pytest.mark.ci
@pytest.mark.parametrize("hook", ["__init__", "_describe", "take_batch", "end_batch", *PARTS])
def test_a_fault_in_any_hook_is_one_line_and_the_training_goes_on(
    hook: str, lit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from amptui import lightning

    expected = lit.fit(lit.build_trainer(), lit.Net(), validate=True)

    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(lightning._FitRun, hook, broken)
    capsys.readouterr()
    assert lit.fit(lit.build_trainer(lit.PrecisionMonitor()), lit.Net(), validate=True) == expected
    complaints = [line for line in capsys.readouterr().err.splitlines() if line.startswith("amptui: ")]
    assert len(complaints) == 1
    assert "broken on purpose" in complaints[0]


def test_a_fault_in_setup_leaves_the_trainers_own_plugin(
    lit: Any, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    from amptui import lightning

    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(lightning, "SwitchedAmp", broken)
    trainer = lit.build_trainer(lit.PrecisionMonitor())
    assert lit.fit(trainer, lit.Net()) == lit.fit(lit.build_trainer(), lit.Net())
    assert type(trainer.precision_plugin).__qualname__ == "Precision"
    assert not runs.exists()


@pytest.mark.ci
def test_the_trainer_of_the_other_package_is_observed(lit: Any, runs: Path) -> None:
    other = pytest.importorskip("pytorch_lightning")

    class Net(other.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 4)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = other.Trainer(accelerator="cpu", max_epochs=1, callbacks=[lit.PrecisionMonitor()], **quiet)
    trainer.fit(Net(), lit.build_loader(1))
    journal = records(runs)
    assert any("pytorch_lightning" in record.text for record in of(Note, journal))
    assert len(of(StepRecord, journal)) == 10


TWO_PROCESSES = """
import torch
from tests.lightning_training import *
torch.set_num_threads(1)
ends = []
for callbacks in ([], [PrecisionMonitor()]):
    trainer = build_trainer(callbacks=callbacks, devices=2, strategy="ddp", precision="bf16-mixed")
    ends.append(fit(trainer, Net()))
assert ends[0] == ends[1]
print("rank", trainer.global_rank, "same")
"""


@pytest.mark.ci
def test_of_several_processes_only_rank_0_is_observed(tmp_path: Path, runs: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWO_PROCESSES)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("rank")[1:]) == [" 0 same\n", " 1 same\n"]
    (run,) = runs.iterdir()
    journal = list(read(run / "journal.jsonl"))
    (started,) = of(RunStarted, journal)
    assert started.observed
    assert len(of(StepRecord, journal)) == 20


@pytest.mark.ci
def test_the_demo_runs_without_a_screen(tmp_path: Path) -> None:
    folder, demo = tmp_path / "run", ROOT / "demo" / "lightning_toggle.py"
    command = [sys.executable, "-m", "amptui", "run", "--headless", "--run-dir", str(folder), str(demo), "1"]
    with child_environment() as added:
        env = {**os.environ, **added, "OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "trained 50 steps" in result.stdout
    journal = list(read(folder / "journal.jsonl"))
    assert len(of(StepRecord, journal)) == 50
    (validated,) = of(Validated, journal)
    assert validated.validation.accuracy > 0
