"""Several trainings that take turns on one machine: all but one are stopped at any time, by SIGSTOP.

What drifts over minutes (clocks, heat, other users) then falls on neighbouring turns alike. Turns go A B B A,
so that what drifts evenly cancels. The first part of each turn is not counted: caches are cold, a screen that
was stopped draws itself anew, a queue of the device fills.

Two processes that run the same program differ by a few percent for as long as they live: where memory lies
and how dictionaries hash is drawn once per process. So all sides are started anew several times.
"""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt
import psutil

from tests.benchmarks.lab import Lab
from tests.benchmarks.side import TUTORIAL
from tests.benchmarks.timed import VARIABLE, read_stamps
from tests.checkout import ROOT
from tests.living import run_pid, wait_until
from tests.terminal import Terminal, amptui_command

APP = "app"
"""The side that is the whole app, with one screen of 120x40 in a terminal that takes all it writes."""

WARM_UP_STEPS = 10
"""Steps that no rate counts."""

WARM_UP_SECONDS = 2.0
"""A process's first seconds do not count: a run is described, samplers begin, a screen is drawn whole."""

SETTLE_PART = 0.25
"""The first part of a turn, which does not count."""

MIN_STEPS = 3
"""Step times that a turn needs: on a slow machine it lasts until it has them."""

MAX_TURN_SECONDS = 60.0

QUIET_CORES = 0.1
"""So much of one core others may use while a turn counts as undisturbed: the kernel's own threads do."""

_TAKE_INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training; every side gets its data, seed, batch size, device and number of threads."""

    name: str
    timed_class: str
    """The experiment in ``tests/benchmarks/timed.py``."""
    batch_size: int
    threads: int
    min_rate_ratio: float
    """The aim: the app's step rate by the plain loop's."""
    turn_seconds: float
    """How long one side trains before the next does."""
    device: str
    precision: str = "fp32"
    compiles: bool = False
    mnist: Path | None = None


def workloads(*, on_gpu: bool, quick: bool) -> dict[str, Workload]:
    """By name. ``quick`` shows that everything runs; its figures say little."""
    device = "cuda" if on_gpu else "cpu"
    found = (
        Workload(
            name="launch_bound",
            timed_class="TimedLaunchBound",
            batch_size=16,
            threads=1,
            min_rate_ratio=0.970,
            turn_seconds=0.6 if quick else 2.0,
            device=device,
        ),
        Workload(
            name="mnist_deep",
            timed_class="TimedMnistDeep",
            batch_size=256 if on_gpu else 32,
            threads=len(os.sched_getaffinity(0)),  # OpenMP's own default
            min_rate_ratio=0.995,
            turn_seconds=2.0 if on_gpu else 6.0,
            device=device,
        ),
    )
    return {workload.name: workload for workload in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side did in one turn, its first part left out."""

    step_seconds: npt.NDArray[np.float64]
    """Of each step, by the host's clock: [N]."""
    other_cores: float
    """Cores that other programs and other virtual machines used meanwhile."""
    restart: int
    """How many times all sides had been started anew before: turns of one restart share their processes."""

    @property
    def is_quiet(self) -> bool:
        return self.other_cores <= QUIET_CORES


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    workload: Workload
    stamps: Path
    pids: tuple[int, ...]
    """All its processes, what draws the screen last."""

    @property
    def steps(self) -> int:
        return len(read_stamps(self.stamps)[1])

    def send(self, number: signal.Signals) -> None:
        """Stop all its processes where they are, or let them run."""
        for pid in self.pids:
            os.kill(pid, number)


@contextmanager
def open_side(lab: Lab, workload: Workload, name: str) -> Iterator[Side]:
    """Start a side and let it run through its warm-up; it stands still when this returns."""
    folder = Path(mkdtemp(dir=lab.folder, prefix=f"{name}-"))
    run, output = folder / "run", folder / "output.log"
    before = lab.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    environment = {
        **lab.environment,
        "OMP_NUM_THREADS": str(workload.threads),
        "PYTHONPATH": os.pathsep.join(filter(None, [before, str(ROOT)])),
        VARIABLE: str(folder / "stamps"),
    }
    model = f"{ROOT / 'tests' / 'benchmarks' / 'timed.py'}:{workload.timed_class}"
    options = ["--batch-size", str(workload.batch_size), "--precision", workload.precision]
    options += ["--device", workload.device]
    pids: tuple[int, ...]
    with ExitStack() as stack:
        if name == APP:
            options += ["--data", "synthetic", "--epochs", "1000000", "--run-dir", str(run)]
            options += ["--compile"] if workload.compiles else []
            command = amptui_command("train", model, *options)
            terminal = stack.enter_context(Terminal(command, env=environment))
            stack.enter_context(_taking(terminal))
            screen = terminal.process.pid
            wait_until(lambda: run_pid(run), "the run's process does not start", seconds=lab.limit_seconds())
            pids, output = (run_pid(run) or screen, screen), run / "journal.jsonl"
        else:
            options += ["--mnist", str(workload.mnist)] if workload.mnist else []
            command = [sys.executable, "-m", "tests.benchmarks.side", name, model, *options]
            log, env = stack.enter_context(output.open("wb")), {**os.environ, **environment}
            process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            pids = (stack.enter_context(process).pid,)
        side = Side(name, workload, folder / "stamps", pids)
        try:
            limit, warm = time.monotonic() + lab.limit_seconds(), math.inf
            while time.monotonic() < warm:
                trains = (
                    psutil.pid_exists(pids[0]) and psutil.Process(pids[0]).status() != psutil.STATUS_ZOMBIE
                )
                if not trains or time.monotonic() > limit:
                    said = output.read_text(encoding="utf-8", errors="replace")
                    raise RuntimeError(f"{name} of {workload.name} does not train: {said[-2000:]}")
                if warm == math.inf and side.steps > WARM_UP_STEPS + MIN_STEPS:
                    warm = time.monotonic() + WARM_UP_SECONDS
                time.sleep(_TAKE_INTERVAL_SECONDS)
            side.send(signal.SIGSTOP)
            yield side
        finally:
            # The trainings first: the app's outlives its screen.
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def _taking(terminal: Terminal) -> Iterator[None]:
    """Take what the terminal is sent and throw it away, as a quick link does."""
    terminal.read(5.0)  # what a terminal is asked at the start wants an answer
    over = threading.Event()
    os.set_blocking(terminal.master, False)

    def take() -> None:
        while not over.wait(_TAKE_INTERVAL_SECONDS):
            with suppress(OSError):  # nothing more for now
                while os.read(terminal.master, 65536):
                    pass

    taker = threading.Thread(target=take)
    taker.start()
    try:
        yield
    finally:
        over.set()
        taker.join()


