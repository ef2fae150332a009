"""The trainer's thread: every way it can end becomes one last record."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amptui.base.errors import DeviceError, ExperimentError, UsageError
from amptui.checkpoint.file import checkpoints, read, write
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.control import Control
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import Note, PhaseChanged, Record, RunFailed, RunFinished, RunResumed, RunStarted
from tests.builders import StepRow
from tests.living import records_of
from tests.loops.working import ENOUGH_SECONDS, Worker, hooked
from tests.terminal import KNOBS
from tests.tiny import NO_TF32, stopping

pytestmark = pytest.mark.usefixtures("no_trace_of_imports")


def test_a_run_from_import_to_end() -> None:
    worker = Worker(steps=5)
    last = worker.end()
    assert isinstance(last, RunFinished)
    assert (last.steps, last.reason) == (5, "done")
    phases = [r.phase for r in worker.log.of(PhaseChanged)]
    assert phases == ["importing", "data", "model", "first step", "training"]
    (started,) = worker.log.of(RunStarted)
    assert worker.log.index(started) < [*map(type, worker.log)].index(StepRow)
    assert last.seconds == pytest.approx(last.time - started.time)
    assert worker.thread.error is None
    assert worker.thread.allocator() is None


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"device": "cuda:99"}, DeviceError, "device cuda:99: "),
        ({"settings": {"widht": "3"}}, UsageError, "Knobs has no option 'widht'"),
        ({"settings": {"trouble": "exit", "at": "1"}}, ExperimentError, "SystemExit: the model left"),
        ({"settings": {"trouble": "memory", "at": "3"}}, DeviceError, "out of host memory in step 3"),
    ],
    ids=str,
)
def test_every_failure_is_a_record_with_a_traceback_of_what_amptui_does_not_refuse_itself(
    options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    worker = Worker(**options)
    last = worker.end()
    assert isinstance(last, RunFailed)
    assert last.error.startswith(said)
    assert ("Traceback (most recent call last)" in last.traceback) is ("trouble" in str(options))
    assert isinstance(worker.thread.error, kind)
    assert str(worker.thread.error) == last.error
    assert last.step == (3 if "memory" in str(options) else 1 if "exit" in str(options) else 0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_came_too_late_is_refused_before_the_last_record(fails: bool, tmp_path: Path) -> None:
    records: list[Record] = []
    control = Control(records.append)

    def watch(record: Record) -> None:
        records.append(record)
        if isinstance(record, PhaseChanged) and record.phase == "data":
            control.ask(RequestMade("pause", paused=True))
            control.ask(RequestMade("stop", reason="the user"))

    model = hooked(tmp_path, during="raise ValueError('bad file')" if fails else "pass")
    last = Worker(model, watch=watch, control=control).end()
    assert isinstance(last, RunFailed if fails else RunFinished)
    refused, ended = records[-2:]
    assert ended == last
    assert isinstance(refused, RequestRefused)
    assert (refused.request.kind, refused.reason) == ("pause", "unavailable")


@pytest.mark.parametrize("phase", ["data", "model"])
def test_a_stop_before_the_first_step_is_no_failure(phase: str, tmp_path: Path) -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PhaseChanged) and record.phase == phase:
            control.ask(RequestMade("stop", reason="the user"))

    worker = Worker(hooked(tmp_path, during="request.raise_if_stopping()"), watch=watch, control=control)
    last = worker.end()
    assert isinstance(last, RunFinished)
    assert (last.steps, last.reason) == (0, "stopped")
    assert worker.thread.error is None
    assert phase == "model" or worker.log.of(RunStarted) == []


def test_progress_is_told_at_its_start_at_its_end_and_not_a_thousand_times(tmp_path: Path) -> None:
    reports = "[('reading', i, 1000) for i in range(1001)] + [('sorting', None, None)] * 1000"
    worker = Worker(hooked(tmp_path, reports=reports), steps=1)
    worker.end()
    data = [r for r in worker.log.of(PhaseChanged) if r.phase == "data"]
    reading = [r for r in data if r.detail == "reading"]
    assert (reading[0].done, reading[-1].done) == (0, 1000)
    assert len(reading) < 20
    assert 1 <= len([r for r in data if r.detail == "sorting"]) < 20


def test_weights_do_not_depend_on_how_the_data_came_to_be(tmp_path: Path) -> None:
    losses = []
    for during in ("pass", "torch.rand(17)"):
        worker = Worker(hooked(tmp_path, during=f"{during}; torch.manual_seed(5)"), steps=3, seed=2)
        worker.end()
        losses.append([r.loss for r in worker.log.of(StepRow)])
    assert losses[0] == losses[1]


BROKEN_TORCH = """
import builtins
if hasattr(builtins, "tried"):
    raise RuntimeError("torch can only be initialized once per process")
