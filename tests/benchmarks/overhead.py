"""What amptui costs the training and the terminal, each figure beside its aim.

    python -m tests.benchmarks.overhead [--quick] [--only NAME ...] [--restarts N] [--rounds N]
                                        [--sides SIDE ...] [--precisions P ...] [--device D] [--judge]

Prints a table and then one JSON object. Ends by itself within twelve minutes, with 0 if all that was asked
for could be measured, with 1 if not, and with ``--judge`` with 1 also if an aim was missed.

Step times are taken in turns of seconds, the plain loop's beside those of the app, or of the same loop that
calls ``amptui.observe()`` or ``amptui.watch()``. Two processes of one
program differ by a few percent, so both are started anew several times, and intervals are over restarts. A
busy machine is told by its counters and gets no verdict; on one, ``nice -n -10`` before the command helps. On
a GPU the host's clock sees when steps are sent off: there only the mean says what they take.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from amptui.loops.description import device_name
from amptui.monitor.ab_test import MIN_PAIRS
from tests.benchmarks.figures import Figure, mean_interval, mean_ratio, rounded, table
from tests.benchmarks.lab import Lab, open_lab
from tests.benchmarks.side import OBSERVE, PLAIN, WATCH
from tests.benchmarks.turns import APP, QUIET_CORES, Turn, Workload, take_turns, workloads
from tests.terminal import Terminal, amptui_command

LONGEST_SECONDS = 690.0
LONGEST_TURNS_SECONDS = 230.0
"""A slow machine gets fewer rounds of turns, not a longer benchmark: no round begins later than that."""

RESTARTS, QUICK_RESTARTS = 8, 2
ROUNDS, QUICK_ROUNDS = 2, 1
"""Few: processes differ more than turns of one do, and restarts narrow the interval."""

MIN_QUIET_PAIRS = 6
"""With fewer pairs of undisturbed turns, all are counted, and nothing is judged by them."""

STATISTICS: Mapping[str, Callable[[Turn], float]] = {
    "p10": lambda turn: float(np.percentile(turn.step_seconds, 10)),
    "mean": lambda turn: float(np.mean(turn.step_seconds)),
    "p99": lambda turn: float(np.percentile(turn.step_seconds, 99)),
}
"""What a turn's step times are told by. The mean has all that a step cost, but on a busy machine others' work
too; the tenth percentile is of steps that nobody disturbed, the 99th of those with a look."""

SLICE_SECONDS = 0.005
"""Shorter steps mostly run undisturbed on a busy machine too: a scheduler's slice is a few milliseconds."""

