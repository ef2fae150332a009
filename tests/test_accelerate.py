"""amptui.accelerate.watch() switches what Accelerate trains; the bits are those of a handwritten loop."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("accelerate")

import amptui
import amptui.accelerate
from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.control import CheckpointRequest, PrecisionRequest, StopRequest, XRayRequest
from amptui.records.own_loop import OptimizerFollowed
from amptui.records.run import EpochFinished, Note, PrecisionChanged, RunFinished, RunStarted
from amptui.records.steps import StepRecord
from tests.accelerated import OVERFLOWS, Loop, new_accelerator, new_fp16_accelerator, saved, scaler_state
from tests.own_loops import STEPS, SWITCHES, ask, switching
from tests.run_records import of, records


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "amptui" / "runs"


LOOPS: list[dict[str, Any]] = [{}, {"fused": True, "clip_norm": 0.5}, {"accumulate": 3, "clip_norm": 0.5}]


@pytest.mark.parametrize(
    ("mixed_precision", "options"), [("no", LOOPS[0]), ("bf16", LOOPS[2]), ("fp16", LOOPS[1])], ids=str
)
def test_a_fixed_precision_leaves_the_bits_of_accelerate(
    mixed_precision: str, options: dict[str, Any], runs: Path
) -> None:
    accumulate = {"gradient_accumulation_steps": options.get("accumulate", 1)}
    bare = Loop(**options)
    bare.accelerated(new_accelerator(mixed_precision=mixed_precision, **accumulate), 20)
    own = Loop(**options)
    accelerator = new_accelerator(mixed_precision=mixed_precision, **accumulate)
    with amptui.accelerate.watch(accelerator) as monitor:
        own.accelerated(accelerator, 20)
        # On a CPU, Accelerate trains float32 when it is asked for fp16.
        assert monitor.precision == ("bf16" if mixed_precision == "bf16" else "fp32")
        assert accelerator.scaler is None
    assert own.bits() == bare.bits()
    assert len(of(StepRecord, records(runs))) == 20
    (started,) = of(RunStarted, records(runs))
    assert started.amp_precision == ("fp16" if mixed_precision == "fp16" else "bf16")
    assert not started.observed


@pytest.mark.parametrize("options", [LOOPS[0], LOOPS[1]], ids=str)
def test_an_accelerators_own_scaler_is_continued_and_saved_as_its_own(
    options: dict[str, Any], runs: Path, tmp_path: Path
) -> None:
    bare, alone = Loop(**options), new_fp16_accelerator()
    bare.accelerated(alone, 20)
    own, accelerator = Loop(**options), new_fp16_accelerator()
    with amptui.accelerate.watch(accelerator) as monitor:
        assert monitor.precision == "fp16"
        own.accelerated(accelerator, 20)
        accelerator.save_state(str(tmp_path / "saved"))
        assert accelerator.optimizer_step_was_skipped == alone.optimizer_step_was_skipped
    assert own.bits() == bare.bits()
    assert accelerator.scaler.state_dict() == alone.scaler.state_dict()
    steps = of(StepRecord, records(runs))
    assert [record.step for record in steps if record.skipped] == [14, 15]
    assert steps[0].loss_scale == 2.0**12
    again = new_fp16_accelerator()
    other = Loop(**options)
    again.prepare(other.model, other.optimizer, other.scheduler)
    again.load_state(str(tmp_path / "saved"))
    assert again.scaler.state_dict() == alone.scaler.state_dict()


@pytest.mark.parametrize(
    ("with_steps", "options"), [(False, LOOPS[0]), (True, LOOPS[1]), (False, LOOPS[2])], ids=str
)
def test_switches_leave_the_bits_of_a_handwritten_loop(
    options: dict[str, Any], with_steps: bool, runs: Path
) -> None:
    bare = Loop(**options)
    scaler = bare.handwritten()
    own = Loop(**options)
    accelerator = new_accelerator(gradient_accumulation_steps=own.accumulate)
    with amptui.accelerate.watch(accelerator) as monitor:
        through = monitor.steps if with_steps else iter
        own.accelerated(accelerator, during=switching(monitor, SWITCHES), through=through)
        assert own.bits() == bare.bits()
        assert scaler_state(monitor._amp) == scaler.state_dict()
    journal = records(runs)
    steps = of(StepRecord, journal)
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    assert [record.loss for record in steps] == pytest.approx(bare.losses, rel=1e-6, nan_ok=True)
    assert [record.step for record in steps if record.skipped] == bare.skips == list(OVERFLOWS)
    assert [record.loss_scale for record in steps if record.loss_scale is not None] == bare.scales
    changed = of(PrecisionChanged, journal)
    assert [(record.step, record.current) for record in changed] == list(SWITCHES.items())[1:]
    assert {record.samples for record in steps} == {8 * own.accumulate if with_steps else 0}


def test_epochs_and_their_length_are_known_from_the_loops(runs: Path) -> None:
    own, accelerator = Loop(accumulate=2), new_accelerator(gradient_accumulation_steps=2)
    with amptui.accelerate.watch(accelerator) as monitor:
        model, optimizer = accelerator.prepare(own.model, own.optimizer)
        for _ in monitor.epochs(3):
            for inputs, labels in monitor.steps(list(own.loader(4))):
                with accelerator.accumulate(model):
                    accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
                    optimizer.step()
                    optimizer.zero_grad()
    (started,) = of(RunStarted, records(runs))
    assert (started.steps_per_epoch, started.total_epochs, started.total_steps) == (4, 3, 12)
    assert [record.step for record in of(EpochFinished, records(runs))] == [4, 8, 12]


def test_the_loss_in_accelerators_autocast_follows_the_precision() -> None:
    own, accelerator = Loop(), new_accelerator()
    with amptui.accelerate.watch(accelerator) as monitor:
        model, optimizer = accelerator.prepare(own.model, own.optimizer)
        dtypes = []
        for step, (inputs, labels) in enumerate(own.loader(3), 1):
            with accelerator.autocast():
                dtypes.append((inputs @ inputs.T).dtype)
                loss = nn.functional.cross_entropy(model(inputs), labels)
            if step == 1:
                ask(monitor, PrecisionRequest("bf16"))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert dtypes == [torch.float32, torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("with_steps", [False, True])
def test_a_saved_state_continues_with_the_scale_in_any_precision(with_steps: bool, tmp_path: Path) -> None:
    own, accelerator = Loop(), new_accelerator()
    with amptui.accelerate.watch(accelerator, save_dir="saved") as monitor:

        def during(step: int) -> None:
            if step == 5:
                ask(monitor, PrecisionRequest("fp16"))
            if step == 16:
                ask(monitor, PrecisionRequest("fp32"))
            if step == 20:
                ask(monitor, CheckpointRequest())

        own.accelerated(accelerator, 20, during=during, through=monitor.steps if with_steps else iter)
        # Without steps(), the step is over when the next one begins.
        if not with_steps:
            accelerator._models[0](torch.zeros(1, 16))
        expected = scaler_state(monitor._amp)
        bits = own.bits()
    assert expected["scale"] == 2.0**14
    assert saved(tmp_path / "saved") == ["step-20"]

    def resumed(accelerator: Any) -> Loop:
        own = Loop()
        accelerator.prepare(own.model, own.optimizer, own.scheduler)
        accelerator.load_state(str(tmp_path / "saved" / "step-20"))
        return own

    again = new_accelerator()
    with amptui.accelerate.watch(again, precision="fp16") as monitor:
        assert resumed(again).bits()[:-2] == bits[:-2]
        assert scaler_state(monitor._amp) == expected
        again.save_state(str(tmp_path / "other"))
    # What was saved with amptui is loaded without it, and the other way round.
    alone = new_accelerator()
    assert resumed(alone).bits()[:-2] == bits[:-2]
    alone.save_state(str(tmp_path / "alone"))
    third = new_accelerator()
    with amptui.accelerate.watch(third) as monitor:
        other = Loop()
        third.prepare(other.model, other.optimizer, other.scheduler)
        third.load_state(str(tmp_path / "alone"))
        assert other.bits()[:-2] == bits[:-2]
        assert scaler_state(monitor._amp)["scale"] == 2.0**16


def test_a_stop_ends_the_steps_and_an_xray_is_refused(runs: Path) -> None:
    own, accelerator = Loop(), new_accelerator()

    def during(step: int) -> None:
        if step == 4:
            ask(monitor, XRayRequest())
        if step == 7:
            ask(monitor, StopRequest("q"))

    with amptui.accelerate.watch(accelerator) as monitor:
        own.accelerated(accelerator, 50, through=monitor.steps, during=during)
    journal = records(runs)
    (finished,) = of(RunFinished, journal)
    assert (finished.steps, finished.reason) == (7, "stopped")
    assert [record.reason for record in of(RequestRefused, journal)] == ["unavailable"]


def test_weights_of_another_type_are_only_observed(runs: Path) -> None:
    def train(accelerator: Any, before: Any = lambda _step: None) -> list[Any]:
        own = Loop()
        own.model.to(torch.bfloat16)
        own.optimizer = torch.optim.AdamW(own.model.parameters())
        model, optimizer = accelerator.prepare(own.model, own.optimizer)
        for step, (inputs, labels) in enumerate(own.loader(6), 1):
            before(step)
            loss = nn.functional.cross_entropy(model(inputs.bfloat16()), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.tolist() for parameter in own.model.parameters()]

    expected = train(new_accelerator())
    accelerator = new_accelerator()
    with amptui.accelerate.watch(accelerator) as monitor:
        weights = train(
            accelerator, lambda step: ask(monitor, PrecisionRequest("fp16")) if step == 3 else None
        )
    assert weights == expected
    written = records(runs)
    (note,) = of(Note, written)
    assert "bfloat16, not float32" in note.text
    (refused,) = of(RequestRefused, written)
    assert refused.detail == note.text
    (started,) = of(RunStarted, written)
    assert started.observed


def test_a_second_optimizer_keeps_the_precision(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, accelerator = Loop(), Loop(), new_accelerator()
    with amptui.accelerate.watch(accelerator) as monitor:
        accelerator.prepare(first.model, second.model, first.optimizer, second.optimizer)
        for step, (inputs, labels) in enumerate(first.loader(4), 1):
            if step == 2:
                ask(monitor, PrecisionRequest("bf16"))
            for loop in (first, second):
                accelerator.backward(nn.functional.cross_entropy(loop.model(inputs), labels))
            for optimizer in accelerator._optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert monitor.precision == "fp32"
    written = records(runs)
    assert [record.reason for record in of(RequestRefused, written)] == ["unavailable"]
    assert capsys.readouterr().err.count("several optimizers") == 1
    names = {record.optimizer for record in of(OptimizerFollowed, written)}
    assert len(names) == 2
    for name in names:
        steps = [record for record in of(StepRecord, written) if record.optimizer == name]
        assert [record.step for record in steps] == [1, 2, 3, 4]
        assert None not in {record.loss for record in steps}


def test_an_optimizer_that_calls_its_closure_again_takes_no_scaler(runs: Path) -> None:
    own, accelerator = Loop(), new_accelerator()
    with amptui.accelerate.watch(accelerator) as monitor:
        model, optimizer = accelerator.prepare(own.model, torch.optim.LBFGS(own.model.parameters()))
        for step, (inputs, labels) in enumerate(own.loader(3), 1):

            def closure(inputs: torch.Tensor = inputs, labels: torch.Tensor = labels) -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                return loss

            if step == 2:
                ask(monitor, PrecisionRequest("fp16"))
            optimizer.step(closure)
    journal = records(runs)
    assert [record.reason for record in of(RequestRefused, journal)] == ["unavailable"]
    assert [record.step for record in of(StepRecord, journal)] == [1, 2, 3]


def test_copies_of_a_prepared_model_are_models_of_their_own(tmp_path: Path) -> None:
    own, accelerator = Loop(), new_accelerator()
    with amptui.accelerate.watch(accelerator):
        model = accelerator.prepare(own.model)
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


def test_a_run_that_cannot_open_costs_the_training_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    bare = Loop(clip_norm=0.5)
    bare.accelerated(new_accelerator(mixed_precision="bf16"), 10)
    own, accelerator = Loop(clip_norm=0.5), new_accelerator(mixed_precision="bf16")
    with amptui.accelerate.watch(accelerator) as monitor:
        own.accelerated(accelerator, 10, through=monitor.steps)
    assert own.bits() == bare.bits()
    assert capsys.readouterr().err.count("\n") == 1


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        amptui.accelerate.watch(3)
    with pytest.raises(ValueError, match="TF32 needs an NVIDIA GPU"):
        amptui.accelerate.watch(new_accelerator(), precision="tf32")
    accelerator = new_accelerator()
    accelerator.prepare(Loop().model)
    with pytest.raises(RuntimeError, match=r"before accelerator\.prepare"):
        amptui.accelerate.watch(accelerator)


@pytest.mark.ci
def test_a_compiled_model_switches() -> None:
    bare = Loop(clip_norm=0.5)
    scaler = bare.handwritten(steps=20)
    own, accelerator = Loop(clip_norm=0.5), new_accelerator(dynamo_backend="eager")
    with amptui.accelerate.watch(accelerator) as monitor:
        own.accelerated(accelerator, 20, during=switching(monitor, SWITCHES))
        assert own.bits() == bare.bits()
        assert scaler_state(monitor._amp) == scaler.state_dict()


_TWO = """
import sys
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
"""


@pytest.mark.ci
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
    journal = records(runs)
    assert len(of(StepRecord, journal)) == 10
    assert {record.precision for record in of(StepRecord, journal)} == {"bf16"}
    assert any("2 processes" in note.text for note in of(Note, journal))


def test_requests_are_answered_in_the_step_they_are_made_in(runs: Path) -> None:
    own, accelerator = Loop(), new_accelerator()
    with amptui.accelerate.watch(accelerator) as monitor:
        own.accelerated(accelerator, 6, during=switching(monitor, {4: "fp16"}))
    (answer,) = of(RequestTaken, records(runs))
    assert answer.step == 3
