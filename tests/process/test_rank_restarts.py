"""Runs of several ranks that are resumed, or started again by the launcher, from the command line."""

import os
import re
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from amptui.cli import main
from amptui.records.ranks import RankLost, RanksStarted
from amptui.records.run import RunFailed, RunFinished, RunResumed, RunStarted
from amptui.runs.rundir import RunDir
from amptui.runs.trust import resume_command
from tests.living import outcome, steps_of
from tests.process.test_elastic import ALONE, TORCHRUN, last, of, pid_of, ranks
from tests.warm import PipedProcess, WarmSource, start_piped

RESTARTED_TORCHRUN = (*TORCHRUN[:3], "--max-restarts", "1", *TORCHRUN[3:])

EVERY_5 = ("--checkpoint-every", "5", "--epochs", "10")

SLOWLY = ("--set", "slow_seconds=0.02")


def kill(rank: int, process: PipedProcess, go_on: Path) -> None:
    """Kill a rank of a run that is held; what is started again is not."""
    os.kill(pid_of(rank, process), signal.SIGKILL)
    go_on.touch()


def held(go_on: Path) -> Sequence[str]:
    """The options of a run that makes 20 steps, which take a while, and more when there is ``go_on``."""
    return (*SLOWLY, "--set", f"held={go_on}")


def has_a_checkpoint(run: Path) -> bool:
    """Whether ranks can go on from one."""
    return bool(list((run / "checkpoints").glob("step-*.pt")))


def assert_is_one_whole_run(run: Path, steps: int) -> None:
    """Each step is there once, in order, and so are the start and the end."""
    assert [record.step for record in steps_of(run)] == list(range(1, steps + 1))
    assert len(of(RunStarted, run)) == 1
    assert outcome(run) is RunFinished


def resumed(warm: WarmSource, run: Path, *options: str, start: Sequence[str] = ALONE) -> tuple[int, str]:
    """Resume the run; its exit status, and what it said of trouble."""
    with start_piped([*start, "train", *options], warm=warm) as process:
        _, said = process.communicate(timeout=240)
    return process.wait(), said


@pytest.mark.ci
@pytest.mark.parametrize(
    ("start", "own"),
    [
        (ALONE, ("--max-restarts", "1")),
        (ALONE, ("--max-restarts", "1", "--fsdp")),
        (RESTARTED_TORCHRUN, ()),
    ],
    ids=["nproc", "fsdp", "torchrun"],
)
def test_a_killed_rank_is_started_again_and_the_journal_reads_as_one_run(
    warm: WarmSource, run: Path, go_on: Path, start: Sequence[str], own: Sequence[str]
) -> None:
    with ranks(run, *EVERY_5, *held(go_on), *own, start=start, until=has_a_checkpoint, warm=warm) as process:
        kill(1, process, go_on)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert_is_one_whole_run(run, 60)
    (again,) = of(RunResumed, run)
    assert again.restarts == 1
    assert re.match(r"rank 1 .*killed: pid \d", again.cause)
    assert again.step > 0
    starts = of(RanksStarted, run)
    assert [(row.restarts, row.max_restarts) for row in starts] == [(0, 1), (1, 1)]


@pytest.mark.ci
def test_ranks_without_a_checkpoint_start_again_from_the_beginning(
    warm: WarmSource, run: Path, go_on: Path
) -> None:
    one_epoch = ("--steps", "30", "--set", "samples=4800", *held(go_on))
    with ranks(run, *one_epoch, "--max-restarts", "1", warm=warm) as process:
        kill(0, process, go_on)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert_is_one_whole_run(run, 30)
    (again,) = of(RunResumed, run)
    assert (again.step, again.checkpoint, again.restarts) == (0, "", 1)
    assert re.match(r"rank 0 .*killed: pid \d", again.cause)


@pytest.mark.ci
def test_ranks_that_are_asked_to_stop_are_not_started_again(warm: WarmSource, run: Path) -> None:
    with ranks(run, "--max-restarts", "3", warm=warm) as process:
        process.terminate()
        process.communicate(timeout=90)
    assert process.returncode == 143
    assert last(RunFinished, run).reason == "stopped"
    assert of(RunResumed, run) == []


@pytest.mark.ci
def test_the_last_line_of_a_failed_run_is_the_way_on(warm: WarmSource, run: Path, go_on: Path) -> None:
    """Ranks resume it, as many, one, or under torchrun; a number that does not fit is refused."""
    with ranks(run, *EVERY_5, *held(go_on), until=has_a_checkpoint, warm=warm) as process:
        kill(1, process, go_on)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].endswith(f": {resume_command(run)}")
    last(RunFailed, run)
    assert [type(record) for record in of(RankLost, run)] == [RankLost]

    words = shlex.split(resume_command(run))[2:]
    before = (run / "journal.jsonl").read_bytes()
    status, said = resumed(warm, run, *words, "--nproc", "3")
    assert (status, said.count("\n")) == (2, 1)
    assert "3 ranks cannot share" in said
    assert (run / "journal.jsonl").read_bytes() == before

    status, said = resumed(warm, run, *words, "--epochs", "8")
    assert status == 0, said
    assert_is_one_whole_run(run, 48)
    status, said = resumed(warm, run, *words, "--epochs", "9", "--nproc", "1")
    assert status == 0, said
    assert_is_one_whole_run(run, 54)
    status, said = resumed(warm, run, *words, "--epochs", "10", start=TORCHRUN)
    assert status == 0, said
    assert_is_one_whole_run(run, 60)
    assert [record.world_size for record in of(RunResumed, run)] == [2, 1, 2]
    assert RunDir(run).holds_checkpoints


@pytest.mark.ci
def test_the_way_on_is_told_whole_also_if_another_rank_writes_the_end(
    warm: WarmSource, run: Path, go_on: Path
) -> None:
    with ranks(run, *EVERY_5, *held(go_on), until=has_a_checkpoint, warm=warm) as process:
        kill(0, process, go_on)
        _, said = process.communicate(timeout=60)
    assert said.splitlines()[-1].endswith(f": {resume_command(run)}")
    end = last(RunFailed, run)
    assert end.error.endswith(f": {resume_command(run)}")


@pytest.mark.ci
def test_what_no_restart_can_help_is_refused_once(warm: WarmSource, run: Path) -> None:
    options = ("--precision", "tf32", "--max-restarts", "2")
    with ranks(run, *options, until=lambda run: outcome(run) is RunFailed, warm=warm) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    # The other rank may be importing torch yet, and say that it stops.
    (line,) = (line for line in said.splitlines() if not line.startswith("amptui: stopping "))
    assert line.startswith("amptui: precision tf32: ")


def test_restarts_without_ranks_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mnist-deep", "--headless", "--max-restarts", "1", "--run-dir", str(run)]) == 2
    assert capsys.readouterr().err.startswith("amptui: --max-restarts is for the ranks of --nproc")
    assert not run.exists()
