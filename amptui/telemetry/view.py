"""The immutable snapshot of a session that every front draws from."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from amptui.records import (
    AllocatorSample,
    DeviceSample,
    EpochFinished,
    GpuSample,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    Severity,
    StepRecord,
)

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

EventKind = Literal[
    "switch", "skip", "growth", "nonfinite", "epoch", "pause", "note", "print", "finished", "failed"
]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One value a step over the whole run, at two resolutions.

    The overview covers every step in at most 2,048 buckets of ``bucket_steps`` (a power of two) each;
    ``recent`` holds the last values exactly. NaN in ``minimum``, ``maximum`` and ``mean`` is a bucket
    without a finite value; ``nonfinite`` counts the NaN and Inf that fell into each bucket.
    """

    first_step: int
    """The step of the first value; bucket i covers ``bucket_steps`` steps from here on."""
    count: int
    """Values so far, those not measured included; the last one's step is ``first_step + count - 1``."""
    bucket_steps: int
    minimum: Floats
    maximum: Floats
    mean: Floats
    nonfinite: Counts
    recent: Floats
    """The last ``len(recent)`` values, oldest first; NaN where not measured or not finite."""
    recent_nonfinite: npt.NDArray[np.bool_]
    """Where in ``recent`` the value was NaN or Inf rather than not measured."""

    @property
    def last_step(self) -> int:
        """The step of the newest value."""
        return self.first_step + self.count - 1


def _empty_series() -> Series:
    floats, counts = np.empty(0), np.empty(0, np.int64)
    return Series(1, 0, 1, floats, floats, floats, counts, floats, np.empty(0, np.bool_))


EMPTY_SERIES = _empty_series()


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event list."""

    time: float
    step: int | None
    kind: EventKind
    severity: Severity
    text: str
    detail: str = ""
    """More to read when the line is opened, a traceback say."""
    number: int = field(default=0, compare=False)
    """Lines are numbered as they begin; a line whose text counts on keeps its number."""


@dataclass(frozen=True, slots=True)
class PrecisionSwitch:
    """From ``step`` on, steps ran in ``precision``; the run's first step has one too."""

    step: int
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionStats:
    """What one precision did in this run, settling steps left out of all but the skips."""

    precision: str
    steps: int
    """Steps counted."""
    settling_steps: int
    """Steps left out."""
    median_step_seconds: float | None
    """Over the last 2,048 counted steps at most."""
    samples_per_second: float | None
    """Over the same steps: their samples by their seconds."""
    peak_allocated_bytes: int | None
    last_loss: float | None
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The precisions of this run side by side, and AMP's gain over the baseline once it can be said."""

    rows: tuple[PrecisionStats, ...] = ()
    baseline: str | None = None
    amp: str | None = None
    speedup: float | None = None
    """Baseline's median step time by AMP's: above 1, AMP is faster."""
    memory_saving: float | None = None
    """The fraction of the baseline's peak allocated memory that AMP did without; negative is more."""
    reason: str = ""
    """Why there is no speed-up to show yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerView:
    """The GradScaler as of the last ``fp16`` step; ``scale`` is None while there was none."""

    scale: float | None = None
    growth_tracker: int | None = None
    growth_interval: int | None = None
    applied: int = 0
    """``fp16`` steps that changed the weights."""
    skipped: int = 0
    last_change: str = ""
    """The last move in words: ``backoff at step 612: 131,072 → 65,536``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """All that is known of a run at one moment."""

    state: Literal["starting", "running", "paused", "finished", "failed"] = "starting"
    phase: PhaseChanged | None = None
    """What is waited for when no step runs; None or ``training`` while steps run."""
    run: RunStarted | None = None
    precision: str | None = None
    """The precision confirmed by the engine."""
    step: int = 0
    epoch: int = 0
    epoch_step: int = 0
    """Steps done in this epoch."""
    elapsed_seconds: float | None = None
    """From the run's start to its newest record."""
    eta_seconds: float | None = None
    last: StepRecord | None = None
    """The newest step with a measured loss."""
    smoothed_loss: float | None = None
    """Exponential moving average of the finite losses."""
    best_loss: float | None = None
    best_loss_step: int | None = None
    last_epoch: EpochFinished | None = None
    step_seconds: float | None = None
    """Mean over the last 50 steps that were measured, in whatever precision: hiccups are in it."""
    samples_per_second: float | None = None
    """Over the same steps."""
    loss: Series = EMPTY_SERIES
    samples_rate: Series = EMPTY_SERIES
    """Samples a second, one value a step."""
    loss_scale: Series = EMPTY_SERIES
    skips: Series = EMPTY_SERIES
    """1 for a skipped step, 0 for an applied one: ``maximum`` tells which buckets hold a skip."""
    switches: tuple[PrecisionSwitch, ...] = ()
    """The stretches of the run; the newest thousand."""
    comparison: Comparison = field(default_factory=Comparison)
    scaler: ScalerView = field(default_factory=ScalerView)
    device: DeviceSample | None = None
    allocator: AllocatorSample | None = None
    """torch's newest word on its allocator, if it has one."""
    events: tuple[Event, ...] = ()
    """Newest first; the newest thousand."""
    warnings: int = 0
    errors: int = 0
    unmeasured_steps: int = 0
    """Steps whose numbers never reached the host because the readback ring was full."""
    run_dir: str = ""
    outcome: RunFinished | RunFailed | None = None

    @property
    def training_gpu(self) -> GpuSample | None:
        """The GPU, or the MIG instance of one, that trains, as NVML saw it last; None where it is not known.

        torch writes ``GPU-`` before a MIG instance's UUID and NVML writes ``MIG-``: what follows counts.
        """
        if self.run is None or self.run.gpu_uuid is None or self.device is None:
            return None
        trains = self.run.gpu_uuid.partition("-")[2]
        return next((gpu for gpu in self.device.gpus if gpu.uuid.partition("-")[2] == trains), None)


EMPTY_VIEW = SessionView()
