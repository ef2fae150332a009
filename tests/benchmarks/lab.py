"""Where a benchmark's children run, how long they may, and that none of them outlives it."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.checkout import ROOT, child_environment

LONGEST_CHILD_SECONDS = 150.0

VARIABLE = "AMPTUI_BENCHMARK_LAB"
"""The environment variable by which all children of a lab are known: its folder."""


class OutOfTimeError(Exception):
    """The time for all measurements together is used up."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A scratch folder, the environment of every child, and the moment when all must be over."""

    folder: Path
    environment: Mapping[str, str]
    deadline: float
    """On the monotonic clock."""

    def limit_seconds(self) -> float:
        """How long the next child may take; raises OutOfTimeError when no time is left."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTimeError("the time for all measurements together is used up")
        return min(LONGEST_CHILD_SECONDS, left)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a child to its end and keep what it says; raises subprocess.TimeoutExpired."""
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.limit_seconds(),
            check=False,
        )


@contextmanager
def open_lab(longest_seconds: float) -> Iterator[Lab]:
    """A lab whose measurements end after ``longest_seconds`` at the latest.

    Its folder and all its children, detached ones too, end with it.
    """
    deadline = time.monotonic() + longest_seconds
    with (
        TemporaryDirectory(prefix="amptui-lab-", ignore_cleanup_errors=True) as folder,
        child_environment() as environment,
    ):
        try:
            yield Lab(Path(folder), {**environment, VARIABLE: folder}, deadline)
        finally:
            while _kill_children(folder):
                time.sleep(0.02)  # until they are gone: they write there


def _kill_children(folder: str) -> int:
    killed = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone, or somebody else's
            if process.environ().get(VARIABLE) == folder:
                process.kill()
                killed += 1
    return killed


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of what a child printed; raises RuntimeError with its complaints if it failed."""
    if done.returncode != 0 or not done.stdout.strip():
        told = (done.stderr or done.stdout).strip()[-2000:]
        raise RuntimeError(f"exit status {done.returncode} of {done.args}: {told}")
    return done.stdout.strip().splitlines()[-1]
