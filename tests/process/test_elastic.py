"""`amptui train --nproc` and torchrun, from the command line: how ranks end, and what is said of it."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import psutil
import pytest
from torch.distributed.launcher import api

from amptui.cli import main
from amptui.process import elastic
from amptui.process.elastic import _status
from amptui.process.rank_process import IMPORT_PATH_VARIABLE, RANK_VARIABLE, RankPlan
from amptui.process.stopping import RANKS_PATIENCE_SECONDS
from amptui.ranks.ends.progress import AWAITED_SECONDS
from amptui.recipe.request import TrainRequest
from amptui.records.ranks import RankLost, RanksAwaited, RanksSampled, RanksStarted, StacksTaken
from amptui.records.run import PhaseChanged, Record, RunFailed, RunFinished, RunStarted
from amptui.records.steps import StepRecord
from amptui.runs.rundir import RunDir
from tests.checkout import ROOT, child_environment
from tests.living import ended_afterwards, last_step, records_of, wait_until
from tests.warm import PipedProcess, WarmSource, start_piped

MODEL = f"{Path(__file__).parents[1] / 'ranks' / 'recorded.py'}:Recorded"

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "amptui")

ALONE = (sys.executable, "-m", "amptui")


T = TypeVar("T", bound=Record)


def of(kind: type[T], run: Path) -> list[T]:
    """The records of one type in the journal."""
    return [record for record in records_of(run) if isinstance(record, kind)]


def last(kind: type[T], run: Path) -> T:
    """The journal's last record, which is of that type."""
    record = records_of(run)[-1]
    assert isinstance(record, kind)
    return record


def assert_lost(run: Path, rank: int, cause: str) -> None:
    """The run failed because of that rank."""
    (lost,) = of(RankLost, run)
    assert (lost.rank, lost.cause) == (rank, cause)
    last(RunFailed, run)


def has_begun(run: Path) -> bool:
    """Whether it has made a step."""
    return last_step(run) > 0


def is_building(run: Path) -> bool:
    """Whether rank 0 builds the model."""
    return any(isinstance(record, PhaseChanged) and record.phase == "model" for record in records_of(run))


def is_compiling(run: Path) -> bool:
    """Whether rank 0 has compiled its first step; rank 1 may take longer."""
    return any(isinstance(record, PhaseChanged) and "compil" in record.detail for record in records_of(run))


@contextmanager
def ranks(
    run: Path,
    *options: str,
    warm: WarmSource | None = None,
    start: Sequence[str] = ALONE,
    until: Callable[[Path], bool] = has_begun,
    model: str = MODEL,
) -> Iterator[PipedProcess]:
    """A run of two ranks without a terminal, from its first step on or ``until`` something else.

    ``warm`` starts what starts them, with torch imported.
    """
    own = ("--nproc", "2") if start == ALONE else ()
    command = [*start, "train", model, "--device", "cpu", "--run-dir", str(run), *own, *options]
    with ended_afterwards(run), start_piped(command, warm=warm) as process:
        try:
            wait_until(lambda: until(run) or process.poll() is not None, "it did not begin", seconds=90)
            yield process
        finally:
            for member in _family(process.pid):
                member.kill()


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def pid_of(rank: int, process: PipedProcess) -> int:
    """The process of one rank."""
    return next(
        member.pid
        for member in _family(process.pid)
        if member.environ().get("RANK") == str(rank) and "amptui" in " ".join(member.cmdline())
    )


def shadowing(folder: Path) -> Path:
    """Modules of Python's names in ``folder``; the file that they leave when one is imported."""
    trace = folder / "imported"
    for name in ("json", "random", "logging", "signal"):
        (folder / f"{name}.py").write_text(f"open({str(trace)!r}, 'w')\nraise SystemExit(9)\n")
    return trace


