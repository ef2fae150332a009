"""Records of the ranks of a distributed run: where each runs, what each measures, and what goes wrong.

As in all records ``None`` is a number that was not measured and ``time`` is Unix seconds. Ranks count from 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

MAX_RANKS_SAMPLED = 64
"""A sample has the numbers of so many ranks at most: of larger runs those that stand out, and percentiles."""

PERCENTILES = (0, 10, 50, 90, 100)

_KEPT: Mapping[str, tuple[int, int]] = {
    "compute_seconds": (4, 24),
    "data_seconds": (0, 24),
    "sm_clock_mhz": (8, 0),
}
"""How many ranks are kept at the lower and the upper end of each column; with rank 0 at most 61."""

_NEWEST_WEIGHT = 0.15
"""Of the newest sample in a rank's mean place: a hiccup elsewhere leaves a slow rank its place."""

_DIGITS = 4
"""Significant digits of what is kept: half the bytes of a float64, and more than a screen shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where one rank runs."""

    rank: int
    host: str
    device: str
    """torch's name of the device on that host: ``cuda:3``."""
    device_name: str = ""
    gpu_uuid: str | None = None
    memory_total_bytes: int | None = None

    @property
    def name(self) -> str:
        """``node-1 cuda:5``."""
        return f"{self.host} {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksStarted:
    """The ranks of a run, told once by rank 0 before the first step, and again after a restart."""

    time: float
    ranks: tuple[RankPlace, ...]
    """In the order of the ranks, all of them."""
    restarts: int = 0
    """How often the launcher has started them again."""
    max_restarts: int = 0
    """How often it does so at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSampled:
    """What the ranks measured in the same steps, told by rank 0 about once a second.

    A column has one value for each of ``ranks``; one that no rank measured is empty. Seconds are finite, and
    means over the ``steps`` steps that end with ``step``. See :func:`condensed` for runs of many ranks.
    """

    time: float
    step: int
    steps: int
    world_size: int
    ranks: tuple[int, ...]
    """Ascending."""
    step_seconds: tuple[float | None, ...] = ()
    """From step to step: equal on all ranks where collectives make each wait for the slowest."""
    data_seconds: tuple[float | None, ...] = ()
    """Of each step: how long the rank waited for its batch, on its host's clock."""
    compute_seconds: tuple[float | None, ...] = ()
    """Of each step: forward and backward of this rank alone, before it waits for others. None where that
    cannot be told apart, as under FSDP2, whose collectives are part of both."""
    peak_allocated_bytes: tuple[int | None, ...] = ()
    """torch's peak; None on a CPU."""
    memory_used_bytes: tuple[int | None, ...] = ()
    """Of the rank's GPU, by NVML."""
    grad_norm: tuple[float | None, ...] = ()
    """The L2 norm of all gradients after they were reduced, unscaled: equal on all ranks, under FSDP2 too."""
    skipped: tuple[int | None, ...] = ()
    """Steps that the rank's scaler skipped so far."""
    overflowed: tuple[int | None, ...] = ()
    """Steps so far in which the rank's own loss or gradients were found to hold NaN or Inf before they were
    averaged; None before one of a rank's steps was looked at."""
    sm_clock_mhz: tuple[float | None, ...] = ()
    throttled: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The ranks whose clocks are held down, by the reason in NVML's words."""
    step_percentiles: tuple[float, ...] = ()
    """``PERCENTILES`` of ``step_seconds`` over all ranks that measured it; as the next two empty where
    ``ranks`` has all ranks, or none measured it."""
    data_percentiles: tuple[float, ...] = ()
    compute_percentiles: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankValue:
    """What one rank has where others have something else."""

    rank: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksDisagree:
    """What must be equal on all ranks is not; or is again, with ``count`` 0. Told when it changes."""

    time: float
    step: int
    what: Literal["loss scale", "found_inf", "weights"]
    """``weights`` are compared by a hash."""
    count: int
    """How many ranks differ from the most frequent value."""
    most: float
    """The most frequent value; of equally frequent ones rank 0's."""
    others: tuple[RankValue, ...]
    """Of the ranks that differ the first 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOverflowed:
    """Which ranks made a step's averaged loss or gradients NaN or Inf, told when their rows have arrived.

    Their own loss was not finite; or their own gradients, where those of all ranks were checked before they
    were averaged. Not told where nothing is known, or the same of all ranks.
    """

    time: float
    step: int
    """That of a record that told of the trouble before."""
    ranks: tuple[int, ...]
    """The first 8."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLost:
    """A rank no longer takes part; the run ends, or starts again from its newest checkpoint."""

    time: float
    step: int
    rank: int
    host: str
    cause: Literal["killed", "hung", "out of memory", "failed"]
    detail: str = ""
    """A signal, an error in one line, or how long nothing was heard of it."""


RankPhase = Literal[
    "preparing",
    "loading",
    "training",
    "after_step",
    "validating",
    "compiling",
    "alone",
    "saving",
    "script",
    "silent",
]
"""What a rank is doing; ``script`` is all that is known of somebody else's loop. ``alone``: rank 0 computes
something that the others wait for, such as an X-ray. ``silent``: its process does not answer."""


