"""Each measure that the benchmark knows: what it runs, and the figures that come of it."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

import numpy as np

from tests.benchmarks import beside
from tests.benchmarks.figures import Figure, rounded
from tests.benchmarks.lab import Lab
from tests.benchmarks.turns import APP, take_turns
from tests.benchmarks.watched import PANEL_TITLES, Watched, watch
from tests.benchmarks.workloads import Workload
from tests.terminal import Terminal, amptui_command

FIRST_PANELS_AIM_SECONDS = 0.25
GLASS_AIM_SECONDS = 0.4
WRITTEN_AIM_BYTES_PER_SECOND = 3000.0
UI_CPU_AIM = 0.01 * len(os.sched_getaffinity(0))
"""1% of what the process may use."""

STARTS, QUICK_STARTS = 5, 2


LONGEST_TURNS_SECONDS = 230.0
"""A slow machine gets fewer rounds of turns, not a longer benchmark: no round begins later than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, how often and where."""

    lab: Lab
    workloads: Mapping[str, Workload]
    quick: bool
    restarts: int
    """How often all sides are started anew, at least once."""
    rounds: int
    """Turns of each process at most, at least one."""
    sides: Sequence[str] = (beside.PLAIN, APP)
    """Of :data:`tests.benchmarks.turns.ALL_SIDES`, and the plain loop again; the first is the plain loop."""
    precisions: Sequence[str] = ("fp32",)


# ---------------------------------------------------------------------- beside the plain loop


def beside_plain_loop(plan: Plan, name: str) -> list[Figure]:
    """The step rate of the app, and of the parts that were asked for, by the plain loop's."""
    found = []
    for precision in plan.precisions:
        workload = replace(plan.workloads[name], precision=precision)
        entrants = {side: (beside.PLAIN if side == beside.AGAIN else side, workload) for side in plan.sides}
        turns = take_turns(
            plan.lab,
            entrants,
            restarts=plan.restarts,
            rounds=plan.rounds,
            longest_seconds=LONGEST_TURNS_SECONDS,
        )
        found += beside.figures(workload, turns)
    return found


# ------------------------------------------------------------------------------ the screen alone


def first_panels(plan: Plan) -> list[Figure]:
    """From the start of the process until every panel stands on the emulated screen."""
    seconds = [_seconds_to_panels(plan.lab) for _ in range(QUICK_STARTS if plan.quick else STARTS)]
    return [
        Figure(
            name="first_panels",
            value=median(seconds),
            unit="seconds",
            aim=FIRST_PANELS_AIM_SECONDS,
            detail={"all": rounded(seconds)},
        )
    ]


def _seconds_to_panels(lab: Lab) -> float:
    run_dir = Path(mkdtemp(dir=lab.folder))
    command = amptui_command("train", "mnist-deep", "--data", "synthetic", "--run-dir", str(run_dir))
    started = time.perf_counter()
    limit = started + lab.limit_seconds()
    with Terminal(command, env=lab.environment) as terminal:  # killed at the end: nothing was trained
        while not all(title in terminal.text for title in PANEL_TITLES):
            assert time.perf_counter() < limit, f"the panels never stood:\n{terminal.text}"
            terminal.read(0.01)
        return time.perf_counter() - started


def screen(plan: Plan) -> list[Figure]:
    """What a run of many short steps sends to the terminal, how soon, and what drawing it costs."""
    watched = run_watched(plan.lab, plan.workloads["launch_bound"])
    seconds = watched.glass_seconds()
    return [
        Figure(
            name="step_to_glass",
            value=median(seconds),
            unit="seconds",
            aim=GLASS_AIM_SECONDS,
            detail={"percentile_95": float(np.percentile(seconds, 95)), "steps": len(seconds)},
        ),
        Figure(
            name="bytes_per_second",
            value=watched.per_second("written_bytes"),
            unit="bytes per second",
            aim=WRITTEN_AIM_BYTES_PER_SECOND,
            detail={"steps_per_second": watched.step_rate},
        ),
        Figure(
            name="ui_cpu",
            value=watched.per_second("main_thread_cpu_seconds"),
            unit="fraction",
            aim=UI_CPU_AIM,
        ),
    ]


def run_watched(lab: Lab, workload: Workload) -> Watched:
    """Train ``workload`` under the whole app, in an emulated terminal and a process of its own."""
    run_dir = Path(mkdtemp(dir=lab.folder))
    options = ("--steps", str(workload.steps), *workload.options, "--data", "synthetic")
    return watch(
        amptui_command("train", workload.model, *options, "--run-dir", str(run_dir)),
        run_dir / "journal.jsonl",
        env={**lab.environment, **workload.environment},
        limit_seconds=lab.limit_seconds(),
    )


MEASURES: Mapping[str, Callable[[Plan], list[Figure]]] = {
    "launch_bound": lambda plan: beside_plain_loop(plan, "launch_bound"),
    "mnist_deep": lambda plan: beside_plain_loop(plan, "mnist_deep"),
    "first_panels": first_panels,
    "screen": screen,
}
"""Every measure by name, in the order in which they run: the strongest claims first."""