@pytest.mark.ci
def test_what_starts_a_rank_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        api, "elastic_launch", lambda _, program: lambda *rest: started.append([program, *rest])
    )
    monkeypatch.setattr(logging, "disable", lambda _level: None)
    for name in (RANK_VARIABLE, IMPORT_PATH_VARIABLE, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    plan = RankPlan(
        request=TrainRequest(model=MODEL), run_dir=RunDir(tmp_path), shown=False, json=False, quiet=True
    )
    elastic._Launch(plan, 2).run()
    assert json.loads(os.environ[IMPORT_PATH_VARIABLE]) == sys.path
    trace = shadowing(tmp_path)
    with child_environment() as added:
        process = subprocess.run(
            started[0], cwd=tmp_path, env={**os.environ, **added}, capture_output=True, text=True, check=False
        )
    assert (process.returncode, process.stderr.count("\n")) == (2, 1), process.stderr
    assert "this is a rank of" in process.stderr
    assert not trace.exists()


NEIGHBOURLY = """
from {module} import NAME
from tests.tiny import Tiny

class Mine(Tiny):
    pass
"""


@pytest.mark.ci
@pytest.mark.parametrize("module", ["neighbour", "in_the_current_folder"])
def test_ranks_import_the_model_as_one_process_does(module: str, tmp_path: Path) -> None:
    """Beside its file always; from the current folder where `python -m amptui` has it on its path."""
    here, models = tmp_path / "here", tmp_path / "models"
    here.mkdir()
    models.mkdir()
    (here / "in_the_current_folder.py").write_text("NAME = 'here'\n")
    (models / "neighbour.py").write_text("NAME = 'beside'\n")
    (models / "mine.py").write_text(NEIGHBOURLY.format(module=module))
    start: Sequence[str] = ALONE
    if module == "neighbour":  # the program `amptui` does not have the current folder on its path
        trace, start = shadowing(here), (sys.executable, "-P", *ALONE[1:])
    run = tmp_path / "run"
    options = ("--device", "cpu", "--nproc", "2", "--steps", "2", "--run-dir", str(run))
    with child_environment() as added:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **added, "PYTHONSAFEPATH": ""}
        process = subprocess.run(
            [*start, "train", str(models / "mine.py"), *options],
            cwd=here, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert last_step(run) == 2
    assert module != "neighbour" or not trace.exists()


@pytest.mark.ci
@pytest.mark.parametrize("start", [ALONE, TORCHRUN], ids=["nproc", "torchrun"])
def test_ranks_train_to_the_end_and_leave_one_whole_journal(
    warm: WarmSource, run: Path, start: Sequence[str]
) -> None:
    with ranks(run, "--epochs", "2", "--accumulate", "3", start=start, warm=warm) as process:
        _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    (started,) = of(RunStarted, run)
    assert (started.world_size, started.parallel) == (2, "ddp")
    assert (started.batch_size, started.global_batch_size) == (8, 48)
    steps = of(StepRecord, run)
    assert [step.step for step in steps] == list(range(1, 5))
    assert {step.samples for step in steps} == {48}
    (together,) = of(RanksStarted, run)
    assert [rank.rank for rank in together.ranks] == [0, 1]
    samples = of(RanksSampled, run)
    assert samples
    assert samples[0].ranks == (0, 1)
    last(RunFinished, run)
    assert RunDir(run).holds_checkpoints


@pytest.mark.ci
@pytest.mark.parametrize(("rank", "status"), [(None, 143), (0, 143), (1, 0)])
def test_sigterm_stops_all_ranks_cleanly(warm: WarmSource, run: Path, rank: int | None, status: int) -> None:
    """To the launcher, to rank 0 or to another rank."""
    with ranks(run, warm=warm) as process:
        os.kill(process.pid if rank is None else pid_of(rank, process), signal.SIGTERM)
        _, said = process.communicate(timeout=90)
    assert process.returncode == status, said
    assert last(RunFinished, run).reason == "stopped"
    assert RunDir(run).holds_checkpoints


@pytest.mark.ci
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_run_with_its_name(warm: WarmSource, run: Path, rank: int) -> None:
    """Rank 1 writes the end of a journal whose rank 0 was killed."""
    with ranks(run, warm=warm) as process:
        os.kill(pid_of(rank, process), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith(f"amptui: rank {rank} was killed: pid ")
    assert_lost(run, rank, "killed")


@pytest.mark.ci
def test_a_rank_that_is_killed_while_others_wait_for_it_is_named(warm: WarmSource, run: Path) -> None:
    with ranks(run, "--set", "loading_seconds=600", until=is_building, warm=warm) as process:
        os.kill(pid_of(1, process), signal.SIGKILL)
        process.communicate(timeout=100)
    assert process.returncode == 1
    (lost,) = of(RankLost, run)
    assert (lost.rank, lost.cause, lost.step) == (1, "killed", 0)


@pytest.mark.ci
def test_a_run_that_waits_for_a_rank_can_be_stopped(warm: WarmSource, run: Path) -> None:
    with ranks(run, "--set", "loading_seconds=600", until=is_building, warm=warm) as process:
        process.terminate()
        process.communicate(timeout=100)
    assert process.returncode == 143
    end = last(RunFinished, run)
    assert (end.reason, end.steps) == ("stopped", 0)


@pytest.mark.ci
def test_a_batch_system_s_signal_to_a_rank_that_compiles_leaves_a_checkpoint(
    warm: WarmSource, run: Path
) -> None:
    """It compiles for longer than a rank is waited for that cannot end well any more."""
    seconds = str(RANKS_PATIENCE_SECONDS + 8)
    with ranks(
        run, "--compile", "--set", f"compile_seconds={seconds}", until=is_compiling, warm=warm
    ) as process:
        os.kill(pid_of(1, process), signal.SIGUSR1)
        _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert last_step(run) > 0
    assert RunDir(run).holds_checkpoints


@pytest.mark.ci
@pytest.mark.parametrize(("rank", "start"), [(0, ALONE), (1, TORCHRUN)], ids=["0, nproc", "1, torchrun"])
def test_a_rank_that_does_not_answer_ends_the_run_with_its_name(
    warm: WarmSource, run: Path, rank: int, start: Sequence[str]
) -> None:
    """Rank 0 keeps the journal: another rank writes its end, and the stacks."""
    with ranks(run, "--hang-timeout", "5", start=start, warm=warm) as process:
        family = _family(process.pid)
        os.kill(pid_of(rank, process), signal.SIGSTOP)
        _, said = process.communicate(timeout=100)
        _, alive = psutil.wait_procs(family, timeout=10)
    assert (process.returncode, alive) == (1, []), said
    assert f"amptui: rank {rank} hung: its process has not answered for " in said
    assert_lost(run, rank, "hung")
    (stacks,) = of(StacksTaken, run)
    assert ([stack.rank for stack in stacks.stacks], stacks.silent) == ([1 - rank], (rank,))
    assert "trainer.py" in stacks.stacks[0].stack


@pytest.mark.ci
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stuck_in_after_step_is_named_with_its_stack(
    warm: WarmSource, run: Path, rank: int
) -> None:
    lags = ("--set", f"lags_on_rank={rank}", "--set", "lag_step=3", "--set", "lag_seconds=600")
    with ranks(run, "--hang-timeout", "5", *lags, warm=warm) as process:
        family = _family(process.pid)
        _, said = process.communicate(timeout=100)
        _, alive = psutil.wait_procs(family, timeout=10)
    assert (process.returncode, alive) == (1, []), said
    assert f"amptui: rank {rank} hung: it made the others wait for " in said
    assert "in after_step(), step 3" in said
    assert_lost(run, rank, "hung")
    (stacks,) = of(StacksTaken, run)
    assert [stack.rank for stack in stacks.stacks] == [0, 1]
    assert [stack.rank for stack in stacks.stacks if "time.sleep(self.lag_seconds)" in stack.stack] == [rank]


@pytest.mark.ci
def test_a_rank_that_is_slow_is_named_and_the_run_goes_on(warm: WarmSource, run: Path) -> None:
    seconds = AWAITED_SECONDS + 4
    lags = ("--set", "lags_on_rank=1", "--set", "lag_step=3", "--set", f"lag_seconds={seconds}")
    with ranks(run, "--hang-timeout", "0", "--steps", "6", *lags, warm=warm) as process:
        _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    waits = of(RanksAwaited, run)
    assert {(wait.ranks, wait.phase, wait.step) for wait in waits} == {((1,), "after_step", 3)}
    assert [wait.over for wait in (waits[0], waits[-1])] == [False, True]
    assert last_step(run) == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "cuda:0"], "--device with 2 ranks: "),
        (["--hang-timeout", "-1"], "argument --hang-timeout: '-1' is not a number of seconds, or 0"),
        (["--nproc", "1", "--hang-timeout", "5"], "--hang-timeout is for the ranks of --nproc; leave out"),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_a_folder_is_made(
    options: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "mnist-deep", "--headless", "--nproc", "2", "--run-dir", str(run), *options]
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"amptui: {said}")
    assert not run.exists()


def test_the_exit_status_is_rank_0_s_and_one_line_names_who_failed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ended(**codes: int) -> elastic._Launch:
        failures = {
            int(name.removeprefix("rank")): SimpleNamespace(exitcode=code, timestamp=0.0)
            for name, code in codes.items()
        }
        launch = object.__new__(elastic._Launch)
        launch.failures, launch.error = failures, ""
        return launch

    assert _status(ended(), tmp_path) == 0
    assert _status(ended(rank0=143, rank1=1), tmp_path) == 143
    assert capsys.readouterr().err == ""
    assert _status(ended(rank0=-9, rank1=1), tmp_path) == 1
    assert capsys.readouterr().err == "amptui: rank 0 was killed by SIGKILL\n"
    assert _status(ended(rank1=-6), tmp_path) == 1
    assert capsys.readouterr().err == "amptui: rank 1 was killed by SIGABRT\n"
