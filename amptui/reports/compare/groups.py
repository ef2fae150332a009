"""Runs that differ only in the seed are one group: options, groups, and where groups differ."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from amptui.diagnosis.labels import precision_label, precision_letter
from amptui.reports.compare.trace import RunFigures
from amptui.reports.export.template import MAX_COLOURS, css_class
from amptui.telemetry.view import PrecisionStats

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What groups are called in the order in which they were named, unless each has a precision of its own."""

_UNUSED: Mapping[str, object] = {"accumulate": 1, "processes": 1}
"""Values that mean the same as no option at all, as None and False do."""

_NAMED_BY_THE_RECORD = frozenset({"seed", "epochs", "batch_size"})
"""Fields of a run's configuration that the first record also has, with the values that were used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over the runs of a group that have it."""

    mean: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Runs that differ only in the seed, at least one."""

    letter: str
    label: str
    """What sets it apart from the others: ``FP32``, ``AMP bf16 learning_rate=0.001``."""
    colour: str
    """A class of the style sheet: its precision's if it is called after it."""
    runs: tuple[RunFigures, ...]

    @property
    def name(self) -> str:
        """``F FP32``."""
        return f"{self.letter} {self.label}"

    @property
    def seeds(self) -> tuple[int | str | None, ...]:
        """Each seed once; None for runs without a recorded seed."""
        return tuple(dict.fromkeys(map(seed_of, self.runs)))

    def spread(self, value_of: Callable[[RunFigures], float | None]) -> Spread | None:
        """A figure's mean and range; None if no run has it. NaN and Inf make all three NaN."""
        values = [value for run in self.runs if (value := value_of(run)) is not None]
        if not values:
            return None
        if not all(map(math.isfinite, values)):
            return Spread(mean=math.nan, low=math.nan, high=math.nan, runs=len(values))
        low, high = min(values), max(values)
        # Rounding can put the mean of equal values just outside of their range.
        return Spread(mean=min(max(_mean(values), low), high), low=low, high=high, runs=len(values))

    def by_seed(self, value_of: Callable[[RunFigures], float | None]) -> list[float]:
        """One value a seed: a seed that ran twice says nothing about the spread between seeds."""
        values_by_seed: defaultdict[object, list[float]] = defaultdict(list)
        for run in self.runs:
            value = value_of(run)
            if value is not None:
                values_by_seed[seed_of(run)].append(value)
        return [_mean(values) for values in values_by_seed.values()]


def grouped(runs: Sequence[RunFigures]) -> tuple[Group, ...]:
    """The groups, in the order in which their first runs were named."""
    members: dict[tuple[tuple[str, str], ...], list[RunFigures]] = {}
    for run in runs:
        members.setdefault(tuple(options(run).items()), []).append(run)
    firsts = [runs[0] for runs in members.values()]
    apart = {name: values for name, values in differences(firsts).items() if name != "precision"}
    names = list(map(precision_words, firsts))
    labels = list(names)
    for place, name in enumerate(names):
        if names.count(name) > 1:
            others = [f"{option}={values[place]}" for option, values in apart.items() if values[place]]
            labels[place] = " ".join([name, *others[:2]])
    precisions = [run.precisions[0] if len(run.precisions) == 1 else None for run in firsts]
    own = [precision_letter(precision) for precision in precisions if precision is not None]
    letters: Sequence[str] = own
    colours = [css_class(precision or "") for precision in precisions]
    if len(set(own) - {"?"}) < len(precisions):
        letters, colours = LETTERS, [f"curve{n}" if n < MAX_COLOURS else "other" for n in range(len(LETTERS))]
    columns = zip(letters, labels, colours, members.values(), strict=False)
    return tuple(
        Group(letter=letter, label=label, colour=colour, runs=tuple(runs))
        for letter, label, colour, runs in columns
    )


def differences(runs: Sequence[RunFigures]) -> dict[str, tuple[str, ...]]:
    """The options that are not the same in all of ``runs``, with the value of each; the precision first."""
    effective = [options(run) for run in runs]
    recorded = [_recorded(run) for run in runs]
    return {
        name: tuple(_as_text(values.get(name)) for values in recorded)
        for name in dict.fromkeys(chain.from_iterable(effective))
        if len({values.get(name) for values in effective}) > 1
    }


def options(run: RunFigures) -> dict[str, str]:
    """All that a run was trained with and that has an effect, except for the seed, as text by name."""
    return {
        name: _as_text(value)
        for name, value in _recorded(run).items()
        if value is not None and value is not False and value not in ("", {}) and value != _UNUSED.get(name)
    }


def _recorded(run: RunFigures) -> dict[str, Any]:
    precision = precision_words(run)
    if len(run.view.switches) > 1:  # with the steps of the switches
        first, *others = run.view.switches
        words = [f"{precision_label(switch.precision)} from step {switch.step:,}" for switch in others]
        precision = ", ".join([precision_label(first.precision), *words])
    values: dict[str, Any] = {"precision": precision}
    started = run.view.run
    if started is None:
        return values
    config = {name: value for name, value in started.config.items() if name not in _NAMED_BY_THE_RECORD}
    return {
        **values,
        "model": started.model,
        "batch_size": started.batch_size,
        **config,
        "data": started.data.name if started.data.real else f"{started.data.name} (synthetic)",
        "samples": started.data.samples,
        "epochs": started.total_epochs,
        "steps": started.total_steps,
        "parameters": started.parameters,
        "device": started.device_name,
        "processes": started.world_size,
        "parallel": started.parallel,
        **started.versions,
        **started.hardware,
    }


def _as_text(value: object) -> str:
    return "" if value in (None, {}) else str(value)


def seed_of(run: RunFigures) -> int | str | None:
    """The seed that the run recorded."""
    seed = None if run.view.run is None else run.view.run.config.get("seed")
    return seed if seed is None or isinstance(seed, int) else str(seed)


def precision_words(run: RunFigures) -> str:
    """``FP32``, or for a run that was switched ``FP32, AMP bf16``."""
    return ", ".join(map(precision_label, run.precisions)) or "no steps"


def stats_of(run: RunFigures) -> PrecisionStats | None:
    """The figures of its precision; None before two steps after warm-up.

    None too for several precisions, which have no one step time.
    """
    rows = run.view.comparison.rows
    return None if len(rows) != 1 or rows[0].provisional_steps else rows[0]


def _mean(values: Sequence[float]) -> float:
    """The mean of finite values, none of whose sums overflows."""
    unit = max(map(abs, values)) or 1.0
    return fmean(value / unit for value in values) * unit
