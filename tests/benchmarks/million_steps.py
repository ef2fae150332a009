"""What each command costs on a run of a million steps: seconds of the processor, of a clock, and memory.

    python -m tests.benchmarks.million_steps [--steps N]

Makes two runs of so many steps in a temporary folder, as a quick training writes them: blocks of 32 steps, an
epoch's end now and then, and a switch of the precision. Each command is a process of its own, whose start and
imports count. A peak of memory below this program's own is told as that: a child begins with it.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from amptui.records.run import EpochFinished, PrecisionChanged, Record, RunFinished
from amptui.records.steps import Steps
from amptui.runs.journal import Journal
from amptui.runs.reader import JournalReader
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from tests.benchmarks.figures import columns
from tests.checkout import ROOT, child_environment
from tests.telemetry.record_samples import device, run

BLOCK_STEPS = 32
"""Steps in one look of the recorder, of which there are a dozen a second."""

STEP_SECONDS = 0.0026

LONGEST_SECONDS = 600.0


def records(steps: int, seed: int) -> Iterator[Record]:
    """All records of a run of so many steps, the first half in FP32 and the other in fp16."""
    rng, time_now = np.random.default_rng(seed), 100.0
    yield run(total_steps=steps)
    for first in range(1, steps + 1, BLOCK_STEPS):
        count, precision = min(BLOCK_STEPS, steps + 1 - first), "fp32" if first <= steps // 2 else "fp16"
        if precision == "fp16" and first - BLOCK_STEPS <= steps // 2:
            yield PrecisionChanged(time=time_now, step=first, previous="fp32", current="fp16")
        noise = np.exp(0.1 * rng.normal(size=(3, count)))
        scaled = precision == "fp16"
        time_now += STEP_SECONDS * count
        yield Steps(
            time=time_now,
            first_step=first,
            count=count,
            epoch=1 + 20 * first // steps,
            precision=precision,
            skipped=[False] * count,
            settling=first <= BLOCK_STEPS,
            loss=(2.3 * first**-0.3 * noise[0]).tolist(),
            samples=[256] * count,
            step_seconds=(STEP_SECONDS * noise[1]).tolist(),
            data_seconds=[1e-5] * count,
            lr=[1e-3] * count,
            loss_scale=[65536.0 if scaled else None] * count,
            growth_tracker=[*range(count)] if scaled else [None] * count,
            grad_norm=noise[2].tolist(),
            nonfinite_gradients=[0] * count,
            grad_max=(0.1 * noise[2]).tolist(),
        )
        if first % 400 < BLOCK_STEPS:
            yield device(time_now, precision, 2 * 2**30, 80.0, 300.0 * time_now)
        if 20 * first // steps < 20 * (first + BLOCK_STEPS) // steps:
            epoch = 1 + 20 * first // steps
            last = first + count - 1
            yield EpochFinished(
                time=time_now, step=last, epoch=epoch, seconds=9.0, mean_loss=1.0, validation=None
            )
    yield RunFinished(time=time_now, steps=steps, seconds=time_now - 100.0, reason="done")


def make_run(folder: Path, steps: int, seed: int) -> int:
    """A finished run in ``folder``; return the size of its journal, in bytes."""
    folder.mkdir()
    run_dir = RunDir(folder)
    journal, of_run = Journal(run_dir.journal_path), records(steps, seed)
    while batch := list(islice(of_run, 1000)):
        journal.append(batch)
    journal.close()
    run_dir.run_json_path.write_text(json.dumps({"model": "mnist-deep", "asked": {}}))
    return run_dir.journal_path.stat().st_size


def attach(folder: Path) -> None:
    """Fold the journal, send the state to a screen, and restore it there."""
    from amptui.runs import protocol

    session, screen = Session(str(folder)), Session()
    session.fold(JournalReader(RunDir(folder).journal_path))
    said = protocol.read(protocol.history_line(session.state()))
    assert isinstance(said, protocol.History)
    screen.restore(said.state)
    screen.view()


def replay(folder: Path) -> None:
    """Open the run and seek its end."""
    from amptui.tui.replay.player import Player

    player = Player(RunDir(folder).journal_path, speed=1.0)
    player.seek(player.position.total_seconds)
    while player.advance(time.monotonic()) == 0.0:
        pass
    player.look()


PARTS: Mapping[str, Callable[[Path], None]] = {"imports": lambda _: None, "attach": attach, "replay": replay}
"""What commands do before or behind their screens; what they import alone is the first."""

COMMANDS = {
    "csv": ("export", "ONE", "--csv", "OUT"),
    "html": ("export", "ONE", "--html", "OUT"),
    "compare": ("compare", "ONE", "OTHER", "--plain"),
    "runs": ("runs", "--json"),
}


def measure(name: str, scratch: Path) -> tuple[str, ...]:
    """Name, processor's seconds, seconds and peak memory of one process. Raises ``RuntimeError``."""
    places = {"ONE": str(scratch / "one"), "OTHER": str(scratch / "other"), "OUT": str(scratch / name)}
    words = ["tests.benchmarks.million_steps", "--part", name, places["ONE"]]
    if name in COMMANDS:
        words = ["amptui", *(places.get(word, word) for word in COMMANDS[name])]
    with child_environment() as paths:
        environment = {**os.environ, **paths, "XDG_STATE_HOME": str(scratch)}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    limit = threading.Timer(LONGEST_SECONDS, process.kill)
    limit.start()
    _pid, status, usage = os.wait4(process.pid, 0)
    limit.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}")
    seconds, cpu_seconds = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    return name, f"{cpu_seconds:.2f} s", f"{seconds:.2f} s", f"{usage.ru_maxrss / 1024:.0f} MiB"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Measure what commands cost on a run of many steps.")
    parser.add_argument("--steps", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        PARTS[options.part[0]](Path(options.part[1]))
        return
    with TemporaryDirectory(prefix="amptui-million-") as scratch:
        sizes = [make_run(Path(scratch, name), options.steps, seed=len(name)) for name in ("one", "other")]
        rows = [measure(name, Path(scratch)) for name in (*PARTS, *COMMANDS)]
    print(f"{options.steps:,} steps, a journal of {sizes[0] / 2**20:.0f} MiB")
    print(columns([("command", "CPU", "wall", "peak RSS"), *rows]))


if __name__ == "__main__":
    main()
