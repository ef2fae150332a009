"""The immutable snapshot of a session that every display draws from."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from amptui.records.answers import REQUEST_KINDS, Answer, RequestKind, RequestMade
from amptui.records.findings import (
    Float16Window,
    FlopsCounted,
    MemoryBreakdown,
    ModulesTraced,
    PhaseSeconds,
    PrecisionsCompared,
    XRayTaken,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, WeightsSaved
from amptui.records.own_loop import GradientsDropped, LossForm
from amptui.records.run import (
    EpochFinished,
    NonFinite,
    PauseCause,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    Validated,
)
from amptui.records.samples import AllocatorSample, DeviceSample, GpuSample
from amptui.records.steps import Steps
from amptui.telemetry.events import Event
from amptui.telemetry.finding import Finding
from amptui.telemetry.health import judge_trace
from amptui.telemetry.rank_watch import RanksView
from amptui.telemetry.scaling import ScalerView, judge_scaler

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a series has at one step: its value, or those of the bucket of steps that it is kept in."""

    first_step: int
    last_step: int
    """Of the bucket; both are the step itself where its value is kept."""
    mean: float | None
    """Of the finite values; NaN if there are only others, None if nothing was measured."""
    minimum: float | None
    maximum: float | None
    nonfinite: int
    """How many values are NaN or Inf."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One value per step over the whole run, at two resolutions.

    The overview covers every step in at most 2,048 buckets of ``bucket_steps`` (a power of two) each;
    ``recent`` has the last values exactly. NaN in ``minimum``, ``maximum`` and ``mean`` marks a bucket
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
    """Which values of ``recent`` were NaN or Inf rather than not measured."""
    weights: Floats | None = None
    """Of rates: the seconds of each bucket, by which ``mean`` is weighted. An unweighted mean would favour
    fast steps; samples by seconds are what the run made. None for values whose weights are equal."""
    recent_weights: Floats | None = None
    """The seconds of each of ``recent``; NaN where there is no rate."""
    nonfinite_since: int | None = None
    """The step of the first NaN or Inf after the newest finite value; None if there is none."""

    @property
    def last_step(self) -> int:
        """The step of the newest value."""
        return self.first_step + self.count - 1

    @property
    def first_recent(self) -> int:
        """The first step in ``recent``."""
        return self.last_step - len(self.recent) + 1

    def at(self, step: int) -> Reading | None:
        """What there is of ``step``; None before the first and after the newest."""
        if not self.first_step <= step <= self.last_step:
            return None
        if step >= self.first_recent:
            place = step - self.first_recent
            value, nonfinite = float(self.recent[place]), int(self.recent_nonfinite[place])
            return _reading(step, step, (value, value, value), nonfinite)
        bucket = (step - self.first_step) // self.bucket_steps
        first = self.first_step + bucket * self.bucket_steps
        last = min(first + self.bucket_steps - 1, self.last_step)
        values = float(self.mean[bucket]), float(self.minimum[bucket]), float(self.maximum[bucket])
        return _reading(first, last, values, int(self.nonfinite[bucket]))

    def measured_steps(self) -> Counts:
        """Steps with a value, finite or not: of the recent ones all, before them the first of each bucket."""
        buckets = np.flatnonzero(~np.isnan(self.mean) | (self.nonfinite > 0))
        begins = self.first_step + buckets * self.bucket_steps
        recent = np.flatnonzero(~np.isnan(self.recent) | self.recent_nonfinite) + self.first_recent
        steps: Counts = np.concatenate((begins[begins < self.first_recent], recent))
        return steps

    def in_units_of(self, unit: float) -> "Series":
        """The same values, counted in this many of their own unit: GiB, for bytes and ``2**30``."""
        if unit == 1.0:
            return self
        return replace(
            self,
            minimum=self.minimum / unit,
            maximum=self.maximum / unit,
            mean=self.mean / unit,
            recent=self.recent / unit,
        )


def _reading(first: int, last: int, values: tuple[float, float, float], nonfinite: int) -> Reading:
    mean, low, high = (value if value == value else None for value in values)  # noqa: PLR0124 - not NaN
    return Reading(first, last, np.nan if mean is None and nonfinite else mean, low, high, nonfinite)


_NONE = np.empty(0)
EMPTY_SERIES = Series(1, 0, 1, _NONE, _NONE, _NONE, np.empty(0, np.int64), _NONE, np.empty(0, np.bool_))


MetricKind = Literal["part", "validation", "own validation", "step", "device", "update"]
"""Where a metric comes from: a part of the loss or whatever a script logs, a validation's loss and accuracy,
an experiment's own metrics, a column of the steps, a sample of the training GPU, a layer's update."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A logged value that is no field of the view."""

    kind: MetricKind
    name: str
    """As the user named it, or the field of the record."""
    read: Callable[[], Series]
    """Its values so far. A run may log hundreds, of which a screen shows a few."""