builtins.tried = True
raise {error}
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        ("train", "OSError('libcudart.so.12: cannot open')", "OSError: libcudart.so.12: cannot open"),
        ("bench", "ModuleNotFoundError('No module named numpy')", "No module named numpy"),
    ],
)
def test_of_a_torch_that_cannot_be_imported_the_first_error_is_told(
    command: str, error: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BROKEN_TORCH.format(error=error))
    options = ["--headless", "--run-dir", str(tmp_path / "run")] if command == "train" else []
    process = subprocess.run(
        [sys.executable, "-m", "amptui", command, "mnist-deep", *options],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=ENOUGH_SECONDS,
        check=False,
    )
    assert process.returncode == 1
    line = process.stderr.splitlines()[-1]
    assert line.startswith(f"amptui: {said}")
    assert process.stderr.count("Traceback") <= 1
    if command == "train":
        last = records_of(tmp_path / "run")[-1]
        assert isinstance(last, RunFailed)
        assert said in last.error


def stopped(folder: Path, *, model: str = KNOBS, cut: int = 5, **options: Any) -> Worker:
    control = Control()
    worker = Worker(model, control=control, watch=stopping(control, cut), checkpoint_dir=folder, **options)
    assert isinstance(worker.end(), RunFinished)
    assert [record.step for record in worker.log.of(CheckpointWritten)][-1] == cut
    return worker


def test_a_run_goes_on_in_a_new_process_with_a_record_that_says_so(tmp_path: Path) -> None:
    first = stopped(tmp_path, steps=9, precision="bf16")
    (started,) = first.log.of(RunStarted)
    second = Worker(steps=9, checkpoint_dir=tmp_path, resume=True)
    last = second.end()
    assert second.log.of(RunStarted) == []
    (resumed,) = second.log.of(RunResumed)
    assert next(record for record in second.log if not isinstance(record, PhaseChanged)) == resumed
    assert (resumed.step, resumed.checkpoint) == (5, "step-000000005.pt")
    assert (resumed.precision, resumed.device, resumed.versions) == ("bf16", "cpu", started.versions)
    assert [(r.step, r.precision) for r in second.log.of(StepRow)] == [(n, "bf16") for n in range(6, 10)]
    assert isinstance(last, RunFinished)
    assert (last.steps, last.reason) == (9, "done")
    before = first.log[-1]
    assert isinstance(before, RunFinished)
    assert last.seconds > last.time - resumed.time
    assert last.seconds < last.time - started.time + before.seconds


def test_a_precision_that_is_not_here_gives_way_and_is_told(tmp_path: Path) -> None:
    stopped(tmp_path)
    (path,) = checkpoints(tmp_path)
    write(replace(read(path), precision="tf32"), tmp_path)
    worker = Worker(steps=7, checkpoint_dir=tmp_path, resume=True)
    worker.end()
    assert {record.precision for record in worker.log.of(StepRow)} == {"fp32"}
    (note,) = worker.log.of(Note)
    assert note.text == f"tf32 is not supported on this device: {NO_TF32}; continuing in fp32"


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
