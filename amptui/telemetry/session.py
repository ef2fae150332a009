"""Everything known about a run: folds records into histories, statistics and events, and provides a view."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import islice
from typing import Any, Literal

from amptui import answers, findings, ranks, records, samples
from amptui.codec import Codec
from amptui.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.strictjson import JsonError
from amptui.telemetry import flops
from amptui.telemetry.comparison import PrecisionLedger
from amptui.telemetry.eventlog import EventLog
from amptui.telemetry.events import ComparisonOver, Resumption, summary_of_xray
from amptui.telemetry.gpu_use import INTERRUPTIONS, EnergyWatch, UtilizationWatch
from amptui.telemetry.numerics import FIRST_SCALE, NumericsWatch, headrooms
from amptui.telemetry.pace import EpochPlace, Pace, RunningTime
from amptui.telemetry.rank_watch import RankRecord, RankWatch
from amptui.telemetry.scaler import ScalerWatch
from amptui.telemetry.status import Keeping, Kept, RequestWatch, as_resumed
from amptui.telemetry.stretch import stretches
from amptui.telemetry.timing import TimingWatch
from amptui.telemetry.tracks import LossSummary, SwitchList, Tracks
from amptui.telemetry.view import SessionView

STATE_VERSION = 3
"""To be raised when the meaning of a field of the state changes but not its name."""

_OTHER_VERSION = "the run was started by another version of amptui; attach with that version"

MAX_AT_ONCE = 4096
"""Records folded per lock: a view can be taken while a long journal is read."""

_BETWEEN_STEPS = (
    *(records.RunStarted, records.RunResumed, records.PrecisionChanged),
    *(records.LossScaleChanged, samples.DeviceSample),
)


@dataclass(slots=True, eq=False)
class Session:
    """Folds records as they arrive and provides a view of the result. Thread-safe.

    Records may arrive late, twice or from the middle of a run: those that do not fit are left out, and no
    value of a record raises. ``run_dir`` is the run's folder, for the view.
    """

    _run_dir: str = ""
    _state: Literal["starting", "running", "paused", "finished", "failed"] = "starting"
    _run: records.RunStarted | None = None
    _phase: records.PhaseChanged | None = None
    _outcome: records.RunFinished | records.RunFailed | None = None
    _running_time: RunningTime = field(default_factory=RunningTime)
    _keeping: Keeping = field(default_factory=Keeping)
    _epoch: EpochPlace = field(default_factory=EpochPlace)
    _last: records.StepRecord | None = None
    _validated: records.EpochFinished | records.Validated | None = None
    _device: samples.DeviceSample | None = None
    _allocator: samples.AllocatorSample | None = None
    _pending: list[records.StepRecord] = field(default_factory=list)
    _pause: records.PauseChanged | None = None
    _compared: findings.PrecisionsCompared | None = None
    _samples_trained: int = 0
    _tracks: Tracks = field(default_factory=Tracks)
    _losses: LossSummary = field(default_factory=LossSummary)
    _pace: Pace = field(default_factory=Pace)
    _ledger: PrecisionLedger = field(default_factory=PrecisionLedger)
    _utilization: UtilizationWatch = field(default_factory=UtilizationWatch)
    _energy: EnergyWatch = field(default_factory=EnergyWatch)
    _timing: TimingWatch = field(default_factory=TimingWatch)
    _flops: flops.FlopsWatch = field(default_factory=flops.FlopsWatch)
    _scaler: ScalerWatch = field(default_factory=ScalerWatch)
    _numerics: NumericsWatch = field(default_factory=NumericsWatch)
    _memory: dict[str, findings.MemoryBreakdown] = field(default_factory=dict)
    """The newest of each precision."""
    _ranks: RankWatch = field(default_factory=RankWatch)
    _switches: SwitchList = field(default_factory=SwitchList)
    _requests: RequestWatch = field(default_factory=RequestWatch)
    _log: EventLog = field(default_factory=EventLog)
    _view: SessionView | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def fold(self, told: Iterable[records.Record]) -> None:
        """Add records, in the order in which they were emitted."""
        iterator = iter(told)
        while batch := list(islice(iterator, MAX_AT_ONCE)):
            with self._lock:
                self._fold_batch(batch)

    def view(self) -> SessionView:
        """The current view; the same object until something new is folded."""
        with self._lock:
            if self._view is None:
                self._view = self._compose()
            return self._view

    def state(self) -> str:
        """The whole state as one line of JSON, for :meth:`restore`."""
        with self._lock:
            return f'{{"version":{STATE_VERSION},"session":{_codec().dumps(self)}}}'

    def restore(self, state: Any) -> None:
        """Replace the state with the parsed JSON of :meth:`state`.

        The state's run folder wins if it has one. Raises ``ValueError`` if it is not a state of this version;
        this session is then unchanged.
        """
        if not isinstance(state, dict) or "version" not in state:
            raise JsonError("not the state of a run")
        if state["version"] != STATE_VERSION:
            raise JsonError(_OTHER_VERSION)
        try:
            told = _codec().read(state.get("session"))
            told._compose()
        except Exception as error:  # a number out of place may do anything
            raise JsonError(f"{_OTHER_VERSION} ({error})") from error
        self.adopt(told)

    def adopt(self, other: "Session") -> None:
        """Replace the state with that of ``other``, which must not be used afterwards.

        The other's run folder wins if it has one.
        """
        run_dir = other._run_dir or self._run_dir
        with self._lock:
            for name in [each.name for each in fields(self) if each.init]:
                setattr(self, name, getattr(other, name))
            self._run_dir, self._view = run_dir, None

    def _fold_batch(self, batch: Sequence[records.Record]) -> None:
        self._view = None
        for record in batch:
            if isinstance(record, records.StepRecord):
                self._running_time.see(record.time, record.step_seconds)
                self._pending.append(record)
                continue
            # These separate the steps before them from those after them. All other records name their step,
            # so the steps around them are folded in one piece. The changed scale is the one that float16
            # would use from then on; a device sample counts the samples trained before it.
            if isinstance(record, _BETWEEN_STEPS):
                self._fold_pending()
            if isinstance(record, INTERRUPTIONS):
                self._energy.interrupt()
            self._running_time.take(record)
            _FOLDS[type(record)](self, record)
        self._fold_pending()

    def _fold_pending(self) -> None:
        steps, self._pending = self._pending, []
        if not steps:
            return
        if self._state == "starting":
            self._state = "running"
        for stretch in stretches(steps):
            self._ledger.add(stretch)
            self._scaler.add(stretch)
            self._samples_trained += sum(record.samples for record in stretch.records)
            if stretch.settling:
                self._energy.interrupt()
            rewinds = stretch.first_step <= self._tracks.last_step
            scale = self._scaler.scale
            if scale is None or scale < records.MIN_SOUND_SCALE:
                scale = FIRST_SCALE
            rooms = headrooms(stretch, scale)
            if self._tracks.add(stretch, rooms):
                self._numerics.add(stretch, rooms, scale)
                if rewinds:
                    self._switches.switch(stretch.first_step, stretch.precision)
                else:
                    self._switches.observe(stretch.first_step, stretch.precision)
                self._losses.add(stretch)
                self._pace.add(stretch)
                self._epoch.add(stretch, self._run.steps_per_epoch if self._run else None)
        self._last = next((record for record in reversed(steps) if record.loss is not None), self._last)

    def _start(self, record: records.RunStarted) -> None:
        self._run, self._scaler.growth_interval = record, record.growth_interval
        self._begin()
        self._log.add(record)

    def _begin(self) -> None:
        """A process starts to train, however the one before it ended."""
        self._state, self._outcome, self._pause = "running", None, None
        self._requests.drop_pending()
        if self._compared is not None and not self._compared.over:
            self._compared = None
        self._tracks.expect_resume()
        self._ranks.restart()

    def _change_phase(self, record: records.PhaseChanged) -> None:
        self._phase = record

    def _sample_device(self, record: samples.DeviceSample) -> None:
        self._device = record
        if record.allocator is not None:
            self._allocator = record.allocator
            self._ledger.add_peak(record.allocator.precision, record.allocator.peak_allocated_bytes)
        training = self._state == "running" and (self._phase is None or self._phase.phase == "training")
        found = self._utilization.add(record, self._run, training=training)
        if found is not None:
            self._ledger.add_utilization(*found)
        spent = self._energy.add(record, self._run, training=training, samples_trained=self._samples_trained)
        if spent is not None:
            self._ledger.add_energy(spent)

    def _change_precision(self, record: records.PrecisionChanged) -> None:
        self._switches.switch(record.step, record.current)
        if self._compared is None or self._compared.over or self._outcome is not None:
            self._log.add(record)

    def _change_loss_scale(self, record: records.LossScaleChanged) -> None:
        self._scaler.add_change(record)
        self._log.add_scale_change(record, self._scaler.growth_interval)

    def _skip(self, record: records.StepSkipped) -> None:
        self._scaler.add_skip(record)
        self._log.add_skip(record)

    def _trace(self, record: findings.ModulesTraced) -> None:
        self._numerics.add_trace(record)
        self._log.add_trace(record)

    def _take_xray(self, record: findings.XRayTaken) -> None:
        self._numerics.add_xray(record)
        self._log.add(summary_of_xray(record))

    def _compare(self, record: findings.PrecisionsCompared) -> None:
        self._compared = record
        if record.over:
            self._log.add(ComparisonOver(record=record, run=self._run))

    def _find_nonfinite(self, record: records.NonFinite) -> None:
        pending = self._pending[-1].precision if self._pending else None
        precision = self._switches.at(record.step) or self._precision() or pending
        self._log.add_nonfinite(record, precision)

    def _take_ranks(self, record: RankRecord) -> None:
        if (news := self._ranks.take(record)) is not None:
            self._log.add(news)

    def _validate(self, record: records.EpochFinished | records.Validated) -> None:
        if record.validation is not None:
            self._validated = record
        self._log.add(record)

    def _change_pause(self, record: records.PauseChanged) -> None:
        if self._outcome is None:
            self._state = "paused" if record.paused else "running"
            self._pause = record if record.paused else None
        self._log.add(record)

    def _keep(self, record: Kept) -> None:
        self._keeping.add(record)
        self._log.add(record)

    def _resume(self, record: records.RunResumed) -> None:
        """Another process continues after a step, perhaps on another device; later steps no longer count."""
        before = self._run.device_name if self._run is not None else record.device_name
        self._begin()
        if self._run is not None:
            self._run = as_resumed(self._run, record)
        self._phase, self._pace, self._utilization = None, Pace(), UtilizationWatch()
        self._keeping.resume_after(record.step)
        self._forget_steps_after(record.step)
        self._switches.switch(record.step + 1, record.precision)
        if record.device_name != before:
            # Seconds, bytes and joules of two devices do not compare.
            self._ledger, self._timing, self._memory = PrecisionLedger(), TimingWatch(), {}
            self._flops, self._compared = flops.FlopsWatch(), None
        self._log.add(Resumption(record=record, device_before=before))

    def _forget_steps_after(self, step: int) -> None:
        self._tracks.rewind(step + 1)
        self._scaler.rewind(step + 1)
        if self._last is not None and self._last.step > step:
            self._last = None
        if self._validated is not None and self._validated.step > step:
            self._validated = None

    def _end(self, record: records.RunFinished | records.RunFailed) -> None:
        self._outcome, self._pause = record, None
        self._state = "finished" if isinstance(record, records.RunFinished) else "failed"
        self._log.add(record)

    def _precision(self) -> str | None:
        """The precision last confirmed by the engine."""
        return self._switches.current or (self._run.precision if self._run else None)

    def _eta_seconds(self) -> float | None:
        total_steps = self._run.total_steps if self._run and self._state == "running" else None
        return None if total_steps is None else self._pace.eta_seconds(total_steps - self._tracks.last_step)

    def _compose(self) -> SessionView:
        step = self._tracks.last_step
        return SessionView(
            state=self._state,
            phase=self._phase,
            run=self._run,
            precision=self._precision(),
            step=step,
            epoch=self._epoch.number,
            epoch_step=self._epoch.steps_done(step),
            elapsed_seconds=self._running_time.seconds if self._run else None,
            eta_seconds=self._eta_seconds(),
            last=self._last,
            smoothed_loss=self._losses.smoothed,
            best_loss=self._losses.best,
            best_loss_step=self._losses.best_step,
            validated=self._validated,
            step_seconds=self._pace.step_seconds,
            samples_per_second=self._pace.samples_per_second,
            loss=self._tracks.loss,
            samples_rate=self._tracks.samples_rate,
            loss_scale=self._tracks.loss_scale,
            skips=self._tracks.skips,
            switches=self._switches.switches,
            comparison=self._ledger.comparison(),
            compared=self._compared,
            memory=tuple(self._memory[name] for name in records.PRECISIONS if name in self._memory),
            timings=self._timing.timings(self._ledger.comparison()),
            flops=self._flops.flops(self._ledger, self._run),
            scaler=self._scaler.view(),
            numerics=self._numerics.view(self._scaler, self._tracks.headrooms, self._precision()),
            pause_reason="" if self._pause is None else self._pause.reason,
            pause_cause="" if self._pause is None else self._pause.cause,
            device=self._device,
            ranks=self._ranks.view(self._run.world_size if self._run else 1),
            allocator=self._allocator,
            events=self._log.events(),
            warnings=self._log.warnings,
            errors=self._log.errors,
            unmeasured_steps=self._losses.unmeasured_steps,
            run_dir=self._run_dir,
            checkpoint=self._keeping.checkpoint,
            weights=self._keeping.weights,
            not_kept=self._keeping.not_kept,
            viewers=self._keeping.viewers,
            pending=self._requests.pending if self._outcome is None else (),
            answers=self._requests.answers,
            outcome=self._outcome,
        )


_FOLDS: Mapping[type[Any], Callable[[Session, Any], None]] = {
    records.RunStarted: Session._start,
    records.PhaseChanged: Session._change_phase,
    samples.DeviceSample: Session._sample_device,
    ranks.RanksStarted: Session._take_ranks,
    ranks.RanksSampled: Session._take_ranks,
    ranks.RanksDisagree: Session._take_ranks,
    ranks.RanksOverflowed: lambda session, record: session._log.add_overflow(record),
    ranks.RankLost: Session._take_ranks,
    records.PrecisionChanged: Session._change_precision,
    records.BlockFinished: lambda session, record: session._ledger.add_peak(
        record.precision, record.peak_allocated_bytes
    ),
    records.LossScaleChanged: Session._change_loss_scale,
    records.StepSkipped: Session._skip,
    findings.Float16Window: lambda session, record: session._numerics.add_window(record),
    findings.ModulesTraced: Session._trace,
    findings.XRayTaken: Session._take_xray,
    findings.PrecisionsCompared: Session._compare,
    findings.StepTimed: lambda session, record: session._timing.add(record),
    findings.ModelCompiled: lambda session, record: session._log.add(record),
    findings.MemoryBreakdown: lambda session, record: session._memory.update({record.precision: record}),
    findings.FlopsCounted: lambda session, record: session._flops.add(record),
    records.NonFinite: Session._find_nonfinite,
    records.EpochFinished: Session._validate,
    records.Validated: Session._validate,
    records.PauseChanged: Session._change_pause,
    records.Note: lambda session, record: session._log.add(record),
    records.Printed: lambda session, record: session._log.add(record),
    CheckpointWritten: Session._keep,
    WeightsSaved: Session._keep,
    records.RunResumed: Session._resume,
    KeepingChanged: Session._keep,
    ViewersChanged: Session._keep,
    answers.RequestMade: lambda session, record: session._requests.make(record),
    answers.RequestTaken: lambda session, record: session._requests.answer(record),
    answers.RequestRefused: lambda session, record: session._requests.answer(record),
    records.RunFinished: Session._end,
    records.RunFailed: Session._end,
}


@cache
def _codec() -> Codec[Session]:
    return Codec(Session, exact=True)
