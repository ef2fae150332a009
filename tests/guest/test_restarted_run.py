"""A script's run that goes on after a restart: one journal, whose steps count on."""

from pathlib import Path

import pytest

from amptui.guest.restarted_run import RestartedRun, last_before_restart
from amptui.process.recorder import Recorder
from amptui.records.ranks import RankLost
from amptui.records.run import Record, RunFailed, RunFinished, RunResumed, RunStarted
from amptui.records.steps import StepRecord
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from tests.single_steps import read
from tests.telemetry.record_samples import step
from tests.tui.views import run_started

FAILED = RunFailed(time=1.0, step=10, error="ValueError: no", traceback="")


def go_on(folder: Path, before: list[Record], first: int, steps: int) -> list[Record]:
    """The journal after a process whose loop counts from ``first`` on has added ``steps``."""
    run_dir = RunDir(folder)
    earlier = Recorder(Session(), run_dir, request={})
    for record in before:
        earlier.emit(record)
    earlier.start()
    assert earlier.close(60)
    recorder = Recorder(Session(), run_dir, request={}, goes_on=True)
    restarted = RestartedRun(run_dir, 1, recorder.emit, recorder.cut_after)
    recorder.start()
    restarted.begin(run_started(), first)
    for number in range(first, first + steps):
        restarted.emit(step(number))
    restarted.emit(RunFinished(time=2.0, steps=first + steps - 1, seconds=1.0, reason="done"))
    assert recorder.close(60)
    return list(read(run_dir.journal_path))


@pytest.mark.parametrize(("first", "resumed", "lost"), [(1, 10, 0), (8, 7, 3)], ids=["a loop", "a framework"])
def test_steps_count_on(first: int, resumed: int, lost: int, tmp_path: Path) -> None:
    before: list[Record] = [run_started(), *(step(number) for number in range(1, 11))]
    lost_rank = last_before_restart(FAILED, "node")
    records = go_on(tmp_path, [*before, lost_rank], first, 5)
    (resumption,) = [record for record in records if isinstance(record, RunResumed)]
    assert (resumption.step, resumption.lost_steps, resumption.restarts) == (resumed, lost, 1)
    assert "rank 0" in resumption.cause
    assert "ValueError: no" in resumption.cause
    numbers = [record.step for record in records if isinstance(record, StepRecord)]
    assert numbers == list(range(1, resumed + 6))
    last = records[-1]
    assert isinstance(last, RunFinished)
    assert last.steps == resumed + 5


def test_each_optimizer_counts_on(tmp_path: Path) -> None:
    before: list[Record] = [run_started(), *(step(number) for number in range(1, 11))]
    before += [step(number, optimizer="critic") for number in range(1, 51)]
    run_dir = RunDir(tmp_path)
    earlier = Recorder(Session(), run_dir, request={})
    for record in before:
        earlier.emit(record)
    earlier.start()
    assert earlier.close(60)
    later: list[Record] = []
    restarted = RestartedRun(run_dir, 1, later.append, lambda _step: 0)
    restarted.begin(run_started(), 1)
    for record in (step(1), step(1, optimizer="critic"), step(1, optimizer="new")):
        restarted.emit(record)
    assert [record.step for record in later if isinstance(record, StepRecord)] == [11, 51, 1]


def test_ranks_that_made_no_step_before_begin_the_run(tmp_path: Path) -> None:
    records = go_on(tmp_path, [], 1, 2)
    assert isinstance(records[0], RunStarted)
    assert [record.step for record in records if isinstance(record, StepRecord)] == [1, 2]


def test_a_failure_before_a_restart_is_no_end(tmp_path: Path) -> None:
    lost = last_before_restart(FAILED, "node")
    assert lost == RankLost(time=1.0, step=10, rank=0, host="node", cause="failed", detail="ValueError: no")
    session = Session(str(tmp_path))
    session.fold([run_started(), step(10), lost])
    assert session.view().outcome is None
