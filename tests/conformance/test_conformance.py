"""Whoever watches a script's loop: the weights are those of a loop by hand, and so are the numbers shown."""

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.frameworks import FRAMEWORKS, HuggingFace, Lightning
from tests.conformance.recorded import Asking, Recorded, Request, Screen, only_run
from tests.conformance.situations import (
    EPOCHS,
    SITUATIONS,
    STEPS,
    STEPS_PER_EPOCH,
    Situation,
    Training,
    Truth,
    train_by_hand,
)
from tests.conformance.watchers import Observe, RunObserve, Watch, Watcher

WATCHERS: list[Watcher] = [
    Watch("monitor"),
    Watch("scaler"),
    Watch("closure"),
    Observe(),
    RunObserve(),
    *FRAMEWORKS,
]

ON_TORCH = ("switches", "switches, fused, clipped", "float8", "closure")
"""What rests on torch's hooks, GradScaler, autocast and torchao: the oldest torch goes through it too."""

pytestmark = pytest.mark.filterwarnings("default")  # the frameworks' own


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks save into the current folder; older TrainingArguments set the precision for good."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")


def cases(situations: Collection[str], *, without: Collection[type[Watcher]] = ()) -> pytest.MarkDecorator:
    """Each watcher in each of the situations that it can have."""
    return pytest.mark.parametrize(
        ("watcher", "situation"),
        [
            pytest.param(
                watcher,
                SITUATIONS[name],
                id=f"{watcher.name}-{name}",
                marks=pytest.mark.ci if watcher.tier == "ci" else [pytest.mark.torch] * (name in ON_TORCH),
            )
            for watcher in WATCHERS
            for name in situations
            if name not in watcher.cannot and type(watcher) not in without
        ],
    )


def trained(
    watcher: Watcher, situation: Situation, runs: Path, requests: Mapping[int, Sequence[Request]]
) -> tuple[Training, dict[str, Any] | None]:
    watcher.need()
    asking = Asking(runs, requests)
    training = Training(situation, asking)
    try:
        return training, watcher.train(training, runs)
    finally:
        asking.close()


def by_hand(watcher: Watcher, situation: Situation) -> Truth:
    return train_by_hand(
        Training(situation),
        growth_interval=watcher.growth_interval,
        pauses_schedule=watcher.pauses_schedule,
    )


@cases(SITUATIONS)
def test_weights_and_numbers_are_those_of_the_loop_by_hand(
    watcher: Watcher, situation: Situation, runs: Path, request: pytest.FixtureRequest
) -> None:
    if "fp8" in situation.precisions.values():
        request.getfixturevalue("usable_torchao")
    truth = by_hand(watcher, situation)
    wanted = situation.requests if watcher.switches else {}
    requests = {step: [{"request": "precision", "precision": name}] for step, name in wanted.items()}
    takes_no_scaler = situation.closure and watcher.switches  # LBFGS calls its closure again
    if takes_no_scaler:
        requests[2] = [{"request": "precision", "precision": "fp16"}]
    training, scaler = trained(watcher, situation, runs, requests)
    assert training.digests() == truth.digests
    assert scaler in (None, truth.scaler)
    check(run := only_run(runs), watcher, situation, truth)
    answers = [(line["step"], line["request"]["precision"]) for line in run.of("RequestTaken")]
    assert answers == list(wanted.items())
    refused = [(line["request"]["precision"], line["reason"]) for line in run.of("RequestRefused")]
    assert refused == [("fp16", "unavailable")] * takes_no_scaler