def take_turns(
    lab: Lab,
    entrants: Mapping[str, tuple[str, Workload]],
    *,
    restarts: int,
    rounds: int,
    longest_seconds: float,
) -> dict[str, list[Turn]]:
    """Turns of each entrant: ``rounds`` with each of ``restarts`` sets of processes.

    The same number of all; fewer rounds, and in the end fewer restarts, where time runs out.
    An entrant is a side, ``APP`` or one of ``side.py``, and what it trains, by any name.
    Raises RuntimeError where two sides do not train the same, AssertionError where one stands still.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in entrants}
    began = time.monotonic()
    for restart in range(restarts):
        limit = min(began + longest_seconds * (restart + 1) / restarts, lab.deadline)
        if restart and time.monotonic() > limit:
            break
        with ExitStack() as stack:
            sides = {
                name: stack.enter_context(open_side(lab, workload, side))
                for name, (side, workload) in entrants.items()
            }
            hold_to_the_same_training(sides)
            for number in range(rounds):
                for name in sides if (restart + number) % 2 == 0 else reversed(sides):
                    turns[name].append(take_turn(sides[name], [*sides.values()], restart))
                told = f"start {restart + 1}, round {number + 1}/{rounds} of {', '.join(sides)}"
                print(told, file=sys.stderr, flush=True)
                if time.monotonic() > limit:
                    break
    return turns


def hold_to_the_same_training(sides: Mapping[str, Side]) -> None:
    """Raise RuntimeError unless all of one precision began with the same weights and the same batch."""
    first: dict[str, float] = {}
    for side in sides.values():
        loss, _ = read_stamps(side.stamps)
        # Kernels may add up in another order: no two of them differ by as much as one in a thousand.
        # A tutorial's data come in an order of their own.
        if side.name != TUTORIAL and not np.isclose(
            loss, first.setdefault(side.workload.precision, loss), rtol=1e-3
        ):
            losses = {name: read_stamps(each.stamps)[0] for name, each in sides.items()}
            raise RuntimeError(f"the sides do not train the same; first losses: {losses}")


def take_turn(side: Side, sides: Sequence[Side], restart: int) -> Turn:
    """Let one side train for a turn and stop it again."""
    pids, seconds = [pid for each in sides for pid in each.pids], side.workload.turn_seconds
    side.send(signal.SIGCONT)
    time.sleep(seconds * SETTLE_PART)
    began, used_before, steps = time.perf_counter(), _used_by_others(pids), side.steps
    time.sleep(seconds * (1 - SETTLE_PART))
    wait_until(
        lambda: side.steps > steps + MIN_STEPS,
        f"{side.name} of {side.workload.name} does not go on",
        seconds=MAX_TURN_SECONDS,
    )
    ended, used = time.perf_counter(), _used_by_others(pids) - used_before
    side.send(signal.SIGSTOP)
    stamps = read_stamps(side.stamps)[1]
    first, last = np.searchsorted(stamps, (began, ended))
    other_cores = max(0.0, used) / (ended - began)
    return Turn(step_seconds=np.diff(stamps[first:last]), other_cores=other_cores, restart=restart)


def _used_by_others(pids: Sequence[int]) -> float:
    """Processor seconds of these cores so far, but for interrupts, less those of ``pids`` and of this one."""
    cores = psutil.cpu_times(percpu=True)
    times = [cores[number] for number in os.sched_getaffinity(0)]
    all_programs = sum(core.user + core.nice + core.system + getattr(core, "steal", 0.0) for core in times)
    used = [psutil.Process(pid).cpu_times() for pid in (*pids, os.getpid())]
    return all_programs - sum(one.user + one.system for one in used)