@dataclass(frozen=True, slots=True)
class PrecisionSwitch:
    """From ``step`` on, steps ran in ``precision``; the run's first step has one too."""

    step: int
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionStats:
    """Statistics of one precision in this run, without warm-up and skipped steps, which are only counted.

    Until three steps are counted, times and loss are those of warm-up steps: ``provisional_steps`` says so.
    """

    precision: str
    steps: int
    """Steps counted."""
    warm_up_steps: int
    """Steps left out."""
    median_step_seconds: float | None
    """Over the last 2,048 counted steps at most."""
    samples_per_second: float | None
    """Over the same steps: their samples by their seconds."""
    peak_allocated_bytes: int | None
    last_loss: float | None
    skipped: int
    data_fraction: float | None = None
    """The fraction of the steps' time in which the loop waited for batches."""
    utilization_percent: float | None = None
    """The training GPU's mean utilization while this precision ran, by NVML."""
    joules_per_1000_samples: float | None = None
    """The training GPU's energy by NVML's counter, over samples with only this precision's steps after
    warm-up; None until they cover 10 s."""
    provisional_steps: int = 0
    """The number of timed warm-up steps behind median and rate while too few are counted; else 0."""
    mean_step_seconds: float | None = None
    """Over the steps of the median; of warm-up steps, whose first is slow, the median itself."""
    untimed_steps: int = 0
    """Steps after the warm-up that do not count, since they were not timed."""

    @property
    def steps_made(self) -> int:
        """All steps in this precision, whether they count or not."""
        return self.steps + self.warm_up_steps + self.untimed_steps

    @property
    def measured_steps(self) -> int:
        """The steps behind median and rate, whichever they are."""
        return self.provisional_steps or self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The precisions of this run side by side, and what the lower one of two gained, once that is known."""

    rows: tuple[PrecisionStats, ...] = ()
    baseline: str | None = None
    """What ``low`` is judged against; None if none of those precisions ran."""
    low: str | None = None
    """The AMP precision or FP8 in question, which may have no row yet; None if no AMP ran."""
    missing: Literal["", "steps", "low", "baseline", "more steps", "steady steps"] = ""
    """Why there is no speed-up to show: no steps at all, none on one side, too few, or such that were
    disturbed so much that median and mean disagree."""
    speedup: float | None = None
    """The baseline's mean step time over that of ``low``: above 1, ``low`` is faster. Only A/B runs have
    intervals."""
    memory_saving: float | None = None
    """The fraction of the baseline's peak allocated memory that ``low`` saved; negative if it needed more."""
    provisional_speedup: float | None = None
    """The same while there are too few counted steps, from three at least: only a first impression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionTiming:
    """Where the time of one precision's steps goes, over timed steps after warm-up."""

    precision: str
    steps: int
    """How many were timed."""
    phases: tuple[PhaseSeconds, ...]
    """The median of each."""
    utilization_percent: float | None = None
    """The training GPU's, by NVML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionFlops:
    """What one precision's steps compute, and how fast."""

    counted: FlopsCounted
    on_gpu: bool
    flops_per_second: float | None
    """By the samples a second after warm-up; None while there are none, or if shapes vary."""
    peak_flops_per_second: float | None
    """The GPU's dense peak for that kind of number; None where it is not known."""
    ranks: int = 1
    """How many train together; the operations are those of rank 0, and the peak that of one GPU."""

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: achieved by peak, as a fraction of one."""
        if self.flops_per_second is None or not self.peak_flops_per_second:
            return None
        return self.flops_per_second / self.peak_flops_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsView:
    """How the gradients fit into float16, as of the newest measurement of each kind."""

    grad_norm: float | None = None
    """Unscaled, before clipping; NaN or Inf if a gradient is."""
    grad_max: float | None = None
    nonfinite_gradients: int | None = None
    measured_step: int | None = None
    """The step of the three above."""
    headroom: float | None = None
    """log2(65504 / largest absolute scaled gradient), in doublings; negative is an overflow, NaN and Inf
    among the gradients are -inf."""
    headroom_scale: float | None = None
    """The loss scale it was computed at: the step's own, or the one that float16 would use."""
    hypothetical: bool = False
    """Whether the newest headroom is of a step that did not run in float16."""
    min_headroom: float | None = None
    """The minimum of the last 256 measured, each converted to the newest scale; -inf if any overflowed."""
    headrooms: Series = EMPTY_SERIES
    """One value per step, most of them not measured; each at the scale of its step."""
    scaler: Finding = field(default_factory=lambda: judge_scaler(ScalerView()))
    """What the loss scaler did; old once another precision runs."""
    window: Float16Window | None = None
    trace: ModulesTraced | None = None
    bad_batch: ModulesTraced | None = None
    """The newest trace of a step whose inputs held NaN or Inf."""
    xray: XRayTaken | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerView:
    """One of several optimizers in short: its newest numbers."""

    name: str
    """As in its records; empty for the run's first."""
    label: str
    """What a screen calls it."""
    kind: str = ""
    """The class of the optimizer; empty where no record told it."""
    step: int = 0
    """Its own newest step."""
    precision: str | None = None
    loss: float | None = None
    """The newest measured one; None if the newest step has none for a reason."""
    smoothed_loss: float | None = None
    best_loss: float | None = None
    loss_form: LossForm = ""
    """Of its newest step."""
    micro_batches: int = 1
    """Backward passes of its newest step."""
    lr: float | None = None
    grad_norm: float | None = None
    """The newest measured one."""
    skipped: int = 0
    """Steps that the scaler dropped."""
    step_seconds: float | None = None
    is_front: bool = False
    """Whether the other numbers of the view are of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run's records say by themselves, whichever optimizer is in front."""

    state: Literal["starting", "running", "paused", "finished", "failed"] = "starting"
    phase: PhaseChanged | None = None
    """What the run is doing when no step runs; None or ``training`` while steps run."""
    run: RunStarted | None = None
    pause_reason: str = ""
    """Why the trainer paused by itself; empty while it runs or if a person paused it."""
    pause_cause: PauseCause = ""
    outcome: RunFinished | RunFailed | None = None
    validated: EpochFinished | Validated | None = None
    """The newest record with a validation."""
    compared: PrecisionsCompared | None = None
    """The newest A/B comparison of precisions: its progress or its result."""
    device: DeviceSample | None = None
    allocator: AllocatorSample | None = None
    """The newest sample of torch's allocator, if there is one."""
    checkpoint: CheckpointWritten | None = None
    """The newest complete one; checkpoints never contain lost weights."""
    weights: WeightsSaved | None = None
    """Where the run saved its weights at its end."""
    not_kept: tuple[KeepingChanged, ...] = ()
    """What is currently not saved, each part with the newest word on it."""
    pending: tuple[RequestMade, ...] = ()
    """Requests without an answer yet, the oldest first."""
    answers: tuple[Answer, ...] = ()
    """The newest 64, the newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView(RunFacts):
    """Everything known about a run at one moment."""

    run_dir: str = ""
    step: int = 0
    step_seconds: float | None = None
    """Mean over the last 50 measured steps in any precision, hiccups included."""
    optimizers: tuple[OptimizerView, ...] = ()
    """All of a run with several, in the order in which they came; empty for a single one."""
    events: tuple[Event, ...] = ()
    """Newest first; the newest 800."""
    printed: tuple[Event, ...] = ()
    """Lines that the run's process printed, oldest first; the newest 300."""
    precision: str | None = None
    """The precision confirmed by the engine."""
    epoch: int = 0
    elapsed_seconds: float | None = None
    """From the run's start to its newest record, without the time in which none of its processes ran."""
    eta_seconds: float | None = None
    last: Steps | None = None
    """The newest step with a measured loss."""
    newest: Steps | None = None
    """The newest step, whose loss may be unknown."""
    front: str = ""
    """The optimizer whose steps these numbers are of; empty for the run's first."""
    optimizers_left_out: bool = False
    """Whether there are more than are kept."""
    smoothed_loss: float | None = None
    """Exponential moving average of the finite losses."""
    best_loss: float | None = None
    best_loss_step: int | None = None
    samples_per_second: float | None = None
    """Over the steps of ``step_seconds``."""
    loss: Series = EMPTY_SERIES
    samples_rate: Series = EMPTY_SERIES
    """Samples per second, one value per applied step; means are samples by seconds."""
    loss_scale: Series = EMPTY_SERIES
    skips: Series = EMPTY_SERIES
    """1 for a skipped step, 0 for an applied one: ``maximum`` shows which buckets contain a skip."""
    metrics: tuple[Metric, ...] = ()
    """Everything else that was logged, by kind."""
    metrics_left_out: bool = False
    """Whether there are more than are kept."""
    switches: tuple[PrecisionSwitch, ...] = ()
    """The stretches of the run; the newest thousand."""
    comparison: Comparison = field(default_factory=Comparison)
    timings: tuple[PrecisionTiming, ...] = ()
    """In the order of ``PRECISION_ORDER``."""
    flops: tuple[PrecisionFlops, ...] = ()
    """In the same order."""
    memory: tuple[MemoryBreakdown, ...] = ()
    """The newest of each precision, in the same order."""
    scaler: ScalerView = field(default_factory=ScalerView)
    numerics: NumericsView = field(default_factory=NumericsView)
    ranks: RanksView | None = None
    """None for a single process."""
    warnings: int = 0
    errors: int = 0
    unmeasured_steps: int = 0
    """Steps whose numbers never reached the host because the readback ring was full. A step that has no loss
    for a reason is not one of them."""
    dropped: GradientsDropped | None = None
    """The newest gradients that no step used and whose loss was NaN or Inf."""
    bad_buffers: NonFinite | None = None
    """The newest buffers that were found to hold NaN or Inf."""

    @property
    def folder_name(self) -> str:
        """The last part of ``run_dir``; empty if there is none."""
        folder = Path(self.run_dir)
        return (folder.name or folder.absolute().name) if self.run_dir else ""

    @property
    def pause_findings(self) -> list[Finding]:
        """The way back from a pause that nobody asked for, or its cause, and what a trace found."""
        scaler, trace, saved = self.numerics.scaler, self.numerics.trace, self.checkpoint
        causes = [] if trace is None else [judge_trace(trace)]
        if self.pause_cause == "weights":
            state, name = ("no checkpoint", "") if saved is None else ("checkpoint", saved.name)
            pause = Finding(subject="pause", state=state, grade="error", names={"place": name})
            # That weights are lost the pause itself says.
            return [pause, *(cause for cause in causes if cause.state != "weights lost")]
        return [scaler, *causes] if scaler.freshness == "fresh" else causes

    @property
    def accepts(self) -> frozenset[RequestKind]:
        """The kinds of request that the run takes, as far as it has said; none after its end."""
        if self.outcome is not None:
            return frozenset()
        return REQUEST_KINDS if self.run is None else REQUEST_KINDS.difference(self.run.refuses)

    @property
    def world_size(self) -> int:
        """How many ranks train together; 1 before that is known."""
        return 1 if self.run is None else self.run.world_size

    @property
    def rank_samples_per_second(self) -> float | None:
        """What each rank takes of the samples of all; those of a tensor-parallel group take the same ones."""
        if self.ranks is None or self.samples_per_second is None:
            return None
        groups = None if self.run is None else self.run.data_parallel
        return self.samples_per_second / (groups or self.ranks.world_size)

    @property
    def training_gpu(self) -> GpuSample | None:
        """The GPU that trains, as last sampled by NVML; None if unknown."""
        return training_gpu(self.run, self.device)


def training_gpu(run: RunStarted | None, sample: DeviceSample | None) -> GpuSample | None:
    """What a sample says of the GPU, or the MIG instance of one, that trains; None if unknown.

    torch writes ``GPU-`` before a MIG instance's UUID and NVML ``MIG-``: only the rest is compared.
    """
    if run is None or run.gpu_uuid is None or sample is None:
        return None
    trains = run.gpu_uuid.partition("-")[2]
    return next((gpu for gpu in sample.gpus if gpu.uuid.partition("-")[2] == trains), None)


EMPTY_VIEW = SessionView()
