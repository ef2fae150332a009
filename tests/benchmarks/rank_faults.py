"""What becomes of a run whose ranks get into trouble: real ranks, one fault after the other.

    python -m tests.benchmarks.rank_faults [--only NAME ...] [--ranks 4] [--backend gloo|nccl] [--seconds 90]

Each row is a run of ``amptui train --nproc`` with one fault, over gloo on the CPU, or over torch's NCCL on
pretended GPUs (``tests/simcuda``): how it ended, and whether that is right. ``--only`` takes beginnings of
names, ``--keep FOLDER`` keeps journals and output. All of it takes an hour on two busy cores.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.fault_outcomes import HEAD, Expected, row, skipped_row, table
from tests.benchmarks.fault_runs import Command, Fault, Run, tried
from tests.checkout import ROOT, child_environment
from tests.simcuda.build import DoesNotFitError, build_once, environment
from tests.simcuda.device import NCCL

BACKENDS = ("gloo", "nccl")

SLOW_SECONDS = 90.0

_SHORT_TIMEOUT = ("--hang-timeout", "20")

_STEPS = 120
"""Of a run that has to finish."""

_STOPPED_SECONDS = 15.0


def faults(seconds: float) -> Iterator[Fault]:
    """All that is tried; what is slow takes ``seconds``."""
    yield from _slow_ranks(seconds)
    yield from _stopped_ranks()
    yield from _ended_ranks()
    yield from _other_trouble()
    yield from _namespaces()


def _slow_ranks(seconds: float) -> Iterator[Fault]:
    places = [
        ("loader", 1, "loading"),
        ("after_step", 0, "after_step"),
        ("after_step", 1, "after_step"),
    ]
    for fault, rank, phase in places:
        settings = {"fault": fault, "on_rank": rank}
        slow = Fault(
            name=f"slow {fault}, rank {rank}",
            expected=Expected(status=0, finishes=True, awaited=(rank, phase)),
            settings=settings,
            steps=_STEPS,
            lasts_seconds=seconds,
        )
        yield slow
        hung = Expected(says=f"rank {rank} hung", awaited=(rank, phase), lost=(rank, "hung"), stacks=True)
        short = replace(slow, expected=hung, options=_SHORT_TIMEOUT, steps=100_000, lasts_seconds=600.0)
        short = replace(short, name=f"stuck {fault}, rank {rank}, --hang-timeout 20")
        yield short
        if fault == "after_step" and rank == 0:
            yield replace(short, name=f"FSDP: {short.name}", options=("--fsdp", *_SHORT_TIMEOUT))


def _stopped_ranks() -> Iterator[Fault]:
    for rank in (1, 0):
        silent = Expected(
            says=f"rank {rank} hung: its process has not answered",
            lost=(rank, "hung"),
            stacks=True,
            keeps_all=rank != 0,
        )
        stopped = Fault(
            name=f"SIGSTOP of rank {rank}, --hang-timeout 20",
            expected=silent,
            options=_SHORT_TIMEOUT,
            act=_signalled(rank, signal.SIGSTOP),
        )
        yield stopped
        if rank == 0:
            yield replace(stopped, name=f"FSDP: {stopped.name}", options=("--fsdp", *_SHORT_TIMEOUT))
        yield Fault(
            name=f"SIGSTOP of rank {rank}, SIGCONT after {_STOPPED_SECONDS:.0f} s",
            # Rank 0 is the one that names others: while it is stopped nobody is named.
            expected=Expected(status=0, finishes=True, awaited=(1, "silent") if rank else None),
            act=_signalled(rank, signal.SIGSTOP, signal.SIGCONT),
            steps=400,
        )


def _ended_ranks() -> Iterator[Fault]:
    killed = "was killed"
    for rank in (1, 0):
        of_rank = Expected(says=f"rank {rank} {killed}", lost=(rank, "killed"), keeps_all=rank != 0)
        kill = Fault(name=f"kill -9 of rank {rank}", expected=of_rank, act=_signalled(rank, signal.SIGKILL))
        yield kill
        if rank == 1:
            yield replace(kill, name=f"FSDP: {kill.name}", options=("--fsdp",))
            own = {"fault": "kill", "on_rank": rank}
            yield replace(kill, name=f"{kill.name} by itself, in a step", act=None, settings=own)
    gone = Expected(status=-signal.SIGKILL, says="the launcher .* is gone", checkpoint=True)
    launcher = Fault(name="kill -9 of the launcher", expected=gone, act=_kill_launcher, left_seconds=60.0)
    yield launcher
    yield replace(launcher, name=f"FSDP: {launcher.name}", options=("--fsdp",))
    each_step = ("--checkpoint-every", "1")
    yield replace(launcher, name="launcher killed, a checkpoint each step", options=each_step)
    sharded = ("--fsdp", *each_step)
    yield replace(launcher, name="FSDP: launcher killed, a checkpoint each step", options=sharded)
    for fault, name, call in (("exit", "os._exit(3)", r"os\._exit"), ("exec", "os.execv()", r"os\.execv")):
        called = Expected(says=f"rank 1: .*{call}", lost=(1, "failed"))
        yield Fault(name=f"rank 1 calls {name}", expected=called, settings={"fault": fault})
    ended = Expected(says=f"rank 1 {killed}", lost=(1, "killed"))
    yield Fault(name="rank 1 calls C's _exit(0)", expected=ended, settings={"fault": "exit in C"})
    program = Expected(says="rank 1 hung: its process has not answered", lost=(1, "hung"), stacks=True)
    yield Fault(
        name="rank 1 calls C's execl(), --hang-timeout 20",  # the new program keeps the connections open
        expected=program,
        settings={"fault": "exec in C"},
        options=_SHORT_TIMEOUT,
    )


def _other_trouble() -> Iterator[Fault]:
    wrong = Expected(says="rank 2: .*a wrong number", lost=(2, "failed"))
    yield Fault(name="a Python error in rank 2", expected=wrong, settings={"fault": "error", "on_rank": 2})
    memory = Expected(says="rank 1: .*out of memory", lost=(1, "out of memory"))
    yield Fault(name="out of memory on rank 1", expected=memory, settings={"fault": "memory"})
    for rank, status in ((1, 0), (0, 128 + signal.SIGTERM)):
        yield Fault(
            name=f"SIGTERM to rank {rank}",
            expected=Expected(status=status, finishes=True, checkpoint=True),
            act=_signalled(rank, signal.SIGTERM),
        )
    yield Fault(
        name="SIGSTOP of the launcher, SIGCONT after 75 s",
        expected=Expected(status=0, finishes=True),
        act=_stop_launcher,
        settings={"step_seconds": 0.2},  # it trains longer than that, also on a quiet machine
        steps=600,
    )
    hung = Expected(says="rank 1 hung: its process has not answered", lost=(1, "hung"), stacks=True)
    yield Fault(
        name="the same, then SIGSTOP of rank 1, --hang-timeout 20",
        expected=hung,
        options=_SHORT_TIMEOUT,
        act=_stop_launcher_and_later_a_rank,
        settings={"step_seconds": 0.2},
    )
    yield Fault(
        name="no room in /dev/shm",
        expected=Expected(says="(?s)unhandled system error.*/dev/shm"),
        variables={"SIMCUDA_NCCL_SHM_MIB": "0.5"},
        is_from_start=True,
        backends=("nccl",),
    )


def _namespaces() -> Iterator[Fault]:
    done, both = Expected(status=0, finishes=True), ("gloo",)
    apart = Fault(
        name="a PID namespace with its host's /proc",
        expected=done,
        is_from_start=True,
        commands=_in_one_namespace,
        backends=both,
        steps=_STEPS,
    )
    yield apart
    yield replace(apart, name="a PID namespace for each rank", commands=_in_namespaces)
    ended = Expected(never_says="rank [02-9]( was killed| hung|:)")
    kill = replace(apart, name="a PID namespace for each rank, kill -9 of rank 1", steps=100_000)
    yield replace(kill, expected=ended, act=_signalled(1, signal.SIGKILL), commands=_in_namespaces)


def _signalled(rank: int, first: int, then: int = 0) -> "_Signalled":
    return _Signalled(rank, first, then)


class _Signalled:
    """Sends a signal to a rank, and perhaps another one later."""

    def __init__(self, rank: int, first: int, then: int) -> None:
        self.rank, self.first, self.then = rank, first, then

    def __call__(self, run: Run) -> None:
        process = run.rank(self.rank)
        run.note_fault()
        process.send_signal(self.first)
        if self.then:
            time.sleep(_STOPPED_SECONDS)
            process.send_signal(self.then)


def _kill_launcher(run: Run) -> None:
    run.note_fault()
    run.started[0].kill()


def _stop_launcher(run: Run) -> None:
    run.note_fault()
    run.started[0].send_signal(signal.SIGSTOP)
    time.sleep(75.0)
    run.started[0].send_signal(signal.SIGCONT)


def _stop_launcher_and_later_a_rank(run: Run) -> None:
    _stop_launcher(run)
    time.sleep(5.0)
    _signalled(1, signal.SIGSTOP)(run)


def _in_one_namespace(words: Sequence[str], ranks: int) -> list[Command]:
    return [(["unshare", "--pid", "--fork", "--kill-child", *words, "--nproc", str(ranks)], {})]


def _in_namespaces(words: Sequence[str], ranks: int) -> list[Command]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *words]
    return [(own, common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]


# ------------------------------------------------------------------------------ running them


def refusal(fault: Fault) -> str:
    """Why it cannot be tried here; empty if it can."""
    if fault.commands not in (_in_one_namespace, _in_namespaces):
        return ""
    try:
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "true"],
            capture_output=True,
            check=False,
            timeout=60,
        )
    except OSError:
        return "there is no unshare(1)"
    return "this user may not make PID namespaces" if done.returncode else ""


def environment_of(backend: str, base: Mapping[str, str], ranks: int) -> Mapping[str, str]:
    """The variables of a run over ``backend``. Raises DoesNotFitError where there is none."""
    if backend == "gloo":
        return base
    folder = build_once(ROOT / ".pytest_cache" / "d" / "simcuda")
    if not (folder / NCCL).exists():
        raise DoesNotFitError("no headers of NCCL beside this torch")
    return environment(folder, base, devices=ranks)


def rows(options: argparse.Namespace, base: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """One for each fault and backend."""
    for fault in faults(options.seconds):
        if options.only and not fault.name.startswith(tuple(options.only)):
            continue
        for backend in BACKENDS if options.backend is None else (options.backend,):
            if backend not in fault.backends:
                continue
            try:
                variables = environment_of(backend, base, options.ranks)
            except DoesNotFitError as error:
                yield skipped_row(fault.name, backend, str(error))
                continue
            if reason := refusal(fault):
                yield skipped_row(fault.name, backend, reason)
                continue
            keep = None if options.keep is None else options.keep / backend
            device = "cpu" if backend == "gloo" else "cuda"
            expected = fault.expected
            if backend == "nccl" and not expected.finishes:
                expected = replace(expected, keeps_all=False)  # only the trainer may ask the GPU for numbers
            outcome = tried(fault, options.ranks, variables, device, keep)
            yield row(fault.name, backend, outcome, expected)


def main(arguments: Sequence[str] | None = None) -> None:
    """Try what the command line names, and print the table."""
    parser = argparse.ArgumentParser(description="What becomes of a run whose ranks get into trouble.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="faults whose names begin so")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", choices=BACKENDS, help="default: both")
    parser.add_argument("--seconds", type=float, default=SLOW_SECONDS, help="how long a slow rank takes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where journals and output stay")
    options = parser.parse_args(arguments)
    cells = []
    with child_environment() as added:
        for line in rows(options, {**os.environ, **added}):
            cells.append(line)
            print(" | ".join(line), file=sys.stderr)
    print(table(cells))
    print(json.dumps([dict(zip(HEAD, line, strict=True)) for line in cells]))


if __name__ == "__main__":
    main()
