"""The facts a run emits, as frozen records, which the journal stores and the screen shows.

Numbers carry their unit in their name. ``None`` is a number that was not measured. Non-finite numbers
are values like any other. ``time`` is Unix seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from amptui.base.masking import masked
from amptui.records.answers import Answer, RequestMade
from amptui.records.findings import (
    Float8Layers,
    Float16Window,
    FlopsCounted,
    MemoryBreakdown,
    ModelCompiled,
    ModulesTraced,
    PrecisionsCompared,
    StepTimed,
    UpdatesMeasured,
    XRayTaken,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, WeightsSaved
from amptui.records.own_loop import OTHER_PRECISIONS, GradientsDropped, OptimizerFollowed
from amptui.records.ranks import RecordOfRanks
from amptui.records.samples import DeviceSample
from amptui.records.steps import Steps

FORM = 13
"""Of journals, of a session's state, and of what a run and its screens say to each other: counted up when an
amptui with another form could no longer read one of them."""

PRECISIONS = ("fp32", "ieee", "tf32", "fp16", "bf16", "fp8")
"""Every precision that can be switched to, in the order in which tables show them."""

PRECISION_ORDER = (*PRECISIONS, *OTHER_PRECISIONS)
"""Every precision a step can run in, in the order in which tables show them."""

AMP_PRECISIONS = ("fp16", "bf16")
"""The precisions that are automatic mixed precision."""

LOW_PRECISIONS = (*AMP_PRECISIONS, "fp8")
"""The precisions of which AMP is a part: forward passes under autocast."""


DTYPE_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The precision whose steps compute in a dtype, by torch's name of that."""


def parse_precision(name: str, choices: Sequence[str] = PRECISIONS) -> str:
    """One of ``choices``, which users may also call by its dtype. Raises ValueError."""
    precision = DTYPE_PRECISIONS.get(name, name)
    if precision not in choices:
        raise ValueError(f"{name!r} is not one of {', '.join(choices)}")
    return precision


def reference_precision(precision: str) -> str:
    """What a low precision is judged against: ``fp32`` for AMP; ``bf16`` for FP8, which builds on it."""
    return "bf16" if precision == "fp8" else "fp32"


MIN_SOUND_SCALE = 1.0
"""Below it the loss scale makes gradients smaller, the opposite of its purpose."""

COLLAPSE_SKIPS = 5
"""After so many skips in a row another halving is unlikely to help; from 65,536 the scale is then 2,048."""


def precision_place(name: str) -> int:
    """Its place in tables; other names come last."""
    return PRECISION_ORDER.index(name) if name in PRECISION_ORDER else len(PRECISION_ORDER)


Severity = Literal["info", "warning", "error"]
NonFiniteKind = Literal["nan", "inf"]
PauseCause = Literal["", "loss scale", "weights"]
"""Why a trainer pauses by itself: the loss scale came to its floor, or the weights hold NaN."""

