"""Each measure that the benchmark knows: what it runs, and the figures that come of it."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

import numpy as np

from amptui import units
from amptui.records import RunStarted
from tests.benchmarks.figures import Figure, median_interval, rounded
from tests.benchmarks.lab import Lab, last_line
from tests.benchmarks.watched import PANEL_TITLES, Watched, watch
from tests.benchmarks.workloads import Workload
from tests.terminal import Terminal, amptui_command

FIRST_PANELS_AIM_SECONDS = 0.25
GLASS_AIM_SECONDS = 0.4
WRITTEN_AIM_BYTES_PER_SECOND = 3000.0
UI_CPU_AIM = 0.015
GROWTH_AIM_BYTES = 2.0**20
"""None, but for what an allocator shuffles about: a single number kept for each step would be 39 MB."""

FOLDED_STEPS, QUICK_FOLDED_STEPS, FIRST_FOLDED_STEPS = 5_000_000, 300_000, 100_000

STARTS, QUICK_STARTS = 5, 2


QUIET_SPREAD = 1.1
"""The plain loop's fastest rate by its slowest, up to which the machine counts as doing nothing else."""

LAST_PAIR_AFTER_SECONDS = 230.0
"""A busy machine gets fewer pairs, not a longer benchmark: no pair of a workload begins later than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, how often and where."""

    lab: Lab
    workloads: Mapping[str, Workload]
    pairs: int
    """At most so many, at least one."""
    quick: bool


@dataclass(frozen=True, slots=True)
class PlainRun:
    """What the plain loop says of itself."""

    steps: int
    seconds: float
    first_loss: float

    @property
    def step_rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds


# ------------------------------------------------------------------------ beside the plain loop


def beside_plain_loop(plan: Plan, workload: Workload) -> list[Figure]:
    """The app's step rate by the plain loop's, in pairs A B B A; and what the screen took meanwhile."""
    plain: list[PlainRun] = []
    watched: list[Watched] = []
    began = time.monotonic()
    for pair in range(plan.pairs):
        if plain and time.monotonic() - began > LAST_PAIR_AFTER_SECONDS:
            break
        sides: list[Callable[[], object]] = [
            lambda: plain.append(run_plainly(plan.lab, workload)),
            lambda: watched.append(run_watched(plan.lab, workload, emulated=False)),
        ]
        for side in sides if pair % 2 == 0 else reversed(sides):
            side()
        hold_to_the_same_training(plain[-1], watched[-1])
    return [_rate_ratio(workload, plain, watched), *_screen_costs(workload, watched)]


