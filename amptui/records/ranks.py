"""Records of the ranks of a distributed run: where each runs, what each measures, and what goes wrong.

As in all records ``None`` is a number that was not measured and ``time`` is Unix seconds. Ranks count from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


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
    """What the ranks measured in the same steps, told by rank 0 once a second, of many ranks less often.

    A column has one value for each rank; one that no rank measured is empty. Seconds are finite, and means
    over the ``steps`` steps that end with ``step``.
    """

    time: float
    step: int
    steps: int
    world_size: int
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
    """Steps so far in which the rank's own loss was found to be NaN or Inf; None before one of them was
    looked at."""
    sm_clock_mhz: tuple[float | None, ...] = ()
    throttled: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The ranks whose clocks are held down, by the reason in NVML's words."""


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
    what: Literal["loss scale", "found_inf"]
    count: int
    """How many ranks differ from the most frequent value."""
    most: float
    """The most frequent value; of equally frequent ones rank 0's."""
    others: tuple[RankValue, ...]
    """Of the ranks that differ the first 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOverflowed:
    """Which ranks made a step's averages NaN or Inf, told when their rows have arrived.

    Their own loss was not finite. Not told of all ranks.
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
    "saving",
    "script",
    "silent",
]
"""What a rank is doing; ``script`` is all that is known of somebody else's loop. ``silent``: its process does
not answer."""


PHASE_WORDS: Mapping[RankPhase, str] = {
    "preparing": "preparing to train",
    "loading": "loading data",
    "training": "in its step",
    "after_step": "in after_step()",
    "validating": "validating",
    "compiling": "compiling the model",
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


COLUMNS = (
    *("step_seconds", "data_seconds", "compute_seconds", "peak_allocated_bytes", "memory_used_bytes"),
    *("grad_norm", "skipped", "overflowed", "sm_clock_mhz"),
)
"""The columns of a sample."""
