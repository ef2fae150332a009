"""What starts ranks: it is killed, takes another's place, or is none of torch's; and how a rank leaves."""

import atexit
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from amptui.process.training import leave_at_once
from amptui.records.ranks import RanksStarted
from amptui.records.run import Note, RunFinished, RunStarted
from tests.living import ended_afterwards, steps_of
from tests.process.test_elastic import ALONE, MODEL, TORCHRUN, family, last, of, pid_of, ranks
from tests.warm import PipedProcess, WarmSource, start_piped

SLOWLY = ("--set", "slow_seconds=0.01")

_LAUNCHERS = ("RANK", "WORLD", "LOCAL", "MASTER", "GROUP", "ROLE", "TORCH", "SLURM", "OMPI", "PMI", "MPI")


@contextmanager
def adopting() -> Iterator[None]:
    """Orphans of this process's children become its own: their exit status can be read."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_child_subreaper = 36
    if prctl(set_child_subreaper, 1, 0, 0, 0):
        pytest.skip("this system has no PR_SET_CHILD_SUBREAPER")
    try:
        yield
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)


@pytest.mark.ci
def test_ranks_whose_launcher_is_killed_end_with_a_checkpoint_and_say_why(
    warm: WarmSource, run: Path
) -> None:
    with adopting(), ranks(run, *SLOWLY, "--fsdp", start=TORCHRUN, warm=warm) as process:
        pids = [pid_of(rank, process) for rank in (0, 1)]
        process.kill()
        _, said = process.communicate(timeout=60)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    end = last(RunFinished, run)
    assert (end.reason, end.steps) == ("stopped", steps_of(run)[-1].step)
    assert (run / "checkpoints" / f"step-{end.steps:09}.pt").is_file()
    # Whichever rank finds it first tells.
    words = f"the launcher (pid {process.pid}) is gone: all ranks stop", "launcher gone): all ranks stop"
    assert any(note.text.endswith(words) for note in of(Note, run))
    assert "[c10d]" not in said
    assert statuses == [0, 0]


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@contextmanager
def started(
    run: Path,
    names: Sequence[str],
    *,
    warm: WarmSource | None = None,
    options: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[list[PipedProcess]]:
    """Two processes of ``amptui train``, whose rank, size and local rank have these ``names``.

    With ``warm`` they start with torch imported.
    """
    bare = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    words = [*ALONE, "train", MODEL, "--device", "cpu", "--run-dir", str(run), *options]
    with ended_afterwards(run), ExitStack() as stack:
        processes = []
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
        for rank in ("0", "1"):
            common = {"OMP_NUM_THREADS": "1", **master}
            place = dict(zip(names, (rank, "2", rank), strict=True))
            process = start_piped(words, environment=bare | common | place, warm=warm)
            stack.enter_context(process)
            stack.callback(_kill, process.pid)
            processes.append(process)
        yield processes


def _kill(pid: int) -> None:
    for process in family(pid):
        process.kill()


PLAIN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")


@pytest.mark.ci
def test_ranks_of_another_launcher_are_one_run(run: Path) -> None:
    with started(run, OPEN_MPI, options=("--epochs", "1", "--fsdp")) as processes:
        said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    (first,) = of(RunStarted, run)
    assert first.world_size == 2
    (together,) = of(RanksStarted, run)
    assert [rank.rank for rank in together.ranks] == [0, 1]
    last(RunFinished, run)


@pytest.mark.ci
def test_a_port_that_another_program_has_is_told_in_one_line(warm: WarmSource, run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with started(run, PLAIN, warm=warm, port=port) as (leader, _):
            said = leader.communicate(timeout=120)[1]
    assert leader.returncode == 1
    told = f"amptui: rank 0 cannot listen at MASTER_ADDR:MASTER_PORT, 127.0.0.1:{port}: another program has"
    assert said == f"{told} that port; set MASTER_PORT to a free port for all ranks\n"


@pytest.mark.ci
def test_ranks_without_a_localhost_are_not_started(run: Path) -> None:
    alone = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system gives no process a network of its own")
    words = [*alone, *ALONE, "train", MODEL, "--device", "cpu", "--run-dir", str(run), "--nproc", "2"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.startswith("amptui: the ranks could not be started: they cannot meet at localhost (")
    assert ended.stderr.count("\n") == 1


@pytest.mark.ci
def test_what_rank_0_refuses_ends_all_ranks_of_any_launcher(warm: WarmSource, run: Path) -> None:
    run.mkdir()
    (run / "journal.jsonl").touch()
    with started(run, PLAIN, warm=warm) as processes:
        said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert [text.count("\n") for text in said] == [1, 0], said


@pytest.mark.parametrize("status", [0, 3])
def test_a_crash_in_an_exit_handler_does_not_change_how_a_rank_ended(status: int) -> None:
    """As torch's may crash under NCCL. What was printed is not lost."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        atexit.register(os.kill, os.getpid(), signal.SIGKILL)
        sys.stdout = os.fdopen(writing, "w")
        print("done", end="")
        leave_at_once(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as out:
        assert out.read() == b"done"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status


def test_a_rank_that_nobody_has_a_plan_for_says_what_starts_it() -> None:
    command = [sys.executable, "-P", "-m", "amptui.process.elastic"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "this is a rank of `amptui train --nproc N`" in done.stderr
