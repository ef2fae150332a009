"""A script's run among its processes: its name, its ranks, a rank that fails, and a restart."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from amptui.guest.loop.named_optimizers import NamedOptimizer
from amptui.guest.loop.script import ObservedScript
from amptui.guest.peer import RankPeer
from amptui.guest.processes import OneOfRanks
from amptui.guest.restarted_run import RestartedRun, last_before_restart
from amptui.guest.run_records import own_script_name
from amptui.process.recorder import Recorder
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.guest_control import GuestControl
from amptui.ranks.world import World
from amptui.records.ranks import RankLost
from amptui.records.run import Record, RunFailed, RunFinished, RunResumed, RunStarted
from amptui.records.steps import StepRecord
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from tests.builders import read
from tests.telemetry.record_samples import step
from tests.tiny import Log
from tests.tui.views import run_started

KERNEL = "/env/lib/python3.12/site-packages/ipykernel_launcher.py"


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("train.py", "train"),
        ("/home/me/runs/train_big.py", "train_big"),
        ("/home/me/package/__main__.py", "package"),
        ("-c", "script"),
        ("", "script"),
        (KERNEL, "notebook"),
        ("/usr/local/lib/python3.12/dist-packages/colab_kernel_launcher.py", "notebook"),
    ],
)
def test_a_run_has_the_name_of_what_python_runs(
    argument: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    assert own_script_name() == name


@pytest.mark.parametrize(
    ("path", "name"), [("nested/Fine tuning.v2.ipynb", "Fine tuning.v2"), ("", "notebook")]
)
def test_a_notebook_s_run_has_the_notebook_s_name(
    path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [KERNEL, "-f", "/run/kernel-1.json"])
    monkeypatch.setenv("JPY_SESSION_NAME", path)
    assert own_script_name() == name
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", "/home/me/code.ipynb", raising=False)
    assert own_script_name() == "code"
    monkeypatch.setattr(sys, "argv", ["train.py"])  # which the notebook starts
    assert own_script_name() == "train"


@pytest.mark.parametrize(
    ("option", "data_parallel", "is_known"), [(None, 4, True), (2, 2, True), (1, 1, True), (3, 0, False)]
)
def test_a_script_may_say_how_many_ranks_take_samples_of_their_own(
    option: int | None, data_parallel: int, is_known: bool
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    script = ObservedScript(first=NamedOptimizer("", model, optimizer), data_parallel=option)
    layout = OneOfRanks(World(0, 0, 4)).layout(script)
    assert layout.data_parallel == data_parallel
    assert (layout.unknown == "") is is_known


def test_a_rank_that_fails_tells_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else they would wait for it after each request."""
    world, log = World(1, 1, 2), Log()
    board, control = Board(HashStore(), "test"), GuestControl(world, log.emit)
    monkeypatch.setattr("amptui.guest.peer.open_board", lambda _name: board)
    monkeypatch.setattr("amptui.guest.peer.world_of_script", lambda: world)
    RankPeer(world, control, log.emit)._work()  # it was not started with a loop
    assert board.look("gone")[0] == 1
    assert control.over
    assert capsys.readouterr().err.count("\n") == 1


FAILED = RunFailed(time=1.0, step=10, error="ValueError: no", traceback="")


def earlier_run(folder: Path, before: list[Record]) -> RunDir:
    """A run in which a process has recorded that."""
    run_dir = RunDir(folder)
    earlier = Recorder(Session(), run_dir, request={})
    for record in before:
        earlier.emit(record)
    earlier.start()
    assert earlier.close(60)
    return run_dir


def go_on(folder: Path, before: list[Record], first: int, steps: int) -> list[Record]:
    """The journal after a process whose loop counts from ``first`` on has added ``steps``."""
    run_dir = earlier_run(folder, before)
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
    later: list[Record] = []
    restarted = RestartedRun(earlier_run(tmp_path, before), 1, later.append, lambda _step: 0)
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
