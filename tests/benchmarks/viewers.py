"""What screens cost a training: its step rate with one, three and a stopped one, by its rate alone.

    python -m tests.benchmarks.viewers [--pairs N] [--workload mnist_deep|launch_bound] [--json FILE]

One training runs all the while; screens attach to it and leave in turns, so that what drifts falls on both
sides of a pair. Prints a table and then one JSON object.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from amptui.engine.estimate import paired_ratio
from amptui.records.steps import StepRecord
from tests.benchmarks.figures import Figure, table
from tests.benchmarks.lab import Lab, open_lab
from tests.benchmarks.overhead import describe, describe_machine
from tests.benchmarks.workloads import Workload, workloads
from tests.builders import read
from tests.living import ended_afterwards, last_step, run_pid, wait_until
from tests.terminal import Terminal, amptui_command

MIN_RATE_RATIO = 0.99
"""Within 1% of a training that nobody watches."""

SETTLE_SECONDS = 3.0
"""A screen that has just come is importing; what it costs then is not what it costs."""

BLOCK_SECONDS = 6.0

PAIRS = 8

LONGEST_SECONDS = 1500.0

_KINDS = {"one": (1, False), "three": (3, False), "stopped": (1, True)}
"""How many screens, and whether they are stopped by SIGSTOP."""


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what screens cost a training.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs a kind (default: {PAIRS})")
    parser.add_argument("--workload", default="mnist_deep", choices=("mnist_deep", "launch_bound"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON object there, too")
    options = parser.parse_args()
    machine = describe_machine()
    with open_lab(LONGEST_SECONDS) as lab:
        workload = workloads(on_gpu=torch.cuda.is_available(), quick=False)[options.workload]
        figures = measure(lab, workload, options.pairs)
    report = {"machine": machine, "figures": [figure.as_json() for figure in figures]}
    print(describe(machine))
    print(table(figures))
    print(json.dumps(report))
    if options.json:
        options.json.write_text(f"{json.dumps(report, indent=1)}\n")
    return 0


def measure(lab: Lab, workload: Workload, pairs: int) -> list[Figure]:
    """For each kind of watching: the watched step rate by the unwatched."""
    run = lab.folder / workload.name
    with training(lab, workload, run):
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _KINDS}
        for pair in range(pairs):
            for kind in _KINDS:
                if pair % 2 == 0:
                    alone, watched = block(run), watched_block(lab, run, kind)
                else:
                    watched, alone = watched_block(lab, run, kind), block(run)
                found[kind].append((alone, watched))
                print(f"pair {pair + 1}/{pairs} {kind}: {found[kind][-1]}", file=sys.stderr, flush=True)
        return [_figure(workload, kind, blocks) for kind, blocks in found.items()]


def _figure(workload: Workload, kind: str, blocks: Sequence[tuple[float, float]]) -> Figure:
    alone, watched = zip(*blocks, strict=True)
    ratio = paired_ratio(alone, watched)
    assert ratio is not None, "there is at least one pair"
    interval = None if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
    return Figure(
        name=f"{workload.name}.rate_ratio.{kind}",
        value=ratio.value,
        unit="fraction",
        aim=MIN_RATE_RATIO,
        more_is_better=True,
        interval=interval,
        detail={"pairs": len(blocks), "alone_seconds": alone, "watched_seconds": watched},
    )


@contextmanager
def training(lab: Lab, workload: Workload, run: Path) -> Iterator[None]:
    """A training that nobody watches, beyond its warm-up."""
    options = ["--batch-size", str(workload.batch_size), "--data", "synthetic", "--epochs", "100000"]
    command = amptui_command("train", workload.model, *options, "--detach", "--run-dir", str(run))
    with ended_afterwards(run):
        done = lab.run(command, workload.environment)
        if done.returncode:
            raise RuntimeError(f"the training did not start: {done.stdout}{done.stderr}")
        wait_until(lambda: last_step(run) >= 20, "the training does not go on", seconds=120)
        yield
        pid = run_pid(run)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: run_pid(run) is None, "the training does not end")


def block(run: Path) -> float:
    """The mean seconds of the steps of one block."""
    began = time.time()
    time.sleep(BLOCK_SECONDS)
    seconds = [
        r.step_seconds
        for r in read(run / "journal.jsonl")
        if isinstance(r, StepRecord) and r.time > began and r.step_seconds is not None
    ]
    return sum(seconds) / len(seconds)


def watched_block(lab: Lab, run: Path, kind: str) -> float:
    """The same while screens watch."""
    count, stopped = _KINDS[kind]
    with ExitStack() as stack:
        screens = [stack.enter_context(screen(lab, run)) for _ in range(count)]
        if stopped:
            for each in screens:
                os.kill(each.process.pid, signal.SIGSTOP)
        time.sleep(SETTLE_SECONDS)
        return block(run)


@contextmanager
def screen(lab: Lab, run: Path) -> Iterator[Terminal]:
    """A screen in a terminal whose output is taken and thrown away, as by a quick link."""
    with Terminal(amptui_command("attach", str(run)), env=lab.environment) as terminal:
        terminal.wait_for(r"step\s+[\d,]+")
        over = threading.Event()
        taker = threading.Thread(target=_take, args=(terminal.master, over))
        taker.start()
        try:
            yield terminal
        finally:
            over.set()
            taker.join()


def _take(master: int, over: threading.Event) -> None:
    os.set_blocking(master, False)
    while not over.wait(0.2):
        try:
            while os.read(master, 65536):
                pass
        except OSError:
            continue  # nothing more for now


if __name__ == "__main__":
    sys.exit(main())