def check(run: Recorded, watcher: Watcher, situation: Situation, truth: Truth) -> None:
    rows, steps = run.table(), truth.steps
    precisions = [step.precision for step in steps]
    if not watcher.switches:  # without TF32 anywhere, nobody sees that it is forbidden
        precisions = ["fp32" if name == "ieee" else name for name in precisions]
    assert [int(row["step"]) for row in rows] == [step.step for step in steps]
    assert [row["precision"] for row in rows] == precisions
    assert numbers(rows, "loss") == pytest.approx([step.loss for step in steps], rel=1e-6, nan_ok=True)
    assert numbers(rows, "lr") == pytest.approx([step.lr for step in steps])
    assert numbers(rows, "loss_scale") == [step.loss_scale for step in steps]
    assert [int(row["step"]) for row in rows if row["skipped"] == "true"] == truth.skipped
    assert [int(row["micro_batches"]) for row in rows] == [step.micro_batches for step in steps]
    norms = {number: norm for number, norm in enumerate(numbers(rows, "grad_norm")) if norm is not None}
    assert {0, 1} & {*norms}  # the first are always measured
    if not situation.closure:  # of which call is another's choice
        expected = {number: steps[number].grad_norm for number in norms}
        assert norms == pytest.approx(expected, rel=1e-3, nan_ok=True)
    if watcher.counts_samples(situation):
        assert all(row["data_seconds"] for row in rows)
        assert [int(row["samples"]) for row in rows] == [step.samples for step in steps]
    changes = [
        (step, before, after)
        for step, (before, after) in enumerate(pairwise(precisions), 2)
        if before != after
    ]
    changed = run.of("PrecisionChanged")
    assert [(line["step"], line["previous"], line["current"]) for line in changed] == changes
    skips = run.of("StepSkipped")
    assert [line["step"] for line in skips] == truth.skipped
    assert all(line["names"] for line in skips)
    lost = [line["step"] for line in run.of("NonFinite") if line["what"] == "loss"]
    assert lost == [step.step for step in steps if not math.isfinite(step.loss)]
    scales = run.of("LossScaleChanged")
    assert all((line["current"] > line["previous"]) == (line["reason"] == "growth") for line in scales)
    assert [line["step"] for line in scales if line["reason"] == "backoff"] == truth.skipped
    (started,) = run.of("RunStarted")
    assert (started["observed"], started["precision"]) == (not watcher.switches, precisions[0])
    if watcher.names_epochs:
        lengths = [started[name] for name in ("steps_per_epoch", "total_epochs", "total_steps")]
        assert lengths == [STEPS_PER_EPOCH, EPOCHS, STEPS]
        assert [int(row["epoch"]) for row in rows] == [step.epoch for step in steps]
        ends = [(epoch, epoch * STEPS_PER_EPOCH) for epoch in range(1, EPOCHS + 1)]
        finished = run.of("EpochFinished")
        assert [(line["epoch"], line["step"]) for line in finished] == ends
        losses = [step.loss for step in steps[:STEPS_PER_EPOCH]]
        if all(map(math.isfinite, losses)):
            assert finished[0]["mean_loss"] == pytest.approx(sum(losses) / STEPS_PER_EPOCH)
    kind, words = watcher.end
    end = run.lines[-1]
    assert (end["type"], end.get("reason") or end.get("error")) == (kind, words)


def numbers(rows: list[dict[str, str]], column: str) -> list[float | None]:
    return [float(row[column]) if row[column] else None for row in rows]


@cases(["fp16"], without=[RunObserve])
def test_each_request_has_its_answer_and_a_stop_ends_the_training_after_the_step(
    watcher: Watcher, situation: Situation, runs: Path
) -> None:
    kinds = ("x-ray", "trace", "histogram", "checkpoint")
    asked: list[Request] = [{"request": kind} for kind in kinds]
    if not watcher.switches:
        asked += [{"request": "precision", "precision": "bf16"}, {"request": "pause", "paused": True}]
    requests: dict[int, Sequence[Request]] = {
        3: asked,
        9: [{"request": "stop", "reason": "q", "at_once": False}],
    }
    trained(watcher, situation, runs, requests)
    run = only_run(runs)
    refused = {line["request"]["kind"]: line["reason"] for line in run.of("RequestRefused")}
    taken = {line["request"]["kind"] for line in run.of("RequestTaken")}
    assert refused == watcher.refuses
    assert taken == {*kinds} - {*watcher.refuses}
    assert all(line["detail"] for line in run.of("RequestRefused"))
    last = run.lines[-1]
    assert (last["type"], last["steps"], last["reason"]) == ("RunFinished", 9, "stopped")
    assert {*kinds} & {*run.of("RunStarted")[0]["refuses"]} <= {*watcher.refuses}


@cases(["fp32"], without=[Observe, RunObserve])
def test_a_pause_holds_the_training_between_two_steps_until_a_screen_resumes_it(
    watcher: Watcher, situation: Situation, runs: Path
) -> None:
    def resume() -> None:
        screen.wait_for(lambda line: line.get("type") == "PauseChanged")
        screen.ask({"request": "precision", "precision": "bf16"})
        screen.ask({"request": "pause", "paused": False})

    watcher.need()
    screen: Screen

    def during(step: int) -> None:
        nonlocal screen
        if step == 5:
            (folder,) = runs.iterdir()
            screen = Screen(folder)
            screen.ask({"request": "pause", "paused": True})
            thread.start()

    thread = threading.Thread(target=resume)
    watcher.train(Training(situation, during), runs)
    thread.join()
    screen.close()
    run = only_run(runs)
    assert [(line["step"], line["paused"]) for line in run.of("PauseChanged")] == [(5, True), (5, False)]
    assert [(line["step"], line["current"]) for line in run.of("PrecisionChanged")] == [(6, "bf16")]


