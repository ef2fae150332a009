"""The trainer's thread and checkpoints: how a run goes on in a new process, and what waits for its end."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amptui.base.errors import UsageError
from amptui.engine.checkpoint.file import checkpoints, read, write
from amptui.records.control import Control
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import Note, PhaseChanged, Record, RunFailed, RunFinished, RunResumed, RunStarted
from amptui.records.steps import StepRecord
from tests.engine.working import ENOUGH_SECONDS, Worker
from tests.terminal import KNOBS
from tests.tiny import NO_TF32, stopping

pytestmark = pytest.mark.usefixtures("no_trace_of_imports")


def stopped(folder: Path, *, model: str = KNOBS, cut: int = 5, **options: Any) -> Worker:
    """A run that was stopped after ``cut`` steps and left its checkpoint."""
    control = Control()
    worker = Worker(model, control=control, watch=stopping(control, cut), checkpoint_dir=folder, **options)
    assert isinstance(worker.end(), RunFinished)
    assert [record.step for record in worker.log.of(CheckpointWritten)][-1] == cut
    return worker


def test_a_run_goes_on_in_a_new_process_with_a_record_that_says_so(tmp_path: Path) -> None:
    first = stopped(tmp_path, steps=9, precision="bf16")
    (started,) = first.log.of(RunStarted)
    cuts = list[tuple[int, list[type[Record]]]]()

    def cut(step: int) -> int:
        cuts.append((step, [type(record) for record in second.log if not isinstance(record, PhaseChanged)]))
        return 37

    is_made = threading.Event()
    second = Worker(
        steps=9,
        checkpoint_dir=tmp_path,
        resume=True,
        hooks={"cut": cut},
        watch=lambda _record: is_made.wait(ENOUGH_SECONDS),
    )
    is_made.set()
    last = second.end()
    assert cuts == [(5, [])]
    assert second.log.of(RunStarted) == []
    (resumed,) = second.log.of(RunResumed)
    assert (resumed.step, resumed.lost_steps, resumed.checkpoint) == (5, 37, "step-000000005.pt")
    assert (resumed.precision, resumed.device, resumed.versions) == ("bf16", "cpu", started.versions)
    assert [(r.step, r.precision) for r in second.log.of(StepRecord)] == [(n, "bf16") for n in range(6, 10)]
    assert isinstance(last, RunFinished)
    assert (last.steps, last.reason) == (9, "done")
    before = first.log[-1]
    assert isinstance(before, RunFinished)
    assert last.seconds > last.time - resumed.time
    assert last.seconds < last.time - started.time + before.seconds


def test_other_settings_end_the_run_before_anything_is_cut(tmp_path: Path) -> None:
    stopped(tmp_path)
    cuts = list[int]()
    worker = Worker(checkpoint_dir=tmp_path, resume=True, settings={"at": "7"}, hooks={"cut": cuts.append})
    last = worker.end()
    assert isinstance(last, RunFailed)
    assert "was written with at 5, but now it is 7" in last.error
    assert isinstance(worker.thread.error, UsageError)
    assert (last.step, worker.thread.error.exit_status, cuts) == (5, 2, [])
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005.pt"]


def test_a_precision_that_is_not_here_gives_way_and_is_told(tmp_path: Path) -> None:
    stopped(tmp_path)
    (path,) = checkpoints(tmp_path)
    write(replace(read(path), precision="tf32"), tmp_path)
    worker = Worker(steps=7, checkpoint_dir=tmp_path, resume=True)
    worker.end()
    assert {record.precision for record in worker.log.of(StepRecord)} == {"fp32"}
    (note,) = worker.log.of(Note)
    assert note.text == f"tf32 is not supported here: {NO_TF32}; continuing in fp32"


def test_who_waits_for_the_end_is_told_that_a_checkpoint_is_being_written(tmp_path: Path) -> None:
    requested, go_on = threading.Event(), threading.Event()

    def journaled(_step: int) -> None:
        requested.set()
        assert go_on.wait(ENOUGH_SECONDS)

    worker = Worker(steps=5, checkpoint_dir=tmp_path, hooks={"journaled": journaled})
    assert requested.wait(ENOUGH_SECONDS)
    assert worker.thread.saving
    assert worker.thread.doing == "while writing the checkpoint of step 5"
    assert not worker.thread.ended.is_set()
    last = worker.log.of(PhaseChanged)[-1]
    assert (last.phase, last.detail) == ("stopping", "writing the checkpoint")
    go_on.set()
    worker.end()
    assert not worker.thread.saving
    assert [record.reason for record in worker.log.of(CheckpointWritten)] == ["end"]