FIRST_PANELS_AIM_SECONDS = 0.25
STARTS, QUICK_STARTS = 5, 2
PANEL_TITLES = tuple(f"╭ {name}" for name in ("loss", "comparison", "throughput", "events"))
MEASURES = ("launch_bound", "mnist_deep", "first_panels")
"""In the order in which they run: the strongest claims first."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what amptui costs.")
    parser.add_argument("--quick", action="store_true", help="show that everything runs; says little")
    parser.add_argument("--only", action="append", choices=MEASURES, help="measure this; may be repeated")
    parser.add_argument("--restarts", type=int, help="sets of processes")
    parser.add_argument("--rounds", type=int, help="turns of each process")
    parser.add_argument("--sides", nargs="+", choices=(APP, OBSERVE, WATCH), default=[APP])
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "fp16", "bf16"), default=["fp32"])
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--judge", action="store_true", help="end with 1 if an aim was missed")
    options = parser.parse_args()

    quick, began = options.quick, time.monotonic()
    times: dict[str, Any] = {
        "restarts": options.restarts or (QUICK_RESTARTS if quick else RESTARTS),
        "rounds": options.rounds or (QUICK_ROUNDS if quick else ROUNDS),
    }
    report: dict[str, Any] = {
        "processor": device_name(torch.device("cpu")),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
        "quick": quick,
    }
    print(", ".join(f"{name} {value}" for name, value in report.items()))
    figures: list[Figure] = []
    errors: dict[str, str] = {}
    with open_lab(LONGEST_SECONDS) as lab:
        for name in options.only or MEASURES:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            try:
                if name == "first_panels":
                    figures.append(first_panels(lab, QUICK_STARTS if quick else STARTS))
                    continue
                workload = workloads(on_gpu=options.device == "cuda", quick=quick)[name]
                for variant in (replace(workload, precision=precision) for precision in options.precisions):
                    sides = {side: (side, variant) for side in (PLAIN, *options.sides)}
                    turns = take_turns(lab, sides, **times, longest_seconds=LONGEST_TURNS_SECONDS)
                    figures += [each for side in options.sides for each in _figures(variant, turns, side)]
            except Exception as error:  # noqa: BLE001 - what fails here must not cost what was measured before
                errors[name] = f"{type(error).__name__}: {error}"
    report |= {"seconds": round(time.monotonic() - began, 1), "errors": errors}
    report["figures"] = [figure.as_json() for figure in figures]
    print(table(figures))
    for name, said in errors.items():
        print(f"{name} could not be measured: {said}")
    print(json.dumps(report))
    missed = [figure.name for figure in figures if figure.met is False]
    return 1 if errors or (options.judge and missed) else 0


def first_panels(lab: Lab, starts: int) -> Figure:
    """From the start of the process until every panel stands on the emulated screen."""
    seconds = []
    for _ in range(starts):
        run_dir = mkdtemp(dir=lab.folder)
        command = amptui_command("train", "mnist-deep", "--data", "synthetic", "--run-dir", run_dir)
        began = time.perf_counter()
        limit = began + lab.limit_seconds()
        with Terminal(command, env=lab.environment) as terminal:  # killed at the end: nothing was trained
            while not all(title in terminal.text for title in PANEL_TITLES):
                assert time.perf_counter() < limit, f"the panels never stood:\n{terminal.text}"
                terminal.read(0.01)
            seconds.append(time.perf_counter() - began)
    aim, detail = FIRST_PANELS_AIM_SECONDS, {"all": rounded(seconds)}
    return Figure(name="first_panels", value=median(seconds), unit="seconds", aim=aim, detail=detail)


def _figures(workload: Workload, turns: Mapping[str, Sequence[Turn]], side: str) -> list[Figure]:
    """A side's step rate by the plain loop's, and the same by p10."""
    pairs, caveat = _counted_pairs(turns[PLAIN], turns[side])
    found = {statistic: ratios(pairs, statistic) for statistic in STATISTICS}
    rate = Figure(
        name=f"{workload.name}.{workload.precision}.{side}.rate",
        value=mean_ratio(found["mean"]),
        unit="fraction",
        aim=workload.min_rate_ratio,
        more_is_better=True,
        interval=mean_interval(found["mean"]),
        caveat=caveat,
        detail={
            "threads": workload.threads,
            "batch_size": workload.batch_size,
            "turn_seconds": workload.turn_seconds,
            "pairs": len(turns[side]),
            "counted_pairs": len(pairs),
            "ratios_of_restarts": {statistic: rounded(values) for statistic, values in found.items()},
            "step_seconds": {name: _times(of) for name, of in turns.items()},
        },
    )
    if workload.device != "cpu":
        return [rate]  # the host's clock says nothing of single steps of a device
    p10 = replace(
        rate,
        name=f"{workload.name}.{workload.precision}.{side}.p10",
        value=mean_ratio(found["p10"]),
        interval=mean_interval(found["p10"]),
        caveat="" if _times(turns[PLAIN])["p10"] < SLICE_SECONDS else caveat,
        detail={},
    )
    return [rate, p10]


def speedup(name: str, slow: Sequence[Turn], fast: Sequence[Turn], *, aim: float | None) -> Figure:
    """How many steps ``fast`` does in the time of one of ``slow``, by the wall clock."""
    pairs, caveat = _counted_pairs(slow, fast)
    found = ratios(pairs, "mean")
    return Figure(
        name=name,
        value=mean_ratio(found),
        unit="times",
        aim=aim,
        more_is_better=True,
        interval=mean_interval(found),
        caveat=caveat,
        detail={"counted_pairs": len(pairs), "step_seconds": [_times(slow), _times(fast)]},
    )


Pair = tuple[Turn, Turn]
"""A turn of the plain loop and the neighbouring one of another side."""


def _counted_pairs(plain: Sequence[Turn], other: Sequence[Turn]) -> tuple[list[Pair], str]:
    """The pairs in which nothing else took the processor; if those are few, all, and why they say nothing.

    They are few, too, if they are of fewer restarts than an interval needs.
    """
    pairs = list(zip(plain, other, strict=True))
    quiet = [pair for pair in pairs if all(turn.is_quiet for turn in pair)]
    if len(quiet) >= MIN_QUIET_PAIRS and len({turn.restart for turn, _ in quiet}) >= MIN_PAIRS:
        return quiet, ""
    other_cores, cores = median(turn.other_cores for pair in pairs for turn in pair), os.sched_getaffinity(0)
    if other_cores <= QUIET_CORES:
        return pairs, f"no verdict: fewer than {MIN_QUIET_PAIRS} undisturbed pairs of {MIN_PAIRS} restarts"
    return pairs, f"no verdict: other programs used {other_cores:.2f} of {len(cores)} cores"


def ratios(pairs: Sequence[Pair], statistic: str) -> list[float]:
    """The plain loop's step time by the other's, of each restart: 0.98 is a rate of 98%.

    The median of the restart's pairs. Pairs of the same processes are not independent of each other,
    restarts are.
    """
    tell = STATISTICS[statistic]
    of_restart: dict[int, list[float]] = {}
    for plain, other in pairs:
        of_restart.setdefault(plain.restart, []).append(tell(plain) / tell(other))
    return [median(each) for each in of_restart.values()]


def _times(turns: Sequence[Turn]) -> dict[str, float]:
    return {name: rounded([median(map(tell, turns))])[0] for name, tell in STATISTICS.items()}


if __name__ == "__main__":
    sys.exit(main())
