"""The step times of amptui's parts, and of the whole app, beside the plain loop's: figures and a table."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from amptui.base import units
from amptui.monitor.estimate import MIN_PAIRS
from tests.benchmarks.figures import Figure, columns, mean_interval, mean_ratio, rounded
from tests.benchmarks.turns import APP, QUIET_CORES, Turn
from tests.benchmarks.workloads import Workload

PLAIN = "plain"

AGAIN = "plain-again"
"""The plain loop a second time: its rate is 1, and 19 of 20 intervals should hold that."""

MIN_QUIET_PAIRS = 6
"""With fewer pairs of undisturbed turns, all are counted, and nothing is judged by them."""

STATISTICS: Mapping[str, Callable[[Turn], float]] = {
    "p10": lambda turn: float(np.percentile(turn.step_seconds, 10)),
    "median": lambda turn: float(np.median(turn.step_seconds)),
    "mean": lambda turn: float(np.mean(turn.step_seconds)),
    "p99": lambda turn: float(np.percentile(turn.step_seconds, 99)),
    "CPU": lambda turn: float(np.mean(turn.thread_seconds)),
}
"""What a turn's step times are told by. The mean has all that a step cost, also what hits one in a hundred,
but on a busy machine others' work too; the tenth percentile is of steps that nobody disturbed, the 99th of
those with a look. ``CPU`` is the training thread's processor time a step, which waiting for a core does not
change."""

SLICE_SECONDS = 0.005
"""Shorter steps mostly run undisturbed on a busy machine too: a scheduler's slice is a few milliseconds."""

Pair = tuple[Turn, Turn]
"""A turn of the plain loop and the neighbouring one of another side."""


def figures(workload: Workload, turns: Mapping[str, Sequence[Turn]]) -> list[Figure]:
    """For each side its step rate by the plain loop's, and the same by p10; the app's have an aim."""
    text = _times_table(workload, turns)
    sides = [name for name in turns if name != PLAIN]
    found = [figure for name in sides for figure in _figures(workload, name, turns)]
    return [*found[:-1], replace(found[-1], explanation=text)]


def speedup(name: str, slow: Sequence[Turn], fast: Sequence[Turn], *, aim: float | None) -> Figure:
    """How many steps ``fast`` does in the time of one of ``slow``, by the wall clock."""
    pairs, quiet = quiet_pairs(slow, fast)
    found = ratios(pairs, "mean")
    return Figure(
        name=name,
        value=mean_ratio(found),
        unit="times",
        aim=aim,
        more_is_better=True,
        interval=mean_interval(found),
        caveat="" if quiet else _disturbance({"slow": slow, "fast": fast}),
        detail={"counted_pairs": len(pairs), "step_seconds": [_times(slow), _times(fast)]},
    )


def quiet_pairs(plain: Sequence[Turn], other: Sequence[Turn]) -> tuple[list[Pair], bool]:
    """The pairs in which nothing else took the processor, and true; all pairs and false if those are few.

    They are few, too, if they are of fewer restarts than an interval needs.
    """
    pairs = list(zip(plain, other, strict=True))
    quiet = [pair for pair in pairs if all(turn.is_quiet for turn in pair)]
    enough = len(quiet) >= MIN_QUIET_PAIRS and len({turn.restart for turn, _ in quiet}) >= MIN_PAIRS
    return (quiet, True) if enough else (pairs, False)


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


def _figures(workload: Workload, name: str, turns: Mapping[str, Sequence[Turn]]) -> list[Figure]:
    pairs, quiet = quiet_pairs(turns[PLAIN], turns[name])
    found = {statistic: ratios(pairs, statistic) for statistic in STATISTICS}
    detail = {
        **_conditions(workload, turns),
        "pairs": len(turns[name]),
        "counted_pairs": len(pairs),
        "restarts": len({turn.restart for turn in turns[name]}),
        "ratios": {statistic: _summary(values) for statistic, values in found.items()},
        "step_seconds": {side: _times(turns[side]) for side in (PLAIN, name)},
    }
    rate = Figure(
        name=f"{workload.name}.{workload.precision}.{name}.rate",
        value=mean_ratio(found["mean"]),
        unit="fraction",
        aim=workload.min_rate_ratio if name == APP else None,
        more_is_better=True,
        interval=mean_interval(found["mean"]),
        caveat="" if quiet else _disturbance(turns),
        detail=detail,
    )
    if workload.device != "cpu":
        return [rate]  # the host's clock says nothing of single steps of a device
    p10 = replace(
        rate,
        name=f"{workload.name}.{workload.precision}.{name}.p10",
        value=mean_ratio(found["p10"]),
        interval=mean_interval(found["p10"]),
        caveat="" if _times(turns[PLAIN])["p10"] < SLICE_SECONDS else rate.caveat,
        detail={},
    )
    return [rate, p10]


def _conditions(workload: Workload, turns: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    return {
        "precision": workload.precision,
        "threads": workload.threads,
        "batch_size": workload.batch_size,
        "turn_seconds": workload.turn_seconds,
        "other_cores": rounded([_other_cores(turns)])[0],
    }


def _disturbance(turns: Mapping[str, Sequence[Turn]]) -> str:
    cores = len(os.sched_getaffinity(0))
    if _other_cores(turns) <= QUIET_CORES:
        return f"no verdict: fewer than {MIN_QUIET_PAIRS} undisturbed pairs of {MIN_PAIRS} restarts"
    return f"no verdict: other programs used {_other_cores(turns):.2f} of {cores} cores"


def _other_cores(turns: Mapping[str, Sequence[Turn]]) -> float:
    return median(turn.other_cores for side in turns.values() for turn in side)


def _summary(values: Sequence[float]) -> dict[str, Any]:
    interval = mean_interval(values)
    return {
        "mean": rounded([mean_ratio(values)])[0],
        "interval_95": rounded(interval) if interval else None,
        "of_restarts": rounded(values),
    }


def _times(turns: Sequence[Turn]) -> dict[str, float]:
    """The median over turns of each statistic, in seconds."""
    return {name: rounded([median(map(tell, turns))])[0] for name, tell in STATISTICS.items()}


def _times_table(workload: Workload, turns: Mapping[str, Sequence[Turn]]) -> str:
    rows = [["step of", *STATISTICS, *(f"rate by {name}" for name in STATISTICS), "pairs"]]
    for side, of in turns.items():
        times = [units.milliseconds(seconds) for seconds in _times(of).values()]
        if side == PLAIN:
            rows.append([side, *times, *("" for _ in STATISTICS), ""])
            continue
        pairs, _ = quiet_pairs(turns[PLAIN], of)
        rates = [_rate(ratios(pairs, name)) for name in STATISTICS]
        rows.append([side, *times, *rates, f"{len(pairs)} of {len(of)}"])
    title = (
        f"{workload.name} in {workload.precision}, {len(turns[PLAIN])} turns of {workload.turn_seconds:g} s "
        f"in {len({turn.restart for turn in turns[PLAIN]})} restarts"
    )
    return f"{title}\n{columns(rows)}"


def _rate(values: Sequence[float]) -> str:
    interval = mean_interval(values)
    return f"{mean_ratio(values):.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")
