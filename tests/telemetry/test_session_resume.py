"""A run that goes on in another process: what it takes over, and what it forgets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.run import EpochFinished, PauseChanged, Record, RunFailed, RunFinished, Validation
from tests.builders import (
    assert_holds,
    make_resumed,
    make_started,
    make_step,
    make_steps,
    make_switch,
    view_of,
)
from tests.diagnosis.wording import event_lines, table
from tests.golden import Goldens
from tests.telemetry.record_samples import compared, memory

START = make_started()
VALIDATION = Validation(loss=0.4, accuracy=None, samples=8)


def checkpoint(number: int, **changes: Any) -> CheckpointWritten:
    record = CheckpointWritten(
        time=100 + number / 1000,
        step=number,
        name=f"step-{number:09}.pt",
        size_bytes=12 * 2**20,
        reason="interval",
        blocked_seconds=0.012,
        seconds=0.41,
    )
    return replace(record, **changes)


DONE = RunFinished(time=105.0, steps=50, seconds=5.0, reason="done")
FAILED = RunFailed(time=105.0, step=50, error="out of memory", traceback="...")
EPOCH = EpochFinished(time=105.0, step=40, epoch=1, seconds=1.0, mean_loss=0.5, validation=VALIDATION)
WEIGHTS = WeightsSaved(time=102.0, step=20, path="/home/me/mine.pt", averaged=False)
UNSAVED = KeepingChanged(time=101.0, what="journal", trouble="journal: no space left on device")
NO_CHECKPOINT = KeepingChanged(time=102.0, what="checkpoints", trouble="no checkpoint in runs/x/checkpoints")
GOING = compared(40, over=False, reason="running")

EVENTS: dict[str, Sequence[Record]] = {
    "checkpoint": [checkpoint(1200)],
    "averaged weights": [replace(WEIGHTS, averaged=True)],
    "resume": [START, make_resumed(1200)],
    "resume without a start": [make_resumed(12)],
    "resume that repeats steps": [START, make_resumed(12, lost_steps=1037)],
    "resume on another device": [START, make_resumed(7, device_name="CPU", lost_steps=2)],
    "restart": [START, make_resumed(12, restarts=2, cause="rank 1 was killed: pid 7 is gone")],
    "not saved": [UNSAVED, NO_CHECKPOINT],
    "saved again": [UNSAVED, NO_CHECKPOINT, replace(UNSAVED, trouble="")],
}


def test_what_is_told_of_checkpoints_and_resumes(goldens: Goldens) -> None:
    said = {name: list(event_lines(view_of(*records).events)) for name, records in EVENTS.items()}
    goldens.check("words/events of a run that goes on", table(said))


RUNNING = {"state": "running", "outcome": None, "pause_reason": "", "phase": None}

ENDS: dict[str, list[Record]] = {
    "nothing": [],
    "its end": [DONE],
    "a failure": [FAILED],
    "a pause": [PauseChanged(time=104.0, step=50, paused=True, reason="the loss scale fell")],
}

KNOWN: dict[str, tuple[Sequence[Record], dict[str, Any]]] = {
    **{
        f"runs after {name}": (
            [START, *make_steps(1, 50), *before, make_resumed(50), *make_steps(51, 60, time=901.0)],
            {**RUNNING, "step": 60, "loss.count": 60},
        )
        for name, before in ENDS.items()
    },
    "another device": (
        [START, make_resumed(5, device="cpu", device_name="CPU", gpu_uuid=None, precision="bf16")],
        {"run": make_started(device="cpu", device_name="CPU", gpu_uuid=None), "precision": "bf16"},
    ),
    "made longer": (
        [START, *make_steps(1, 5), make_resumed(5, total_epochs=99, total_steps=9900)],
        {"run.total_epochs": 99, "run.total_steps": 9900},
    ),
    "as long as before": (
        [START, *make_steps(1, 5), make_resumed(5, total_epochs=None, total_steps=None)],
        {"run.total_epochs": START.total_epochs, "run.total_steps": START.total_steps},
    ),
    # ------------------------------------------------------------------------- what a process has kept
    "weights": ([START, WEIGHTS], {"weights": WEIGHTS}),
    "weights of the process before": ([START, WEIGHTS, make_resumed(20)], {"weights": None}),
    "checkpoint, and a screen that attaches": (
        [START, checkpoint(10), checkpoint(20), ViewersChanged(time=101.0, viewers=1, change="attached")],
        {"checkpoint": checkpoint(20)},
    ),
    "not kept": ([START, UNSAVED, NO_CHECKPOINT], {"not_kept": (UNSAVED, NO_CHECKPOINT)}),
    "not kept by the process before": ([START, UNSAVED, make_resumed(1)], {"not_kept": ()}),
    "comparison cut off": (
        [START, *make_steps(1, 50), GOING, make_resumed(50), make_switch(51, "fp32", "fp16")],
        {"compared": None},
    ),
    "comparison that was over": ([START, compared(40), make_resumed(50)], {"compared": compared(40)}),
    # -------------------------------------------------------------------------------- steps done again
    "lost steps": (
        [
            START,
            *make_steps(1, 50),
            checkpoint(30),
            checkpoint(44),
            replace(EPOCH, step=45),
            make_resumed(40, lost_steps=10),
        ],
        {"step": 40, "loss.last_step": 40, "last": None, "validated": None, "checkpoint": None},
    ),
    "what came before the checkpoint": (
        [START, *make_steps(1, 40), checkpoint(40), EPOCH, make_resumed(40)],
        {"step": 40, "last": make_step(40), "validated": EPOCH, "checkpoint": checkpoint(40)},
    ),
    "steps after a resume before all that is known": (
        [START, *make_steps(500, 600, epoch=3), make_resumed(300), *make_steps(301, 310, epoch=2)],
        {"loss.first_step": 301, "step": 310, "epoch_step": 310 - 234},
    ),
}


@pytest.mark.parametrize(("records", "expected"), KNOWN.values(), ids=KNOWN)
def test_what_a_run_that_goes_on_knows(records: Sequence[Record], expected: dict[str, Any]) -> None:
    assert_holds(view_of(*records), expected)


# ---------------------------------------------------------------------- what is measured in time


def test_two_devices_are_not_compared() -> None:
    phases = (PhaseSeconds(name="forward", host_seconds=1e-3, device_seconds=None),)
    timed = StepTimed(time=100.0, step=1, precision="fp32", settling=False, phases=phases)
    measured: list[Record] = [START, *make_steps(1, 50), timed]
    measured += [memory("fp32", activations=1, peak=10**9), compared(40)]
    same = view_of(*measured, make_resumed(50))
    assert len(same.comparison.rows) == len(same.timings) == len(same.memory) == 1
    assert same.compared is not None
    other = view_of(*measured, make_resumed(50, device_name="CPU", device="cpu", gpu_uuid=None))
    assert (other.comparison.rows, other.timings, other.memory, other.compared) == ((), (), (), None)
    assert other.comparison.missing == "steps"
    assert other.loss.count == 50, "the curves are of the run"
    resumed = make_resumed(50, device_name="CPU")
    again = view_of(*measured, resumed, make_step(51, precision="bf16"), replace(timed, step=52))
    assert [row.precision for row in again.comparison.rows] == ["bf16"]
    assert [timing.steps for timing in again.timings] == [1]
