"""The runs that tests start: found by the lock that a living run holds, and ended with the test."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from amptui.records.run import Record, RunFailed, RunFinished
from amptui.runs.lock import holder
from tests.builders import StepRow, of, read
from tests.recipes.witness import witnessed
from tests.terminal import KNOBS, Terminal, amptui_command
from tests.warm import PATIENCE_SECONDS, Process, WarmSource

T = TypeVar("T")

ALT_SCREEN_OFF = b"\x1b[?1049l"
CURSOR_ON = b"\x1b[?25h"


def run_pid(folder: Path) -> int | None:
    """The process that trains in ``folder``; None where no living one does."""
    found = holder(folder)
    return found.pid if found is not None else None


@contextmanager
def ended_afterwards(folder: Path) -> Iterator[None]:
    """Whatever the test does, no run in ``folder`` outlives it."""
    try:
        yield
    finally:
        pid = run_pid(folder)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def records_of(folder: Path) -> list[Record]:
    journal = folder / "journal.jsonl"
    return list(read(journal)) if journal.exists() else []


def steps_of(folder: Path) -> list[StepRow]:
    return of(StepRow, records_of(folder))


def last_step(folder: Path) -> int:
    """The journal's newest step; 0 before the first."""
    return max((record.step for record in steps_of(folder)), default=0)


def screens(folder: Path) -> int:
    """How many screens are attached to the run's socket now."""
    sockets = Path("/proc/net/unix").read_text().count(f"{folder.resolve()}/run.sock\n")
    return max(0, sockets - 1)  # it listens with one


def outcome(folder: Path) -> type[Record] | None:
    """How the run ended: the journal's one last word on it, if there is one."""
    words = [r for r in records_of(folder) if isinstance(r, RunFinished | RunFailed)]
    assert len(words) <= 1, words
    return type(words[0]) if words else None


def wait_until(found: Callable[[], T], what: str, *, seconds: float = 60.0) -> T:
    """The first true answer of ``found``, asked every 20 ms; fails with ``what`` if there is none in time."""
    limit = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < limit, f"in {seconds:g} s: {what}"
        time.sleep(0.02)
    return answer


def wait_for_more(folder: Path, *, steps: int = 1) -> None:
    before = last_step(folder)
    wait_until(lambda: last_step(folder) >= before + steps, "training did not go on")


def wait_for_end(folder: Path, *, seconds: float = 60.0) -> None:
    wait_until(lambda: run_pid(folder) is None, f"the run in {folder} did not end", seconds=seconds)


@contextmanager
def train(
    warm: WarmSource | None, run_dir: Path, *options: str, size: tuple[int, int] = (120, 40)
) -> Iterator[Terminal]:
    """A training in ``run_dir`` with its screen, neither of which outlives the block."""
    command = amptui_command(*train_arguments(run_dir, *options))
    with ended_afterwards(run_dir), Terminal(command, size=size, warm=warm) as terminal:
        yield terminal


def train_arguments(run_dir: Path, *options: str) -> list[str]:
    return ["train", KNOBS, "--device", "cpu", "--run-dir", str(run_dir), *options]


def assert_restored(terminal: Terminal) -> None:
    assert terminal.modes == terminal.modes_before
    assert ALT_SCREEN_OFF in terminal.written
    assert terminal.written.rindex(CURSOR_ON) > terminal.written.rindex(b"\x1b[?25l")


def shown_step(screen: Terminal) -> int:
    """What the screen shows after reading on for a moment."""
    screen.read(0.1)
    return int(screen.wait_for(r"step\s+([\d,]+)")[1].replace(",", ""))


def own_lines(printed: str) -> list[str]:
    """The lines of a process without those of gloo, which torch 2.9 prints when ranks meet."""
    return [line for line in printed.splitlines() if not line.startswith("[Gloo] ")]


WITNESS = str(Path(__file__).parent / "recipes" / "witness.py")


def changed_program(change: str) -> str:
    """amptui's own program, for ``python -c``, after a ``change``."""
    return f"import sys\n{change}\nfrom amptui.cli import main\nsys.exit(main(sys.argv[1:]))\n"


@dataclass(frozen=True)
class Lives:
    """Starts `amptui` without a terminal again and again; what it says goes to ``log``."""

    warm: WarmSource
    log: Path

    def start(self, *arguments: str, program: str = "") -> Process:
        """Begin a life; ``program`` stands for amptui's own."""
        command = [sys.executable, "-c", program] if program else amptui_command()
        with open(os.devnull) as nothing, self.log.open("a") as said:  # noqa: PTH123
            return self.warm.start([*command, *arguments], nothing.fileno(), said.fileno(), said.fileno())


def witnessed_arguments(folder: Path, *options: str) -> list[str]:
    """A training that writes down its steps beside its folder, which may be taken away."""
    fixed = ["train", WITNESS, "--device", "cpu", "--headless", "--run-dir", str(folder)]
    return [*fixed, "--set", f"to={folder}.steps", *options]


@contextmanager
def headless_run(lives: Lives, folder: Path) -> Iterator[Path]:
    """A run of 2 ms a step that nobody watches, at its first steps; it lasts until it is stopped."""
    process = lives.start(*witnessed_arguments(folder, "--set", "step_ms=2"))
    with ended_afterwards(folder):
        wait_until(lambda: folder.exists() and steps_of(folder), f"no step was made: {lives.log.read_text()}")
        yield folder
    process.kill()
    process.wait(PATIENCE_SECONDS)


def stop(folder: Path) -> None:
    pid = run_pid(folder)
    assert pid is not None, "the run has ended by itself"
    os.kill(pid, signal.SIGTERM)
    wait_for_end(folder)


def lost(folder: Path) -> tuple[int, int]:
    """How many steps the journal lacks of those up to its last; how many were computed and not kept."""
    steps = [r.step for r in steps_of(folder)]
    gaps = sum(later - early - 1 for early, later in pairwise([0, *steps]))
    return gaps, len(witnessed(Path(f"{folder}.steps"))) - len(steps)
