"""Processes of `amptui` that fault tests start, runs of the witnessed model, and what of them was lost."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from tests.living import ended_afterwards, run_pid, steps_of, wait_for_end, wait_until
from tests.recipes.witness import witnessed
from tests.terminal import Terminal, amptui_command
from tests.warm import PATIENCE_SECONDS, Process, WarmSource

RECIPE = str(Path(__file__).parents[1] / "recipes" / "witness.py")


class Lives:
    """Starts `amptui` without a terminal again and again; what it says goes to ``log``."""

    def __init__(self, warm: WarmSource, log: Path) -> None:
        self.log = log
        self._warm = warm
        self._processes: dict[int, Process] = {}

    def start(self, *arguments: str) -> int:
        """Begin a life; its process's number."""
        with open(os.devnull) as nothing, self.log.open("a") as said:  # noqa: PTH123
            command = amptui_command(*arguments)
            process = self._warm.start(command, nothing.fileno(), said.fileno(), said.fileno())
        self._processes[process.pid] = process
        return process.pid

    def end_of(self, pid: int) -> int:
        """Wait for a life to end; its exit status, negative for a signal."""
        return self._processes.pop(pid).wait(PATIENCE_SECONDS)


def train_arguments(folder: Path) -> list[str]:
    """A training of 2 ms a step that lasts until it is stopped."""
    witness = f"to={_witness(folder)}"
    options = ["--device", "cpu", "--set", "step_ms=2", "--set", witness, "--run-dir", str(folder)]
    return ["train", RECIPE, *options]


@contextmanager
def headless_run(lives: Lives, folder: Path, *options: str) -> Iterator[Path]:
    """A run that nobody watches, at its first steps."""
    pid = lives.start(*train_arguments(folder), "--headless", *options)
    with ended_afterwards(folder):
        wait_until(lambda: folder.exists() and steps_of(folder), f"no step was made: {lives.log.read_text()}")
        yield folder
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    lives.end_of(pid)


def stop(folder: Path) -> None:
    """End the run as a person would from another terminal."""
    pid = run_pid(folder)
    assert pid is not None, "the run has ended by itself"
    os.kill(pid, signal.SIGTERM)
    wait_for_end(folder)


def lost(folder: Path) -> tuple[int, int]:
    """How many steps the journal lacks of those up to its last; how many were computed and not kept."""
    steps = [r.step for r in steps_of(folder)]
    gaps = sum(later - early - 1 for early, later in pairwise([0, *steps]))
    return gaps, len(witnessed(_witness(folder))) - len(steps)


def shown_step(screen: Terminal) -> int:
    """What the screen shows after reading on for a moment."""
    screen.read(0.1)
    return int(screen.wait_for(r"step\s+([\d,]+)")[1].replace(",", ""))


def _witness(folder: Path) -> Path:
    """Outside of the run's folder, which may be taken away."""
    return Path(f"{folder}.steps")