@cases(["fp16"], without=[RunObserve])
def test_a_run_that_cannot_be_opened_costs_one_line(
    watcher: Watcher,
    situation: Situation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    truth = by_hand(watcher, situation)
    training, scaler = trained(watcher, situation, tmp_path, {})
    assert training.digests() == truth.digests
    assert scaler == truth.scaler
    assert [line.startswith("amptui: cannot watch") for line in capsys.readouterr().err.splitlines()] == [
        True
    ]


@cases(["bf16"], without=[RunObserve])
def test_an_error_of_the_script_s_own_is_its_run_s_end(
    watcher: Watcher, situation: Situation, runs: Path
) -> None:
    def during(step: int) -> None:
        if step == 5:
            raise ValueError("my own")

    watcher.need()
    with pytest.raises(ValueError, match="my own"):
        watcher.train(Training(situation, during), runs)
    last = only_run(runs).lines[-1]
    assert (last["type"], last["step"], last["error"]) == ("RunFailed", 4, "ValueError: my own")


GUEST = "amptui.loops.script"
MONITOR = "amptui.monitor"
PROBES = "amptui.probes"

FAULTS: list[tuple[Watcher, tuple[str, ...]]] = [
    (
        Observe(),
        (
            "amptui.guest.run.describe",
            f"{PROBES}.memory.AllocatorWatch.look",
            "amptui.recipe.lr_schedule.LearningRateReader.read",
            f"{GUEST}.observed_loop.mark_scaled",
            f"{GUEST}.backward_pass.PassReader.see_autocast",
            f"{GUEST}.observed_optimizer.current_scale",
        ),
    ),
    (
        Watch("scaler"),
        (
            f"{MONITOR}.precision_switch.PrecisionSwitch.between_steps",
            f"{MONITOR}.precision_switch.PrecisionSwitch.finish",
            f"{PROBES}.gradients.GradientProbe.measure",
            f"{PROBES}.schedule.Probes.after_backward",
            "amptui.device.readback.HostReadback.push",
            f"{GUEST}.switched_optimizer.SwitchedOptimizer.forward_begins",
        ),
    ),
    (
        Watch("closure"),
        (
            f"{MONITOR}.precision_switch.PrecisionSwitch.attempt",
            f"{MONITOR}.precision_switch.PrecisionSwitch.take",
            f"{PROBES}.module_trace.ModuleTrace.__enter__",
            f"{GUEST}.switched_optimizer.SwitchedOptimizer._follow_switch",
            f"{GUEST}.switched_optimizer.SwitchedOptimizer._forget_step_again",
        ),
    ),
    (
        Lightning(),
        (
            "amptui.guest.framework.SwitchedAmp",
            "amptui.lightning.PrecisionMonitor.begin",
            "amptui.lightning.PrecisionMonitor._new_metrics",
        ),
    ),
    (HuggingFace(), (f"{GUEST}.observed_loop.ObservedLoop.take_batch",)),
]
"""For each watcher functions that its hooks call."""


@pytest.mark.parametrize(
    ("watcher", "place"),
    [
        pytest.param(watcher, place, id=f"{watcher.name}-{place.partition('.')[2]}", marks=pytest.mark.ci)
        for watcher, places in FAULTS
        for place in places
    ],
)
def test_a_fault_of_ours_costs_one_line_and_no_bit(
    watcher: Watcher,
    place: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    watcher.need()
    situation = SITUATIONS["fp16"]
    truth = by_hand(watcher, situation)
    monkeypatch.setattr(place, fail)
    capsys.readouterr()
    asked: dict[int, Sequence[Request]] = {3: [{"request": "trace"}]} if "ModuleTrace" in place else {}
    training, _ = trained(watcher, situation, runs, asked)
    assert training.digests() == truth.digests
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("amptui: ")]
    notes = [note["text"] for note in only_run(runs).of("Note")] if runs.exists() else []
    assert len(said) <= 1
    assert any("a fault" in text for text in (*said, *notes))
