"""`amptui train --nproc`, torchrun and others: how ranks start and end, what is said, how they go on."""

import atexit
import ctypes
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import torch

from amptui.process.training import leave_at_once
from amptui.records.ranks import RankLost, RanksSampled, RanksStarted, StacksTaken
from amptui.records.run import Note, PhaseChanged, Record, RunFailed, RunFinished, RunResumed, RunStarted
from amptui.runs.rundir import RunDir, resume_command
from tests import builders
from tests.checkout import ROOT, child_environment
from tests.living import ended_afterwards, last_step, outcome, own_lines, records_of, steps_of, wait_until
from tests.warm import PipedProcess, WarmSource, start_piped

MODEL = f"{Path(__file__).parents[1] / 'ranks' / 'recorded.py'}:Recorded"

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "amptui")

ALONE = (sys.executable, "-m", "amptui")

T = TypeVar("T", bound=Record)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """A file that is not there yet, for which a run may wait."""
    return tmp_path / "go on"


def of(kind: type[T], run: Path) -> list[T]:
    return builders.of(kind, records_of(run))


def last(kind: type[T], run: Path) -> T:
    """The journal's last record, which is of that type."""
    record = records_of(run)[-1]
    assert isinstance(record, kind)
    return record


def assert_lost(run: Path, rank: int, cause: str) -> None:
    (lost,) = of(RankLost, run)
    assert (lost.rank, lost.cause) == (rank, cause)
    last(RunFailed, run)


def is_building(run: Path) -> bool:
    return any(record.phase == "model" for record in of(PhaseChanged, run))


def has_a_checkpoint(run: Path) -> bool:
    return RunDir(run).holds_checkpoints


@contextmanager
def ranks(
    run: Path,
    *options: str,
    warm: WarmSource,
    start: Sequence[str] = ALONE,
    until: Callable[[Path], object] = last_step,
) -> Iterator[PipedProcess]:
    """A run of two ranks without a terminal, from its first step on or ``until`` something else."""
    own = ("--nproc", "2") if start == ALONE else ()
    command = [*start, "train", MODEL, "--device", "cpu", "--run-dir", str(run), *own, *options]
    with ended_afterwards(run), start_piped(command, warm) as process:
        try:
            wait_until(lambda: until(run) or process.poll() is not None, "it did not begin", seconds=90)
            yield process
        finally:
            kill_all(process.pid)


def family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_all(pid: int) -> None:
    """Kill a process and all that it started."""
    for member in family(pid):
        member.kill()


def pid_of(rank: int, process: PipedProcess) -> int:
    return next(
        member.pid
        for member in family(process.pid)
        if member.environ().get("RANK") == str(rank) and "amptui" in " ".join(member.cmdline())
    )


NEIGHBOURLY = """
from neighbour import NAME
from tests.tiny import Tiny

class Mine(Tiny):
    pass
"""


@pytest.mark.ci
def test_ranks_import_the_model_and_what_lies_beside_it_and_nothing_of_the_current_folder(
    tmp_path: Path,
) -> None:
    here, models, run = tmp_path / "here", tmp_path / "models", tmp_path / "run"
    here.mkdir()
    models.mkdir()
    (models / "neighbour.py").write_text("NAME = 'beside'\n")
    (models / "mine.py").write_text(NEIGHBOURLY)
    for name in ("json", "random", "logging", "signal"):
        (here / f"{name}.py").write_text("open('imported', 'w')\nraise SystemExit(9)\n")
    options = ("--device", "cpu", "--nproc", "2", "--steps", "2", "--run-dir", str(run))
    # As the program `amptui`, which does not have the current folder on its path.
    command = [sys.executable, "-P", *ALONE[1:], "train", str(models / "mine.py"), *options]
    with child_environment() as added:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **added, "PYTHONSAFEPATH": ""}
        process = subprocess.run(
            command, cwd=here, env=environment, capture_output=True, text=True, check=False
        )
    assert process.returncode == 0, process.stderr
    assert last_step(run) == 2
    assert not (here / "imported").exists()