Phase = Literal["importing", "data", "model", "first step", "training", "validating", "stopping"]
"""What a trainer can be busy with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """What is trained on; ``real`` is false for a synthetic stand-in."""

    name: str
    real: bool
    samples: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Means over the validation samples; ``accuracy`` is a fraction of one."""

    loss: float | None
    accuracy: float | None
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Everything known when the first step starts."""

    time: float
    model: str
    device: str
    """torch's name of the device: ``cuda:0`` or ``cpu``."""
    device_name: str
    gpu_uuid: str | None
    """NVML's UUID of the GPU that trains; None on a CPU."""
    precision: str
    amp_precision: str
    """What AMP means in this run: the precision that it starts in, if that is ``fp16`` or ``bf16``."""
    unsupported: Mapping[str, str]
    """The precisions this device cannot run, each with the reason."""
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    data: DataInfo
    parameters: int
    batch_size: int | None
    """Samples of one batch, of each rank."""
    steps_per_epoch: int | None
    """None when the data does not know its length."""
    total_epochs: int
    """0 where an observed script does not say how many."""
    total_steps: int | None
    """The step at which the run ends; None when it is not known yet."""
    growth_interval: int
    """Applied steps without overflow after which the scaler doubles its scale."""
    observed: bool = False
    """A script's own loop trains and is only watched."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """The kinds of request that this run never takes, each with the reason."""
    world_size: int = 1
    """Processes that train together, one on each device."""
    parallel: str = ""  # of "ddp", "fsdp", "fsdp2", "hsdp" and "tp" those that apply, joined by "+"
    data_parallel: int | None = None  # ranks that take samples of their own; None: all, or not known
    global_batch_size: int | None = None
    """Samples of all ranks in one step, its micro-batches included; None in a single process."""
    optimizer: str = ""
    """What a screen calls the first of several optimizers; empty where nobody named it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that change how PyTorch computes."""
    form: int = FORM
    """Of the journal that this record is in."""

    def __post_init__(self) -> None:
        # Records are shared as pages and tables, also those of a journal that somebody else wrote.
        object.__setattr__(self, "config", masked(self.config))
        object.__setattr__(self, "environment", masked(self.environment))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged:
    """What the trainer is doing while no step runs: a download, an import, a validation."""

    time: float
    phase: Phase
    detail: str = ""
    done: int | None = None
    """With ``total``: how far it is, in ``unit``."""
    total: int | None = None
    unit: Literal["bytes", "samples", "batches"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChanged:
    """The engine's confirmation: ``step`` is the first one that runs in ``current``."""

    time: float
    step: int
    previous: str
    current: str
    optimizer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFinished:
    """A stretch of steps in one precision came to its end, at a switch or with the run."""

    time: float
    step: int
    precision: str
    steps: int
    peak_allocated_bytes: int | None
    """torch's peak after warm-up; None on a CPU or when all steps were warm-up steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleChanged:
    """The scaler moved: after ``step`` the scale is ``current``."""

    time: float
    step: int
    previous: float
    current: float
    reason: Literal["backoff", "growth"]
    optimizer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped:
    """The scaler dropped this step's update because a gradient was not finite."""

    time: float
    step: int
    loss_scale: float
    loss: float | None
    """A skip with a non-finite loss is an overflow in the forward pass: no scaling helps."""
    names: tuple[str, ...]
    """Parameters with non-finite gradients, worst first, bounded in number."""
    count: int | None
    """How many parameters had non-finite gradients."""
    consecutive: int
    """Skips in a row up to this one."""
    kinds: tuple[NonFiniteKind, ...] = ()
    """What each of ``names`` holds: NaN, or Inf and no NaN."""
    ranks: tuple[int, ...] = ()
    """The first 8 with such gradients of their own; empty: unknown, all, or ``RanksOverflowed`` says it."""
    optimizer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """NaN or Inf was found; a skipped step has a record of its own and none of these for gradients."""

    time: float
    step: int
    what: Literal["loss", "gradient", "buffer"]
    kind: NonFiniteKind
    """The worst of ``kinds``: NaN before Inf."""
    names: tuple[str, ...]
    """Worst first (NaN before Inf), bounded in number."""
    count: int
    kinds: tuple[NonFiniteKind, ...] = ()
    """What each of ``names`` holds."""
    ranks: tuple[int, ...] = ()
    """As in :class:`StepSkipped`."""
    optimizer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished:
    """An epoch's end; ``seconds`` is its training time without validation and pauses, if all was measured."""

    time: float
    step: int
    epoch: int
    seconds: float | None
    mean_loss: float | None
    validation: Validation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A validation in the middle of an epoch, after ``step``; an epoch's own is in :class:`EpochFinished`."""

    time: float
    step: int
    epoch: int
    validation: Validation


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChanged:
    """The trainer paused after ``step``, or resumed."""

    time: float
    step: int
    paused: bool
    reason: str = ""
    """Why the trainer paused by itself, in one line; empty when the person paused it."""
    cause: PauseCause = ""
    """What a person is asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something a person should read."""

    time: float
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A line that user code or a library wrote to the terminal while the screen owned it."""

    time: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """The run goes on after ``step`` from a checkpoint, in a new process."""

    time: float
    step: int
    checkpoint: str
    """The file's name."""
    device: str
    device_name: str
    gpu_uuid: str | None
    precision: str
    versions: Mapping[str, str]
    total_epochs: int | None = None
    total_steps: int | None = None
    """The run's end as of now: it may be longer than at first."""
    lost_steps: int = 0
    """Steps after the checkpoint that the previous process had done; they are repeated."""
    world_size: int | None = None
    """As of now, as are the next four; None: as before."""
    parallel: str | None = None
    data_parallel: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    restarts: int = 0
    """How often the launcher has started the ranks again; 0 if a person resumed the run."""
    cause: str = ""  # why it did so, in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The run ended as asked, or with its script."""

    time: float
    steps: int
    seconds: float
    reason: Literal["done", "stopped", "ended"]
    """``ended``: an observed script came to its end without an error that can be seen from within. With which
    exit status is not known: Python tells nobody of a ``sys.exit(1)``."""
    unwatched: str = ""
    """Why the script was watched to the last of ``steps`` alone; such a run is never ``done``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """The run ended with an error, told in one line, with the hint."""

    time: float
    step: int
    error: str
    traceback: str


Record = (
    RunStarted
    | PhaseChanged
    | Steps
    | DeviceSample
    | RecordOfRanks
    | PrecisionChanged
    | OptimizerFollowed
    | GradientsDropped
    | BlockFinished
    | LossScaleChanged
    | StepSkipped
    | NonFinite
    | Float16Window
    | UpdatesMeasured
    | ModulesTraced
    | XRayTaken
    | PrecisionsCompared
    | StepTimed
    | ModelCompiled
    | Float8Layers
    | MemoryBreakdown
    | FlopsCounted
    | EpochFinished
    | Validated
    | PauseChanged
    | Note
    | Printed
    | CheckpointWritten
    | WeightsSaved
    | RunResumed
    | KeepingChanged
    | RequestMade
    | Answer
    | RunFinished
    | RunFailed
)
