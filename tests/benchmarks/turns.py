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
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt
import psutil

from tests.benchmarks import stamps
from tests.benchmarks.lab import Lab
from tests.benchmarks.side import SIDES
from tests.benchmarks.stamps import StampReader
from tests.benchmarks.workloads import WARM_UP_STEPS, Workload
from tests.checkout import ROOT
from tests.living import run_pid, wait_until
from tests.terminal import Terminal, amptui_command

APP = "app"
"""The side that is the whole app, with one screen of 120x40 in a terminal that takes all it writes."""

ALL_SIDES = (*SIDES, APP)

TUTORIAL = "tutorial"
"""The side whose data come in an order of their own."""

MIN_STEPS = 3
"""Step times that a turn needs: on a slow machine it lasts until it has them."""

MAX_TURN_SECONDS = 60.0

WARM_UP_SECONDS = 2.0
"""A process's first seconds do not count: a run is described, samplers begin, a screen is drawn whole."""

QUIET_CORES = 0.1
"""So much of one core others may use while a turn counts as undisturbed: the kernel's own threads do."""

_TAKE_INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side did in one turn, its first part left out."""

    step_seconds: npt.NDArray[np.float64]
    """Of each step, by the host's clock: [N]."""
    thread_seconds: npt.NDArray[np.float64]
    """What each step took of the training thread's processor time: [N]."""
    other_cores: float
    """Cores that other programs and other virtual machines used meanwhile."""
    restart: int
    """How many times all sides had been started anew before: turns of one restart share their processes."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing else took the processor."""
        return self.other_cores <= QUIET_CORES


@dataclass(slots=True)
class Side:
    """One training that can be stopped and goes on."""

    name: str
    reader: StampReader
    pids: tuple[int, ...]
    """All its processes, what draws the screen last."""
    has_ended: Callable[[], bool]
    said: Callable[[], str]
    """What it wrote, for a person who has to find out why it does not train."""

    def go_on(self) -> None:
        """Let all its processes run."""
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)

    def stand_still(self) -> None:
        """Stop all its processes where they are."""
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class _Look:
    """All counters at one moment of the monotonic clock."""

    time: float
    others: float
    """Processor seconds of these cores that other programs and virtual machines used so far."""


@contextmanager
def open_side(lab: Lab, workload: Workload, name: str) -> Iterator[Side]:
    """Start a side and let it run through its warm-up; it stands still when this returns."""
    folder = Path(mkdtemp(dir=lab.folder, prefix=f"{name}-"))
    reader = StampReader(folder / "stamps")
    before = lab.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(filter(None, [before, str(ROOT)]))
    environment = {**lab.environment, **workload.environment, "PYTHONPATH": path}
    environment[stamps.VARIABLE] = str(folder / "stamps")
    start = _app if name == APP else _child
    with start(lab, workload, name, folder, environment, reader) as side:
        try:
            _wait_for_warm_up(side, f"{name} of {workload.name}", lab.limit_seconds())
            side.stand_still()
            yield side
        finally:
            # The trainings first: the app's outlives its screen.
            for pid in side.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _wait_for_warm_up(side: Side, what: str, seconds: float) -> None:
    limit, warm = time.monotonic() + seconds, math.inf
    while time.monotonic() < warm:
        if side.has_ended() or time.monotonic() > limit:
            raise RuntimeError(f"{what} does not train: {side.said()[-2000:]}")
        if warm == math.inf and side.reader.count > WARM_UP_STEPS + MIN_STEPS:
            warm = time.monotonic() + WARM_UP_SECONDS
        time.sleep(_TAKE_INTERVAL_SECONDS)


@contextmanager
def _child(
    lab: Lab, workload: Workload, name: str, folder: Path, environment: Mapping[str, str], reader: StampReader
) -> Iterator[Side]:
    command = [sys.executable, "-m", "tests.benchmarks.side", name, workload.timed_model, str(folder / "run")]
    command += [*workload.options, *(["--mnist", str(workload.mnist)] if workload.mnist else [])]
    with lab.start(command, environment, folder / "output.log") as process:
        yield Side(
            name,
            reader,
            pids=(process.pid,),
            has_ended=lambda: process.poll() is not None,
            said=lambda: (folder / "output.log").read_text(encoding="utf-8", errors="replace"),
        )