def run_plainly(lab: Lab, workload: Workload) -> PlainRun:
    """Train ``workload`` in a plain loop, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.plain_loop", workload.model, str(workload.steps)]
    done = lab.run([*command, f"batch_size={workload.batch_size}"], workload.environment)
    return PlainRun(**json.loads(last_line(done)))


def run_watched(lab: Lab, workload: Workload, *, emulated: bool) -> Watched:
    """Train ``workload`` under the whole app, in a terminal and a process of its own."""
    run_dir = Path(mkdtemp(dir=lab.folder))
    numbers = ("--steps", str(workload.steps), "--batch-size", str(workload.batch_size))
    return watch(
        amptui_command("train", workload.model, *numbers, "--data", "synthetic", "--run-dir", str(run_dir)),
        run_dir / "journal.jsonl",
        env={**lab.environment, **workload.environment},
        emulated=emulated,
        limit_seconds=lab.limit_seconds(),
    )


def hold_to_the_same_training(plain: PlainRun, watched: Watched) -> None:
    """Raise RuntimeError unless both began with the same weights and the same batch."""
    loss = watched.steps[0].loss
    # Kernels may add up in another order: no two of them differ by as much as one in a thousand.
    if loss is None or not np.isclose(loss, plain.first_loss, rtol=1e-3):
        raise RuntimeError(f"first loss {loss} under the app, {plain.first_loss} in the plain loop")


def _rate_ratio(workload: Workload, plain: list[PlainRun], watched: list[Watched]) -> Figure:
    ratios = [app.step_rate / loop.step_rate for loop, app in zip(plain, watched, strict=True)]
    spread = max(loop.step_rate for loop in plain) / min(loop.step_rate for loop in plain)
    return Figure(
        name=f"{workload.name}.rate_ratio",
        value=median(ratios),
        unit="fraction",
        aim=workload.least_rate_ratio,
        more_is_better=True,
        interval=median_interval(ratios),
        caveat=_disturbance(spread),
        detail={
            "device": next(r.device_name for r in watched[0].records if isinstance(r, RunStarted)),
            "threads": workload.threads,
            "batch_size": workload.batch_size,
            "timed_steps": workload.timed_steps,
            "pairs": len(ratios),
            "plain_spread": spread,
            "ratios": rounded(ratios),
            "plain_step_seconds": rounded([1 / loop.step_rate for loop in plain]),
            "app_step_seconds": rounded([1 / app.step_rate for app in watched]),
            "unmeasured_steps": sum(app.unmeasured_steps for app in watched),
        },
    )


def _disturbance(spread: float) -> str:
    if spread <= QUIET_SPREAD:
        return ""
    return f"no verdict: other work disturbed it, the plain loop alone varied by {units.ratio(spread)}"


def _screen_costs(workload: Workload, watched: list[Watched]) -> list[Figure]:
    rates = [app.per_second("written_bytes") for app in watched]
    cpu = [app.per_second("main_thread_cpu_seconds") for app in watched]
    return [
        Figure(
            name=f"{workload.name}.bytes_per_second",
            value=median(rates),
            unit="bytes per second",
            aim=WRITTEN_AIM_BYTES_PER_SECOND,
            detail={"all": rounded(rates)},
        ),
        Figure(
            name=f"{workload.name}.ui_cpu",
            value=median(cpu),
            unit="fraction",
            aim=UI_CPU_AIM,
            detail={"all": rounded(cpu)},
        ),
    ]


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


def step_to_glass(plan: Plan) -> list[Figure]:
    """From a step's record to the moment when the emulated screen shows that step, or a later one."""
    seconds = run_watched(plan.lab, plan.workloads["launch_bound"], emulated=True).glass_seconds()
    return [
        Figure(
            name="step_to_glass",
            value=median(seconds),
            unit="seconds",
            aim=GLASS_AIM_SECONDS,
            detail={"percentile_95": float(np.percentile(seconds, 95)), "steps": len(seconds)},
        )
    ]


# -------------------------------------------------------------------------------------- memory


def memory_growth(plan: Plan) -> list[Figure]:
    """What millions of steps add to the memory of a process that already folded a hundred thousand."""
    steps = QUICK_FOLDED_STEPS if plan.quick else FOLDED_STEPS
    command = [sys.executable, "-m", "tests.benchmarks.fold_many", str(steps), str(FIRST_FOLDED_STEPS)]
    found = json.loads(last_line(plan.lab.run(command)))
    return [
        Figure(
            name="memory_growth",
            value=found["last_bytes"] - found["first_bytes"],
            unit="bytes",
            aim=GROWTH_AIM_BYTES,
            detail={"steps": steps, "first_steps": FIRST_FOLDED_STEPS, **found},
        )
    ]


MEASURES: Mapping[str, Callable[[Plan], list[Figure]]] = {
    "first_panels": first_panels,
    "step_to_glass": step_to_glass,
    "memory_growth": memory_growth,
    "launch_bound": lambda plan: beside_plain_loop(plan, plan.workloads["launch_bound"]),
    "mnist_deep": lambda plan: beside_plain_loop(plan, plan.workloads["mnist_deep"]),
}
"""Every measure by name, in the order in which they run."""