@pytest.mark.ci
@pytest.mark.parametrize("fsdp", [False, True])
def test_ranks_train_to_the_end_and_leave_one_whole_journal_and_all_weights(
    *, fsdp: bool, warm: WarmSource, run: Path
) -> None:
    start, own = (TORCHRUN, ("--fsdp",)) if fsdp else (ALONE, ("--accumulate", "3"))
    count, samples = (12, 16) if fsdp else (4, 48)
    options = ("--epochs", "2", "--save-weights", str(run.with_name("weights.pt")), *own)
    with ranks(run, *options, start=start, warm=warm) as process:
        _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    (started,) = of(RunStarted, run)
    assert (started.world_size, started.parallel) == (2, "fsdp2" if fsdp else "ddp")
    assert (started.batch_size, started.global_batch_size) == (8, samples)
    assert set(started.refuses) == {"x-ray"}
    assert [(step.step, step.samples) for step in steps_of(run)] == [(n + 1, samples) for n in range(count)]
    (together,) = of(RanksStarted, run)
    assert [rank.rank for rank in together.ranks] == [0, 1]
    assert of(RanksSampled, run)[0].world_size == 2
    last(RunFinished, run)
    assert RunDir(run).holds_checkpoints
    state = torch.load(run.with_name("weights.pt"), weights_only=True)
    assert sum(value.numel() for name, value in state.items() if "running" not in name) > started.parameters


@pytest.mark.ci
@pytest.mark.parametrize(("rank", "status"), [(None, 143), (1, 0)])
def test_sigterm_stops_all_ranks_cleanly_and_none_is_started_again(
    warm: WarmSource, run: Path, rank: int | None, status: int
) -> None:
    weights = run.with_name("weights.pt")
    own = ("--fsdp", "--max-restarts", "3") if rank is None else ()
    with ranks(run, "--save-weights", str(weights), *own, warm=warm) as process:
        os.kill(process.pid if rank is None else pid_of(rank, process), signal.SIGTERM)
        _, said = process.communicate(timeout=90)
    assert process.returncode == status, said
    assert last(RunFinished, run).reason == "stopped"
    assert (RunDir(run).holds_checkpoints, weights.exists(), of(RunResumed, run)) == (True, True, [])


@pytest.mark.parametrize(
    "kills", [pytest.param(True, marks=pytest.mark.ci), pytest.param(False, marks=pytest.mark.nightly)]
)
def test_ranks_that_wait_for_another_end_when_it_is_killed_or_they_are_stopped(
    *, kills: bool, warm: WarmSource, run: Path
) -> None:
    with ranks(run, "--set", "loading_seconds=600", until=is_building, warm=warm) as process:
        if kills:
            os.kill(pid_of(1, process), signal.SIGKILL)
        else:
            process.terminate()
        process.communicate(timeout=100)
    assert process.returncode == (1 if kills else 143)
    if kills:
        assert_lost(run, 1, "killed")
    else:
        end = last(RunFinished, run)
        assert (end.reason, end.steps) == ("stopped", 0)


@pytest.mark.parametrize(
    ("rank", "stuck", "start"),
    [
        pytest.param(0, False, ALONE, marks=pytest.mark.ci, id="0 does not answer"),
        pytest.param(1, True, TORCHRUN, marks=pytest.mark.nightly, id="1 is stuck in after_step"),
    ],
)
def test_a_rank_that_hangs_ends_the_run_with_its_name_and_the_stacks(
    warm: WarmSource, run: Path, rank: int, start: Sequence[str], *, stuck: bool
) -> None:
    """Rank 0 keeps the journal, which of one that does not answer has no end."""
    lags = ("--set", f"lags_on_rank={rank}", "--set", "lag_step=3", "--set", "lag_seconds=600")
    with ranks(run, "--hang-timeout", "10", *(lags if stuck else ()), start=start, warm=warm) as process:
        all_of_them = family(process.pid)
        if not stuck:
            os.kill(pid_of(rank, process), signal.SIGSTOP)
        _, said = process.communicate(timeout=100)
        _, alive = psutil.wait_procs(all_of_them, timeout=10)
    assert (process.returncode, alive) == (1, []), said
    if rank == 0:
        assert "amptui: rank 0 hung: its process has not answered for " in said
        return
    assert_lost(run, rank, "hung")
    (taken,) = of(StacksTaken, run)
    stacks = {each.rank: each.stack for each in taken.stacks}
    assert f"amptui: rank {rank} hung: it made the others wait for " in said
    assert "in after_step(), step 3" in said
    assert [each for each in stacks if "time.sleep(self.lag_seconds)" in stacks[each]] == [rank]
    assert [*stacks] == [0, 1]


EVERY_5 = ("--checkpoint-every", "5", "--epochs", "10")


def held(go_on: Path) -> Sequence[str]:
    """The options of a run that makes 20 steps, which take a while, and more when there is ``go_on``."""
    return ("--set", "slow_seconds=0.02", "--set", f"held={go_on}")


def kill(rank: int, process: PipedProcess, go_on: Path) -> None:
    """Kill a rank of a run that is held; what is started again is not."""
    os.kill(pid_of(rank, process), signal.SIGKILL)
    go_on.touch()