@contextmanager
def _app(
    lab: Lab, workload: Workload, name: str, folder: Path, environment: Mapping[str, str], reader: StampReader
) -> Iterator[Side]:
    run = folder / "run"
    command = ["train", workload.timed_model, "--data", "synthetic", "--epochs", "1000000"]
    command += [*workload.options, "--run-dir", str(run), *(["--compile"] if workload.compiles else [])]
    with Terminal(amptui_command(*command), env=environment) as terminal, _taking(terminal):
        screen = terminal.process.pid
        wait_until(lambda: run_pid(run), "the run's process does not start", seconds=lab.limit_seconds())
        yield Side(
            name,
            reader,
            pids=(run_pid(run) or screen, screen),
            has_ended=lambda: run_pid(run) is None,
            said=lambda: (run / "journal.jsonl").read_text(encoding="utf-8"),
        )


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


# ------------------------------------------------------------------------------------------- turns


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
    An entrant is a side, one of :data:`ALL_SIDES`, and what it trains, by any name.
    Raises RuntimeError where two sides do not train the same, AssertionError where one stands still.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in entrants}
    began = time.monotonic()
    for restart in range(restarts):
        limit = min(began + longest_seconds * (restart + 1) / restarts, lab.deadline)
        if restart and time.monotonic() > limit:
            break
        for name, of in _take_turns_once(lab, entrants, restart, rounds, limit).items():
            turns[name] += of
    return turns


def _take_turns_once(
    lab: Lab, entrants: Mapping[str, tuple[str, Workload]], restart: int, rounds: int, limit: float
) -> dict[str, list[Turn]]:
    """Turns of processes that live as long as this; no round but the first begins after ``limit``."""
    turns: dict[str, list[Turn]] = {name: [] for name in entrants}
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(open_side(lab, workload, side))
            for name, (side, workload) in entrants.items()
        }
        for precision in {workload.precision for _, workload in entrants.values()}:
            hold_to_the_same_training(
                {
                    name: sides[name].reader.first_loss
                    for name, (side, workload) in entrants.items()
                    if side != TUTORIAL and workload.precision == precision
                }
            )
        for number in range(rounds):
            for name in sides if (restart + number) % 2 == 0 else reversed(sides):
                turns[name].append(take_turn(sides[name], [*sides.values()], entrants[name][1], restart))
            told = f"start {restart + 1}, round {number + 1}/{rounds} of {', '.join(sides)}"
            print(told, file=sys.stderr, flush=True)
            if time.monotonic() > limit:
                break
    return turns


def take_turn(side: Side, sides: Sequence[Side], workload: Workload, restart: int) -> Turn:
    """Let one side train for a turn and stop it again."""
    every = tuple(pid for each in sides for pid in each.pids)
    side.go_on()
    time.sleep(workload.turn_seconds * workload.settle_part)
    before = _look(every)
    steps = side.reader.count
    time.sleep(workload.turn_seconds * (1 - workload.settle_part))
    wait_until(
        lambda: side.reader.count > steps + MIN_STEPS,
        f"{side.name} of {workload.name} does not go on",
        seconds=MAX_TURN_SECONDS,
    )
    after = _look(every)
    side.stand_still()
    return _turn(side, before, after, restart)


def hold_to_the_same_training(losses: Mapping[str, float]) -> None:
    """Raise RuntimeError unless all began with the same weights and the same batch."""
    first = next(iter(losses.values()), 0.0)
    # Kernels may add up in another order: no two of them differ by as much as one in a thousand.
    if not all(np.isclose(loss, first, rtol=1e-3) for loss in losses.values()):
        raise RuntimeError(f"the sides do not train the same; first losses: {losses}")


def _look(every: Sequence[int]) -> _Look:
    """What the cores did, but for interrupts, less what these processes and this one did."""
    cores = psutil.cpu_times(percpu=True)
    times = [cores[number] for number in os.sched_getaffinity(0)]
    all_programs = sum(core.user + core.nice + core.system + getattr(core, "steal", 0.0) for core in times)
    used = [psutil.Process(pid).cpu_times() for pid in (*every, os.getpid())]
    return _Look(time.perf_counter(), all_programs - sum(one.user + one.system for one in used))


def _turn(side: Side, before: _Look, after: _Look, restart: int) -> Turn:
    found = side.reader.between(before.time, after.time)
    step_seconds, thread_seconds = np.diff(found, axis=0).T
    return Turn(
        step_seconds=step_seconds,
        thread_seconds=thread_seconds,
        other_cores=max(0.0, after.others - before.others) / (after.time - before.time),
        restart=restart,
    )
