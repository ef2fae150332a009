"""A run of several ranks with a fault in it: what is started, how it is caused, what is seen of the end."""

import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.benchmarks.fault_outcomes import Expected, Outcome
from tests.benchmarks.faulty import FAULT_FILE, NOTES_VARIABLE, Faulty
from tests.checkout import ROOT
from tests.living import last_step, records_of

MARK_VARIABLE = "RANK_FAULTS_RUN"
"""All processes of one run inherit it."""

PATIENCE_SECONDS = 240.0
"""How much longer than its fault a run may take, on a busy machine."""

_BEGUN_STEP = 30
"""Faults from outside come after it; there is a checkpoint then."""

_LEFT_SECONDS = 10.0
"""How long processes may outlive what was started."""

_LOOK_SECONDS = 0.2

Command = tuple[Sequence[str], Mapping[str, str]]
"""Words, and variables besides those of all."""


def started_once(words: Sequence[str], ranks: int) -> list[Command]:
    """One command that starts all ranks."""
    return [([*words, "--nproc", str(ranks)], {})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens to a run, and how the run has to end."""

    name: str
    expected: Expected
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the model."""
    options: Sequence[str] = ()
    act: Callable[["Run"], object] | None = None
    """Causes the fault from outside, once the run has made some steps."""
    is_from_start: bool = False
    commands: Callable[[Sequence[str], int], list[Command]] = started_once
    backends: Sequence[str] = ("gloo", "nccl")
    variables: Mapping[str, str] = field(default_factory=dict)
    steps: int = 100_000
    """A run that has to finish makes fewer."""
    lasts_seconds: float = 0.0
    left_seconds: float = _LEFT_SECONDS
    """How long processes may outlive what was started."""


class Run:
    """One run and its processes."""

    def __init__(self, folder: Path, fault: Fault, ranks: int) -> None:
        self.path, self.notes = folder / "run", folder / "notes"
        self.notes.mkdir()
        self.fault = fault
        self.ranks = ranks
        self._mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []
        self._out, self._err = folder / "out", folder / "err"

    def start(self, base: Mapping[str, str], options: Sequence[str]) -> None:
        """Start what the fault wants to be started."""
        model = f"{Path(__file__).with_name('faulty.py')}:{Faulty.__name__}"
        own = {"OMP_NUM_THREADS": "1", MARK_VARIABLE: self._mark, NOTES_VARIABLE: str(self.notes)}
        words = [sys.executable, "-m", "amptui", "train", model, "--headless", "--run-dir", str(self.path)]
        with self._out.open("ab") as out, self._err.open("ab") as err:
            for command, variables in self.fault.commands([*words, *options], self.ranks):
                environment = {**base, **own, **self.fault.variables, **variables}
                self.started.append(
                    subprocess.Popen(
                        command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err
                    )
                )

    def processes(self) -> list[psutil.Process]:
        """All that are still there, but for the dead that nobody has waited for."""
        mine = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get(MARK_VARIABLE) == self._mark:
                    mine.append(process)
        return mine

    def rank(self, rank: int) -> psutil.Process:
        """The process of a rank: its first, the others are its children."""
        mine = [
            process
            for process in self.processes()
            if process.environ().get("RANK") == str(rank) and "unshare" not in process.cmdline()
        ]
        return min(mine, key=psutil.Process.create_time)

    def note_fault(self) -> None:
        """The fault begins now."""
        (self.notes / FAULT_FILE).write_text(str(time.time()))

    def wait_until_begun(self) -> bool:
        """Until it has made some steps; whether it has."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while last_step(self.path) < _BEGUN_STEP:
            if time.monotonic() > limit or self.is_over:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    @property
    def is_over(self) -> bool:
        """Whether what was started has ended."""
        return all(process.poll() is not None for process in self.started)

    def wait(self, seconds: float) -> None:
        """Until all processes are gone, but not for ever."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not self.is_over:
            time.sleep(_LOOK_SECONDS)
        limit = time.monotonic() + self.fault.left_seconds
        while time.monotonic() < limit and self.processes():
            time.sleep(_LOOK_SECONDS)

    def outcome(self) -> Outcome:
        """What can be seen of it now."""
        ended_at, left = time.time(), len(self.processes())
        fault = self.notes / FAULT_FILE
        checkpoints = sorted((self.path / "checkpoints").glob("step-*.pt"))
        return Outcome(
            statuses=tuple([process.poll() for process in self.started]),
            errors=self._err.read_text(errors="replace"),
            output=self._out.read_text(errors="replace"),
            records=records_of(self.path),
            steps_made={
                int(file.name.rpartition("-")[2]): [
                    float(line.split()[1]) for line in file.read_text().splitlines()
                ]
                for file in self.notes.glob("rank-*")
            },
            fault_at=float(fault.read_text()) if fault.exists() else None,
            ended_at=ended_at,
            left=left,
            checkpoint_step=int(checkpoints[-1].stem.partition("-")[2]) if checkpoints else 0,
        )

    def close(self) -> None:
        """No process outlives it."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        for started in self.started:
            started.wait()


@contextmanager
def opened(fault: Fault, ranks: int, keep: Path | None) -> Iterator[Run]:
    """A run in a folder of its own, which ``keep`` keeps; no process outlives the block."""
    with tempfile.TemporaryDirectory(prefix="amptui-faults-") as temporary:
        folder = Path(temporary)
        if keep is not None:
            folder = keep / "".join(letter if letter.isalnum() else "-" for letter in fault.name)
            folder.mkdir(parents=True)
        run = Run(folder, fault, ranks)
        try:
            yield run
        finally:
            run.close()


def tried(fault: Fault, ranks: int, base: Mapping[str, str], device: str, keep: Path | None) -> Outcome:
    """Start a run, let the fault happen, and see how it ends."""
    settings = {"lasts_seconds": fault.lasts_seconds, **fault.settings}
    options = ["--device", device, "--steps", str(fault.steps), "--checkpoint-every", "20", *fault.options]
    for name, value in settings.items():
        options += ["--set", f"{name}={value}"]
    with opened(fault, ranks, keep) as run:
        if fault.is_from_start:
            run.note_fault()
        run.start(base, options)
        if fault.act is not None and run.wait_until_begun():
            fault.act(run)
        run.wait(fault.lasts_seconds + PATIENCE_SECONDS)
        return run.outcome()
