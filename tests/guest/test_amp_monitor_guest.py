"""A watched loop is its script's: a fault of ours ends only the watching, and nothing stays changed."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.engine.precision_switch import PrecisionSwitch
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.probes.module_trace import ModuleTrace
from amptui.engine.probes.schedule import Probes
from amptui.guest import run as guest_run
from amptui.guest.loop import switched_optimizer
from amptui.records.answers import RequestRefused
from amptui.records.control import CheckpointRequest, PauseRequest, PrecisionRequest, TraceRequest
from amptui.records.run import Note
from tests.builders import of, read
from tests.builders import recorded as records
from tests.own_loops import Asks, Form, Own, ask

_FAULTS: dict[str, tuple[Any, str]] = {
    "switch": (PrecisionSwitch, "between_steps"),
    "step count": (PrecisionSwitch, "begin_step"),
    "confirmation": (PrecisionSwitch, "_succeed"),
    "end": (PrecisionSwitch, "finish"),
    "look": (Probes, "between_steps"),
    "trace": (ModuleTrace, "__enter__"),
    "attempt": (switched_optimizer.SwitchedOptimizer, "_forget_step_again"),
    "precision of an attempt": (switched_optimizer.SwitchedOptimizer, "_follow_switch"),
    "forward pass": (switched_optimizer.SwitchedOptimizer, "forward_begins"),
    "backward pass": (Probes, "after_backward"),
    "gradients": (GradientProbe, "measure"),
    "report": (PrecisionSwitch, "take"),
    "first step": (guest_run, "describe"),
}


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("on purpose")


_TOLD_IN_JOURNAL = {"gradients", "end"}
"""Faults after which the loop is watched on, and what comes last."""

_CLOSURE_ONLY = {"attempt"}
"""Faults that other loops cannot meet."""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("place", "form"),
    [
        (fault, "closure" if fault in _CLOSURE_ONLY or number % 2 else "scaler")
        for number, fault in enumerate(_FAULTS)
    ],
)
def test_a_fault_anywhere_costs_one_line_and_the_loop_goes_on(
    place: str, form: Form, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: Path
) -> None:
    bare = Own(clip_norm=0.5)
    with bare.watch() as monitor:
        bare.watched(monitor, form, 12)
        expected = bare.state(monitor.scaler)
    capsys.readouterr()
    first, own = set(runs.iterdir()), Own(clip_norm=0.5)
    asks: Asks = {3: TraceRequest(), 5: PrecisionRequest("bf16")}
    with monkeypatch.context() as patch, own.watch() as monitor:
        patch.setattr(*_FAULTS[place], _fail)
        own.watched(monitor, form, 12, asks=asks if place in ("trace", "confirmation") else {})
        if place != "confirmation":  # there the switch came first
            assert own.state(monitor.scaler) == expected
        assert all(torch.isfinite(parameter).all() for parameter in own.model.parameters())
    lines = [line for line in capsys.readouterr().err.splitlines() if "amptui attach" not in line]
    assert len(lines) == (place not in _TOLD_IN_JOURNAL), lines
    (run,) = set(runs.iterdir()) - first
    notes = [record.text for record in read(run / "journal.jsonl") if isinstance(record, Note)]
    assert any("on purpose" in text for text in notes)


@pytest.mark.parametrize("form", ["scaler", "closure"])
def test_a_fault_refuses_what_was_asked_and_what_is_asked_afterwards(
    form: Form, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    own = Own()
    with monkeypatch.context() as patch, own.watch() as monitor:

        def before(step: int) -> None:
            if step == 3:
                ask(monitor, TraceRequest())
            if step == 4:  # the trace is being made
                patch.setattr(PrecisionSwitch, "begin_step", _fail)
                ask(monitor, PauseRequest(paused=True))
            if step == 5:
                assert monitor._run is not None
                assert isinstance(monitor._run.first, switched_optimizer.SwitchedOptimizer)
                ask(monitor, PrecisionRequest("bf16"))
                monitor._run.first.control.ask(CheckpointRequest())  # it came just before the loop knew

        own.watched(monitor, form, 6, before)
    refused = of(RequestRefused, records(runs))
    assert {record.request.kind for record in refused} == {"trace", "pause", "precision", "checkpoint"}
    assert {record.detail for record in refused} == {guest_run.NO_LONGER_WATCHED}
    assert len(refused) == 4


def test_copies_and_pickles_of_the_scaler_are_scalers_of_their_own() -> None:
    own = Own()
    with own.watch(precision="fp16") as monitor:
        own.watched(monitor, "scaler", 3)
        state = monitor.scaler.state_dict()
        copies = [
            copy.deepcopy(monitor.scaler),
            pickle.loads(pickle.dumps(monitor.scaler)),  # noqa: S301 - our own
        ]
        for model in copies:
            assert model.state_dict() == state
            assert getattr(model.step, "__self__", None) is model
        fresh = torch.amp.GradScaler("cpu")
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
