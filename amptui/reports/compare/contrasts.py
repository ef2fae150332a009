"""Whether groups differ by more than their seeds do, and what limits the comparison."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amptui.records.run import RunFailed
from amptui.reports.compare.groups import (
    Group,
    Spread,
    differences,
    grouped,
    stats_of,
)
from amptui.reports.compare.trace import RunFigures
from amptui.reports.compare.welch import MIN_SEEDS, Interval, mean_difference
from amptui.telemetry.finding import Finding, Grade

CONFIDENCE = 0.95
"""Of all intervals of a comparison together: with several, each one has a higher confidence (Bonferroni;
Dunn, Journal of the American Statistical Association 56, 1961)."""

SAME_SAMPLES = 0.01
"""Runs trained equally long if the fewest samples are below the most by at most this fraction."""

Outcome = Literal[
    "differ", "not shown", "few seeds", "no spread", "diverged", "no loss", "not comparable", "running",
]  # fmt: skip
"""``differ``: by more than the seeds do. ``not shown``: the interval holds 0. All others: no verdict."""

_CHECKS = {
    "samples": "trained on different numbers of samples ({}): final losses are not comparable",
    "data": "trained on different data ({}): losses are not comparable",
    "model": "different models ({}): losses are not comparable",
    "devices": "trained on different devices ({}): times are not comparable",
    "unfinished": "stopped early or failed: {}",
    "repeated seed": "{}: runs of the same seed, or without a known one, count as one",
    "unread": "not everything in the journal could be read: {}",
}
"""By kind, with a place for the groups or runs that it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A group against the first."""

    baseline: Group
    other: Group
    finding: Finding
    """What the final losses say, with the other's mean minus the baseline's where both are finite."""
    interval: Interval | None
    speedup: Spread | None
    """The other's samples per second by the baseline's: of the group means, and the lowest and highest of any
    two runs. None where the times do not compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All that a comparison found."""

    runs: tuple[RunFigures, ...]
    groups: tuple[Group, ...]
    validation: bool
    """Whether final and best losses are those of validations: if every run had one."""
    target: float | None
    """The loss whose time is given: the highest final one, unless another was asked for."""
    target_asked: bool
    differences: Mapping[str, tuple[str, ...]]
    """The options that are not the same in all groups, with a value for each group."""
    contrasts: tuple[Contrast, ...]
    checks: Mapping[str, str]
    """What limits what the comparison can say, in words by kind."""


def compared(runs: Sequence[RunFigures], *, target: float | None = None) -> Compared:
    """The comparison of ``runs``, which are in the order in which they were named; the first is the baseline.

    ``target`` is the loss whose training time is given.
    """
    groups = grouped(runs)
    validation = all(len(run.validation.loss) for run in runs)
    reached = []
    for run in runs:
        # The final one, or the best of one that ended at NaN.
        best, final = run.best(validation=validation), run.final(validation=validation)
        if best is not None:
            reached.append(best if final is None or not math.isfinite(final) else max(best, final))
    baseline, *others = groups
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(others))
    return Compared(
        runs=tuple(runs),
        groups=groups,
        validation=validation,
        target=target if target is not None or len(reached) < len(runs) else max(reached),
        target_asked=target is not None,
        differences=differences([group.runs[0] for group in groups]),
        contrasts=tuple(
            _contrast(baseline, other, validation=validation, confidence=confidence) for other in others
        ),
        checks=_checks(groups),
    )


def _contrast(baseline: Group, other: Group, *, validation: bool, confidence: float) -> Contrast:
    def final(run: RunFigures) -> float | None:
        return run.final(validation=validation)

    sides = (baseline, other)
    spreads = [side.spread(final) for side in sides]
    means = [spread.mean for spread in spreads if spread is not None]
    difference = means[1] - means[0] if len(means) == 2 else None
    outcome = _obstacle(sides, final)
    interval = None
    if outcome is None:
        losses = [side.by_seed(final) for side in sides]
        interval = mean_difference(*losses, confidence=confidence)
        if min(map(len, losses)) < MIN_SEEDS:
            outcome = "few seeds"
        elif interval is None:
            outcome = "no spread"
        else:
            outcome = "not shown" if interval.low <= 0 <= interval.high else "differ"
            difference = interval.difference
    if difference is not None and not math.isfinite(difference):
        difference = None
    grade: Grade = "error" if outcome == "diverged" else "unknown"
    if outcome == "differ" and difference is not None:
        grade = "warning" if difference > 0 else "good"
    lost = [run.name for side in sides for run in side.runs if not math.isfinite(final(run) or 0.0)]
    few = [side.name for side in sides if len(side.seeds) < MIN_SEEDS]
    finding = Finding(
        subject="final loss",
        state=outcome,
        grade=grade,
        numbers={
            "difference": difference,
            "low": None if interval is None else interval.low,
            "high": None if interval is None else interval.high,
            "confidence": confidence,
        },
        names={
            "sides": f"{other.name} against {baseline.name}",
            "loss": f"{'validation' if validation else 'training'} loss",
            "runs": ", ".join(lost),
            "few": "one seed each" if len(few) == 2 else f"{''.join(few)} has one seed",
        },
    )
    return Contrast(
        baseline=baseline,
        other=other,
        finding=finding,
        interval=interval,
        speedup=_speedup(baseline, other),
    )


def _obstacle(sides: Sequence[Group], final: Callable[[RunFigures], float | None]) -> Outcome | None:
    """Why final losses say nothing, before any spread is looked at."""
    runs = [run for side in sides for run in side.runs]
    if any(run.is_live for run in runs):
        return "running"
    losses = [final(run) for run in runs]
    if None in losses:
        return "no loss"
    if any(not math.isfinite(loss) for loss in losses if loss is not None):
        return "diverged"
    if not (_equally_long(runs) and _same(runs, _data) and _same(runs, _model)):
        return "not comparable"
    return None


def _speedup(baseline: Group, other: Group) -> Spread | None:
    runs = [*baseline.runs, *other.runs]
    if not _same(runs, lambda run: run.devices):
        return None
    slow, fast = baseline.spread(rate_of), other.spread(rate_of)
    if slow is None or fast is None or slow.runs + fast.runs < len(runs) or not slow.low > 0:
        return None
    return Spread(
        mean=fast.mean / slow.mean, low=fast.low / slow.high, high=fast.high / slow.low, runs=len(runs)
    )


def rate_of(run: RunFigures) -> float | None:
    """Samples per second over the same steps."""
    stats = stats_of(run)
    return None if stats is None else stats.samples_per_second


# ------------------------------------------------------------------------------------ checks


def _checks(groups: Sequence[Group]) -> dict[str, str]:
    runs = [run for group in groups for run in group.runs]
    about: dict[str, str] = {}

    def add(kind: str, values: Sequence[str]) -> None:
        """What each group has."""
        pairs = zip(groups, values, strict=True)
        about[kind] = "; ".join(f"{group.letter}: {value}" for group, value in pairs)

    if not _equally_long(runs) and not any(run.is_live for run in runs):
        samples = [sorted({run.samples for run in group.runs}) for group in groups]
        add("samples", [" to ".join(f"{n:,}" for n in dict.fromkeys((few[0], few[-1]))) for few in samples])
    for kind, value_of in _IN_COMMON.items():
        if not _same(runs, value_of):
            add(kind, [" and ".join(dict.fromkeys(map(value_of, group.runs))) for group in groups])
    named = {
        # Those that ended with an error, or without their last record.
        "unfinished": [
            run.name for run in runs if not run.is_live and isinstance(run.view.outcome, RunFailed | None)
        ],
        "unread": [f"{run.name} ({run.passed_over})" for run in runs if run.passed_over],
        "repeated seed": [group.letter for group in groups if len(group.seeds) < len(group.runs)],
    }
    about |= {kind: ", ".join(names) for kind, names in named.items() if names}
    return {kind: _CHECKS[kind].format(text) for kind, text in about.items()}


def _equally_long(runs: Sequence[RunFigures]) -> bool:
    """Whether all trained on as many samples."""
    samples = [run.samples for run in runs]
    return max(samples) - min(samples) <= SAME_SAMPLES * max(samples)


def _same(runs: Sequence[RunFigures], value_of: Callable[[RunFigures], Any]) -> bool:
    return len({value_of(run) for run in runs}) <= 1


def _data(run: RunFigures) -> str:
    started = run.view.run
    if started is None:
        return "unknown"
    samples = "" if started.data.samples is None else f", {started.data.samples:,} samples"
    return f"{started.data.name}{'' if started.data.real else ' (synthetic)'}{samples}"


def _model(run: RunFigures) -> str:
    started = run.view.run
    return "unknown" if started is None else f"{started.model}, {started.parameters:,} parameters"


_IN_COMMON: Mapping[str, Callable[[RunFigures], str]] = {
    "data": _data,
    "model": _model,
    "devices": lambda run: ", then ".join(run.devices) or "unknown",
}
