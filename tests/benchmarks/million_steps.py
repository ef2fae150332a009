"""What each command costs on a run of a million steps: seconds of the processor, of a clock, and memory.

    python -m tests.benchmarks.million_steps [--steps N] [--single] [--only NAME ...] [--json FILE]

Makes two runs of so many steps in a temporary folder, as a quick training writes them: a dozen blocks of
steps a second, a look at the device each second, epochs, skipped steps and a switch of the precision.
``--single`` writes one line for each step, as earlier versions did. Each command is a process of its own,
whose start and imports count. Prints a table and then one JSON object.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amptui.runs.journal import Journal
from amptui.runs.reader import JournalReader
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from tests.benchmarks import long_run
from tests.benchmarks.figures import columns
from tests.checkout import ROOT, child_environment

_STEPS = 1_000_000

_RECORDS_AT_ONCE = 1000

_LONGEST_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one process, from its start to its end."""

    name: str
    cpu_seconds: float
    """In user and kernel, of all its threads."""
    wall_seconds: float
    peak_bytes: int
    """The most of it that was in memory at once."""
    detail: Mapping[str, Any]
    """What the process itself measured."""


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what commands cost on a run of many steps.")
    parser.add_argument("--steps", type=int, default=_STEPS, metavar="N")
    parser.add_argument("--single", action="store_true", help="one line for each step")
    parser.add_argument("--only", nargs="+", choices=tuple(COMMANDS), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON object there, too")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        name, folder = options.part
        print(json.dumps(PARTS[name](Path(folder))))
        return 0
    with TemporaryDirectory(prefix="amptui-million-") as scratch:
        sizes = [
            make_run(folder, options.steps, seed=seed, single=options.single)
            for seed, folder in enumerate(_folders(Path(scratch)))
        ]
        costs = [measure(name, Path(scratch)) for name in options.only or COMMANDS]
    report = {
        "steps": options.steps,
        "single": options.single,
        "journal_bytes": sizes[0],
        "costs": [asdict(cost) for cost in costs],
    }
    print(f"{options.steps:,} steps, a journal of {sizes[0] / 2**20:.0f} MiB")
    print(table(costs))
    print(json.dumps(report))
    if options.json:
        options.json.write_text(f"{json.dumps(report, indent=1)}\n")
    return 0


def _folders(scratch: Path) -> tuple[Path, Path]:
    return scratch / "one", scratch / "other"


def make_run(folder: Path, steps: int, *, seed: int = 0, single: bool = False) -> int:
    """A finished run of so many steps in ``folder``; return the size of its journal, in bytes."""
    folder.mkdir(parents=True)
    run_dir = RunDir(folder)
    journal = Journal(run_dir.journal_path)
    records: Iterator[Any] = long_run.records(steps, seed=seed)
    if single:
        # Imported here: the children need no tests' module for what they measure.
        from tests.builders import one_by_one

        records = one_by_one(records)
    while batch := list(islice(records, _RECORDS_AT_ONCE)):
        journal.append(batch)
    journal.close()
    run_dir.run_json_path.write_text(json.dumps({"model": "mnist-deep", "asked": {}}))
    return run_dir.journal_path.stat().st_size


# ------------------------------------------------------------------------- what is measured
# Imported where it is needed: a child that is forked counts what this process has in memory as its own.


def _command(*arguments: str) -> Callable[[Path, Path, Path], list[str]]:
    """A command of amptui; ``ONE``, ``OTHER`` and ``OUT`` in it stand for runs and a place for a file."""

    def make(one: Path, other: Path, out: Path) -> list[str]:
        places = {"ONE": str(one), "OTHER": str(other), "OUT": str(out)}
        return [sys.executable, "-m", "amptui", *(places.get(word, word) for word in arguments)]

    return make


def _part(name: str) -> Callable[[Path, Path, Path], list[str]]:
    """What a command does before or behind its screen."""
    program = [sys.executable, "-m", "tests.benchmarks.million_steps", "--part", name]
    return lambda one, _other, _out: [*program, str(one)]


COMMANDS: Mapping[str, Callable[[Path, Path, Path], list[str]]] = {
    "imports": _part("imports"),
    "csv": _command("export", "ONE", "--csv", "OUT"),
    "html": _command("export", "ONE", "--html", "OUT"),
    "compare": _command("compare", "ONE", "OTHER", "--plain"),
    "fold": _part("fold"),
    "attach": _part("attach"),
    "replay": _part("replay"),
    "replay-end": _part("replay-end"),
    "resume": _part("resume"),
    "runs": _command("runs", "--json"),
}
"""``imports``: what the parts below need before they begin. ``attach``: folds the journal, and then measures
what a run sends to a screen and what the screen does with it. ``replay``: opens the run; ``replay-end``:
seeks its end. ``resume``: cuts the journal after nine tenths of its steps."""


def _fold(folder: Path) -> dict[str, Any]:
    session = _folded(folder)
    return {"step": session.view().step}


def _folded(folder: Path) -> Session:
    session = Session(str(folder))
    session.fold(JournalReader(RunDir(folder).journal_path))
    return session


def _attach(folder: Path) -> dict[str, Any]:
    from amptui.runs import protocol

    session, screen = _folded(folder), Session()
    began = time.process_time()
    line = protocol.history_line(session.state())
    sent = time.process_time()
    said = protocol.read(line)
    assert isinstance(said, protocol.History)
    screen.restore(said.state)
    view = screen.view()
    restored = time.process_time()
    return {
        "step": view.step,
        "state_seconds": sent - began,
        "restore_seconds": restored - sent,
        "state_bytes": len(line),
    }


def _replay(folder: Path) -> dict[str, Any]:
    from amptui.tui.replay.player import Player

    player = Player(RunDir(folder).journal_path, speed=1.0)
    player.advance(time.monotonic())
    return {"total_seconds": player.position.total_seconds}


def _replay_end(folder: Path) -> dict[str, Any]:
    from amptui.tui.replay.player import Player

    player = Player(RunDir(folder).journal_path, speed=1.0)
    player.seek(player.position.total_seconds)
    while player.advance(time.monotonic()) == 0.0:
        pass
    return {"step": player.look().step}


def _resume(folder: Path) -> dict[str, Any]:
    from amptui.process.recorder import Recorder

    copy = folder.with_name(f"{folder.name}-resumed")
    shutil.copytree(folder, copy)
    steps = _folded_steps(copy)
    began = time.process_time()
    recorder = Recorder(Session(str(copy)), RunDir(copy), request={}, goes_on=True)
    lost_steps = recorder.cut_after(steps * 9 // 10)
    cut = time.process_time()
    recorder.close(1.0)
    shutil.rmtree(copy)
    return {"lost_steps": lost_steps, "cut_seconds": cut - began}


def _folded_steps(folder: Path) -> int:
    from amptui.runs.kept_run import look_at

    return look_at(RunDir(folder)).step or 0


PARTS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "imports": lambda _folder: {},
    "fold": _fold,
    "attach": _attach,
    "replay": _replay,
    "replay-end": _replay_end,
    "resume": _resume,
}


# ------------------------------------------------------------------------- how it is measured


def measure(name: str, scratch: Path) -> Cost:
    """What the command called ``name`` costs on the runs in ``scratch``. Raises ``RuntimeError``."""
    one, other = _folders(scratch)
    with child_environment() as paths:
        environment = {**os.environ, **paths, "XDG_STATE_HOME": str(scratch)}
        return _measured(name, COMMANDS[name](one, other, scratch / f"out.{name}"), environment)


def _measured(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    began = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, text=True
    ) as process:
        limit = threading.Timer(_LONGEST_SECONDS, process.kill)
        limit.start()
        assert process.stdout is not None
        output = process.stdout.read()
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        limit.cancel()
    wall_seconds = time.monotonic() - began
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}: {output}")
    detail: Any = None
    with suppress(ValueError):
        detail = json.loads(output)
    return Cost(
        name=name,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        wall_seconds=wall_seconds,
        peak_bytes=usage.ru_maxrss * 1024,
        detail=detail if name in PARTS else {},
    )


def table(costs: Sequence[Cost]) -> str:
    """One line for each command."""
    rows = [
        (
            cost.name,
            f"{cost.cpu_seconds:.2f} s",
            f"{cost.wall_seconds:.2f} s",
            f"{cost.peak_bytes / 2**20:.0f} MiB",
            _words(cost.detail),
        )
        for cost in costs
    ]
    return columns([("command", "CPU", "wall", "peak RSS", ""), *rows])


def _words(detail: Mapping[str, Any]) -> str:
    shown = {key: f"{value:.3f}" if isinstance(value, float) else value for key, value in detail.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())


if __name__ == "__main__":
    sys.exit(main())