def assert_is_one_whole_run(run: Path, steps: int) -> None:
    """Each step is there once, in order, and so are the start and the end."""
    assert [record.step for record in steps_of(run)] == list(range(1, steps + 1))
    assert len(of(RunStarted, run)) == 1
    assert outcome(run) is RunFinished


@pytest.mark.parametrize(
    ("start", "own"),
    [
        pytest.param(ALONE, ("--max-restarts", "1", "--fsdp"), marks=pytest.mark.ci, id="nproc, fsdp"),
        pytest.param(
            (*TORCHRUN[:3], "--max-restarts", "1", *TORCHRUN[3:]),
            (),
            marks=pytest.mark.nightly,
            id="torchrun",
        ),
    ],
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
    assert [(row.restarts, row.max_restarts) for row in of(RanksStarted, run)] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("rank", "own"),
    [
        pytest.param(0, (), marks=pytest.mark.ci, id="0 of ddp"),
        pytest.param(1, ("--fsdp",), marks=pytest.mark.nightly, id="1 of fsdp"),
    ],
)
def test_a_killed_rank_ends_the_run_with_its_name_and_the_way_on(
    warm: WarmSource, run: Path, go_on: Path, rank: int, own: Sequence[str]
) -> None:
    with ranks(run, *EVERY_5, *held(go_on), *own, until=has_a_checkpoint, warm=warm) as process:
        kill(rank, process, go_on)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    line = said.splitlines()[-1]
    assert line.startswith(f"amptui: rank {rank} was killed")
    assert line.endswith(f": {resume_command(run)}")
    if rank:
        assert_lost(run, rank, "killed")
        assert last(RunFailed, run).error.endswith(f": {resume_command(run)}")


def resumed(run: Path, warm: WarmSource, *options: str) -> tuple[int, str]:
    words = shlex.split(resume_command(run))[2:]
    with start_piped([*ALONE, "train", *words, *options], warm) as process:
        _, said = process.communicate(timeout=240)
    return process.wait(), "\n".join(own_lines(said))


@pytest.mark.ci
def test_a_run_of_ranks_is_resumed_and_by_no_number_that_does_not_fit(warm: WarmSource, run: Path) -> None:
    with ranks(run, "--epochs", "2", warm=warm) as process:
        process.communicate(timeout=60)
    before = (run / "journal.jsonl").read_bytes()
    status, said = resumed(run, warm, "--nproc", "3")
    assert (status, said.count("\n")) == (2, 0)
    assert "3 ranks cannot share" in said
    assert (run / "journal.jsonl").read_bytes() == before

    status, said = resumed(run, warm, "--epochs", "3")
    assert status == 0, said
    assert_is_one_whole_run(run, 18)
    assert [record.world_size for record in of(RunResumed, run)] == [2]
    assert RunDir(run).holds_checkpoints


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
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@contextmanager
def started(
    run: Path,
    names: Sequence[str],
    warm: WarmSource,
    *,
    options: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[list[PipedProcess]]:
    """Two processes of ``amptui train``, whose rank, size and local rank have these ``names``."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    words = [*ALONE, "train", MODEL, "--device", "cpu", "--run-dir", str(run), *options]
    with ended_afterwards(run), ExitStack() as stack:
        processes = []
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
        for rank in ("0", "1"):
            common = {"OMP_NUM_THREADS": "1", **master}
            place = dict(zip(names, (rank, "2", rank), strict=True))
            process = start_piped(words, warm, bare | common | place)
            stack.enter_context(process)
            stack.callback(kill_all, process.pid)
            processes.append(process)
        yield processes


PLAIN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")


@pytest.mark.ci
def test_ranks_of_another_launcher_are_one_run(warm: WarmSource, run: Path) -> None:
    with started(run, OPEN_MPI, warm, options=("--epochs", "1", "--fsdp")) as processes:
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
        with started(run, PLAIN, warm, port=port) as (leader, _):
            said = leader.communicate(timeout=120)[1]
    assert leader.returncode == 1
    told = f"amptui: rank 0 cannot listen at MASTER_ADDR:MASTER_PORT, 127.0.0.1:{port}: another program has"
    assert said == f"{told} that port; set MASTER_PORT to a free port for all ranks\n"


@pytest.mark.ci
def test_what_rank_0_refuses_ends_all_ranks_of_any_launcher(warm: WarmSource, run: Path) -> None:
    run.mkdir()
    (run / "journal.jsonl").touch()
    with started(run, PLAIN, warm) as processes:
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