PHASE_WORDS: Mapping[RankPhase, str] = {
    "preparing": "preparing to train",
    "loading": "loading data",
    "training": "in its step",
    "after_step": "in after_step()",
    "validating": "validating",
    "compiling": "compiling the model",
    "alone": "computing what only rank 0 does",
    "saving": "writing a checkpoint or weights",
    "script": "in the script's own code",
    "silent": "its process has not answered",
}
"""What a rank is doing, as a line says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksAwaited:
    """Some ranks make all others wait, told from 10 s on and again while they do; ``over``: they did.

    They have begun fewer collectives than the others, and nobody has come further for ``seconds``.
    """

    time: float
    step: int
    """Of the first of ``ranks``."""
    ranks: tuple[int, ...]
    """The first 8."""
    count: int
    phase: RankPhase
    seconds: float
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """What the training thread of one rank was executing."""

    rank: int
    phase: RankPhase
    step: int
    stack: str
    """As a traceback shows it, the innermost call last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksTaken:
    """The stacks of the ranks of a run that made no progress any more."""

    time: float
    step: int
    stacks: tuple[RankStack, ...]
    """By rank, of those whose processes answered; of more than 64 the first."""
    silent: tuple[int, ...]
    """The first 8 of those whose processes did not."""


RecordOfRanks = (
    RanksStarted | RanksSampled | RanksDisagree | RanksOverflowed | RanksAwaited | StacksTaken | RankLost
)


class StandingOut:
    """Finds the ranks that stand out over the newest samples; give it all samples of a run in order.

    Ranks are ordered in each column, and their places averaged over some ten samples: by one sample alone a
    slow rank among a thousand would be lost among those with a hiccup.
    """

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] = ()
        self._means: dict[str, list[float]] = {}

    def add(self, sample: RanksSampled) -> Sequence[int]:
        """Add a sample; return where in its columns the ranks are that stand out, ascending."""
        if sample.ranks != self._ranks:
            self._ranks, self._means = sample.ranks, {}
        places = {0}
        for name, (low, high) in _KEPT.items():
            order = self._ordered(name, getattr(sample, name))
            places.update(order[:low], order[len(order) - high :] if high else ())
        return sorted(places)

    def _ordered(self, name: str, column: Sequence[float | None]) -> list[int]:
        """The measured places of ``column``, ordered by their ranks' mean places in it so far."""
        values = [math.nan if value is None else value for value in column]
        measured = [i for i, value in enumerate(values) if not math.isnan(value)]
        now = [0.0] * len(values)
        for place, i in enumerate(sorted(measured, key=values.__getitem__)):
            now[i] = place
        before = self._means.get(name, now)
        if len(before) == len(now):
            now = [old + _NEWEST_WEIGHT * (new - old) for old, new in zip(before, now, strict=True)]
        self._means[name] = now
        return sorted(measured, key=now.__getitem__)


def condensed(sample: RanksSampled, standing_out: StandingOut | None = None) -> RanksSampled:
    """``sample`` with at most ``MAX_RANKS_SAMPLED`` ranks and 4 significant digits, for the journal.

    Of more ranks it keeps rank 0 and those at the ends of the columns that find a slow rank: the longest
    local compute, the longest waits for data, the lowest clocks; by ``standing_out`` over the newest samples,
    else by this one alone. Percentiles stand for the others.
    """
    places: Sequence[int] = range(len(sample.ranks))
    percentiles: dict[str, Any] = {}
    if len(sample.ranks) > MAX_RANKS_SAMPLED:
        places = (standing_out or StandingOut()).add(sample)
        percentiles = {
            f"{name}_percentiles": percentiles_of(getattr(sample, f"{name}_seconds"))
            for name in ("step", "data", "compute")
        }
    columns: dict[str, Any] = {
        name: tuple([_rounded(column[i]) for i in places]) if (column := getattr(sample, name)) else ()
        for name in COLUMNS
    }
    ranks = tuple([sample.ranks[i] for i in places])
    slow = {reason: set(all_ranks).intersection(ranks) for reason, all_ranks in sample.throttled.items()}
    return replace(
        sample,
        ranks=ranks,
        throttled={reason: tuple(sorted(some)) for reason, some in slow.items() if some},
        **columns,
        **percentiles,
    )


COLUMNS = (
    *("step_seconds", "data_seconds", "compute_seconds", "peak_allocated_bytes", "memory_used_bytes"),
    *("grad_norm", "skipped", "overflowed", "sm_clock_mhz"),
)
"""The columns of a sample."""


def percentiles_of(column: Sequence[float | None]) -> tuple[float, ...]:
    """``PERCENTILES`` of what was measured, each the nearest value; empty if nothing was."""
    values = sorted([value for value in column if value is not None and not math.isnan(value)])
    last = len(values) - 1
    return tuple([_rounded(values[round(last * part / 100)]) for part in PERCENTILES]) if values else ()


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if type(value) is float else value
