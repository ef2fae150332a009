"""watch() switches the precision of a loop; the bits are those of a loop that does so by itself."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui import Monitor
from amptui.engine.float8 import why_no_float8
from amptui.guest.loop import script as watched_script
from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.control import (
    CheckpointRequest,
    ComparisonRequest,
    Control,
    PauseRequest,
    PrecisionRequest,
    StopRequest,
    XRayRequest,
)
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import (
    EpochFinished,
    Note,
    PauseChanged,
    PrecisionChanged,
    RunFinished,
    RunStarted,
    Validated,
)
from amptui.records.steps import StepRecord
from tests.own_loops import FORMS, STEPS, SWITCHES, Form, Own, ask, switching
from tests.run_records import of, records
from tests.single_steps import read


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"fused": True, "clip_norm": 0.5}, {"accumulate": 3}], ids=str)
def test_switches_leave_the_bits_of_a_loop_that_switches_by_itself(
    form: Form, options: dict[str, Any], runs: Path
) -> None:
    bare = Own(**options)
    expected = bare.state(bare.bare())
    own = Own(**options)
    with own.watch() as monitor:
        own.watched(monitor, form, before=switching(monitor, SWITCHES))
        state = own.state(monitor.scaler)
    assert state == expected
    steps = of(StepRecord, records(runs))
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    precision = "fp32"
    for record in steps:
        precision = SWITCHES.get(record.step, precision)
        assert record.precision == precision
        assert (record.loss_scale is not None) == (precision == "fp16")
    assert [record.loss for record in steps] == pytest.approx(bare.losses, rel=1e-6, nan_ok=True)
    assert [record.step for record in steps if record.skipped] == [14, 15, 40]
    assert {record.samples for record in steps} == {8 * options.get("accumulate", 1)}
    assert all(record.data_seconds is not None for record in steps)
    changed = of(PrecisionChanged, records(runs))
    assert [(record.step, record.current) for record in changed] == list(SWITCHES.items())[1:]
    answers = [record.request.precision for record in of(RequestTaken, records(runs))]
    assert answers == list(SWITCHES.values())[1:]


@pytest.mark.parametrize("form", FORMS)
def test_parameters_that_are_added_later_are_clipped_too(form: Form) -> None:
    def added(own: Own) -> None:
        own.optimizer.add_param_group({"params": own.model.get_submodule("3").parameters()})

    def fresh() -> Own:
        own = Own(clip_norm=0.01)
        own.optimizer = torch.optim.SGD(own.model.get_submodule("0").parameters(), lr=0.1)
        return own

    bare = fresh()
    added(bare)
    expected = bare.state(bare.bare(5))
    own = fresh()
    with own.watch() as monitor:
        added(own)
        own.watched(monitor, form, 5)
        assert own.state(monitor.scaler) == expected


def test_the_run_is_described_with_its_length_and_its_amp(runs: Path) -> None:
    own = Own()
    with own.watch(precision="bf16") as monitor:
        for _ in monitor.epochs(3):
            own.watched(monitor, "monitor", 4)
            with monitor.validation():
                monitor.log(accuracy=torch.tensor(0.5), top5=0.75)
    journal = records(runs)
    (started,) = of(RunStarted, journal)
    assert (started.observed, started.precision, started.amp_precision) == (False, "bf16", "bf16")
    assert (started.steps_per_epoch, started.total_epochs, started.total_steps) == (4, 3, 12)
    assert started.growth_interval == 8
    assert set(started.unsupported) == {"tf32", *why_no_float8(torch.device("cpu"))}
    assert [record.step for record in of(EpochFinished, journal)] == [4, 8, 12]
    validated = of(Validated, journal)
    assert [record.step for record in validated] == [4, 8, 12]
    assert {record.validation.accuracy for record in validated} == {0.5}
    assert {record.validation.metrics["top5"] for record in validated} == {0.75}


def test_a_validation_that_raises_ends_there_and_later_steps_log_again(runs: Path) -> None:
    own = Own()

    def validate(monitor: Monitor) -> None:
        with monitor.validation():
            monitor.log(accuracy=0.5)
            raise ValueError("my own")

    with own.watch() as monitor:
        own.watched(monitor, "monitor", 1)
        monitor.log(before=1.0)
        with pytest.raises(ValueError, match="my own"):
            validate(monitor)
        own.watched(monitor, "monitor", 1)
        monitor.log(after=1.0)
    journal = records(runs)
    assert [record.validation.accuracy for record in of(Validated, journal)] == [0.5]
    assert [record.losses for record in of(StepRecord, journal)] == [{"before": 1.0}, {"after": 1.0}]


@pytest.mark.parametrize("form", FORMS)
def test_a_comparison_alternates_and_returns_to_the_precision_before(form: Form, runs: Path) -> None:
    own = Own()
    with own.watch() as monitor:

        def before(step: int) -> None:
            if step == 2:
                ask(monitor, ComparisonRequest(("fp32", "bf16")))
            if step == 200:
                ask(monitor, ComparisonRequest())

        own.watched(monitor, form, 210, before)
        assert monitor.precision == "fp32"
    journal = records(runs)
    assert of(PrecisionsCompared, journal)[-1].rows[1].steps > 0
    assert {record.precision for record in of(StepRecord, journal)} == {"fp32", "bf16"}


def test_a_pause_holds_the_loop_between_two_steps_until_a_screen_resumes_it(
    monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    own, paused, wait = Own(), threading.Event(), Control.wait

    def waiting(control: Control) -> None:
        paused.set()
        wait(control)

    monkeypatch.setattr(Control, "wait", waiting)
    with own.watch() as monitor:

        def resume() -> None:
            paused.wait()
            ask(monitor, PrecisionRequest("bf16"))
            ask(monitor, PauseRequest(paused=False))

        thread = threading.Thread(target=resume)
        thread.start()

        def before(step: int) -> None:
            if step == 5:
                ask(monitor, PauseRequest(paused=True))

        own.watched(monitor, "scaler", 10, before)
        thread.join()
    journal = records(runs)
    assert [(record.step, record.paused) for record in of(PauseChanged, journal)] == [(5, True), (5, False)]
    assert [record.step for record in of(PrecisionChanged, journal)] == [6]


@pytest.mark.parametrize("form", FORMS)
def test_a_stop_ends_the_loop_after_the_step(form: Form, runs: Path) -> None:
    own = Own()
    with own.watch() as monitor:
        own.watched(monitor, form, 50, lambda step: ask(monitor, StopRequest("q")) if step == 7 else None)
    (finished,) = of(RunFinished, records(runs))
    assert (finished.steps, finished.reason) == (7, "stopped")


def test_a_stop_is_refused_where_the_loop_never_asks(runs: Path) -> None:
    own = Own()
    with own.watch() as monitor:
        ask(monitor, StopRequest("q"))
        with monitor.autocast():
            loss = own.loss(next(own.loader(1)))
        monitor.backward(loss)
        monitor.step()
    assert [record.reason for record in of(RequestRefused, records(runs))] == ["unavailable"]


@pytest.mark.parametrize("form", ["monitor", "scaler"])
def test_an_xray_and_a_checkpoint_are_refused_with_the_reason_where_they_cannot_be_had(
    form: Form, runs: Path
) -> None:
    own = Own()
    with own.watch() as monitor:

        def before(step: int) -> None:
            if step == 3:
                ask(monitor, XRayRequest())
                ask(monitor, CheckpointRequest())

        own.watched(monitor, form, 5, before)
    refused = of(RequestRefused, records(runs))
    assert {record.request.kind: record.detail for record in refused} == {
        "x-ray": watched_script.NO_CLOSURE,
        "checkpoint": watched_script.NO_SAVE,
    }


def test_the_scripts_own_function_saves(runs: Path) -> None:
    own, saved = Own(), []
    with own.watch(save=lambda: saved.append(int(own.optimizer.state_dict()["state"][0]["step"]))) as monitor:
        own.watched(
            monitor, "scaler", 6, lambda step: ask(monitor, CheckpointRequest()) if step == 3 else None
        )
    assert saved == [3]
    assert [record.request.kind for record in of(RequestTaken, records(runs))] == ["checkpoint"]


def test_a_save_that_fails_ends_no_training(runs: Path) -> None:
    own = Own()

    def full() -> None:
        raise OSError(28, "No space left on device")

    with own.watch(save=full) as monitor:
        own.watched(
            monitor, "scaler", 6, lambda step: ask(monitor, CheckpointRequest()) if step == 3 else None
        )
    (refused,) = of(RequestRefused, records(runs))
    assert refused.reason == "failed"
    assert "No space left" in refused.detail
    assert len(of(StepRecord, records(runs))) == 6


def test_a_closure_that_fails_in_a_new_precision_runs_in_the_one_before(runs: Path) -> None:
    bare = Own()
    with bare.watch() as monitor:
        bare.watched(monitor, "closure", 10)
        expected = bare.state(monitor.scaler)
    first, own = set(runs.iterdir()), Own()

    def fails_in_bf16(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(own.model(batch[0]), batch[1])
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError('"some_kernel" not implemented for BFloat16')
        return loss

    own.loss = fails_in_bf16  # type: ignore[method-assign]
    with own.watch() as monitor:
        own.watched(
            monitor, "closure", 10, lambda step: ask(monitor, PrecisionRequest("bf16")) if step == 4 else None
        )
        assert monitor.precision == "fp32"
        assert own.state(monitor.scaler) == expected
    (run,) = set(runs.iterdir()) - first
    journal = list(read(run / "journal.jsonl"))
    assert [record.reason for record in of(RequestRefused, journal)] == ["failed"]
    steps = of(StepRecord, journal)
    assert [record.step for record in steps] == list(range(1, 11))
    assert {record.precision for record in steps} == {"fp32"}


def test_an_error_of_the_scripts_own_passes_through(runs: Path) -> None:
    own = Own()

    def broken() -> Tensor:
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"), own.watch() as monitor:
        monitor.train_step(broken)
    assert records(runs)


def test_an_autocast_of_the_scripts_own_is_told(runs: Path) -> None:
    own = Own()
    with own.watch() as monitor:
        for batch in monitor.steps(list(own.loader(3))):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = own.loss(batch)
            monitor.backward(loss)
            monitor.step()
    warnings = [record for record in of(Note, records(runs)) if record.severity == "warning"]
    assert len(warnings) == 1
    assert re.search(r"\bfp32\b.*\bbf16\b", warnings[0].text)
    assert {record.precision for record in of(StepRecord, records(runs))} == {"bf16"}


def test_the_scaler_keeps_its_state_in_every_precision() -> None:
    own = Own()
    with own.watch(precision="fp16") as monitor:
        own.watched(monitor, "scaler", 6)
        state = monitor.scaler.state_dict()
        ask(monitor, PrecisionRequest("fp32"))
        own.watched(monitor, "scaler", 2)
        assert monitor.precision == "fp32"
        assert not monitor.scaler.is_enabled()
        assert monitor.scaler.state_dict() == {**state, "_growth_tracker": state["_growth_tracker"] + 1}
        monitor.scaler.load_state_dict({**state, "scale": 32.0})
        assert monitor.scaler.state_dict()["scale"] == 32.0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"precision": "fp4"}, "no precision 'fp4'"),
        ({"precision": "tf32"}, "TF32 needs an NVIDIA GPU"),
        ({"amp": "tf32"}, "TF32 needs an NVIDIA GPU"),
    ],
)
def test_wrong_precisions_are_refused(options: dict[str, Any], error: str) -> None:
    own = Own()
    with pytest.raises(ValueError, match=error):
        amptui.watch(own.model, own.optimizer, **options)


def test_a_disabled_scaler_is_refused() -> None:
    own = Own()
    with pytest.raises(ValueError, match="disabled"):
        amptui.watch(own.model, own.optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False))


def test_torchs_flags_are_as_before_when_it_closes() -> None:
    own, before = Own(), torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    with own.watch() as monitor:
        own.watched(
            monitor, "scaler", 6, lambda step: ask(monitor, PrecisionRequest("ieee")) if step == 3 else None
        )
        assert monitor.precision == "ieee"
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]
