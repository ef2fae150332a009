"""Everything known about a run: folds records into histories, statistics and events, and provides a view."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from amptui.base.strictjson import JsonError
from amptui.records import answers, findings, ranks, samples
from amptui.records import run as records
from amptui.records.answers import Answer, RequestMade
from amptui.records.codec import Codec
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.steps import StepRecord, Steps, in_batches
from amptui.telemetry.eventlog import EventLog
from amptui.telemetry.events import ComparisonOver, Resumption, summary_of_xray
from amptui.telemetry.gpu_use import INTERRUPTIONS
from amptui.telemetry.optimizer_steps import OptimizerSteps
from amptui.telemetry.optimizers import FIRST, Optimizers
from amptui.telemetry.pace import RunningTime
from amptui.telemetry.rank_watch import RankRecord, RankWatch
from amptui.telemetry.underflow import UnderflowFound, UnderflowWatch
from amptui.telemetry.view import RunStatus, SessionView

_OTHER_VERSION = "the run was started by another version of amptui; attach with that version"

_OfOptimizer = (
    records.PrecisionChanged
    | records.LossScaleChanged
    | records.StepSkipped
    | records.NonFinite
    | findings.UpdatesMeasured
    | OptimizerFollowed
    | GradientsDropped
)

_BETWEEN_STEPS = (
    *(records.RunStarted, records.RunResumed, records.PrecisionChanged),
    *(records.LossScaleChanged, samples.DeviceSample),
)


MAX_KEPT = 64

Kept = CheckpointWritten | WeightsSaved | KeepingChanged | ViewersChanged


@dataclass(slots=True, eq=False)
class RequestWatch:
    """Matches requests with their answers by number, in whatever order they arrive."""

    pending: tuple[RequestMade, ...] = ()
    """The oldest first; the newest ``MAX_KEPT``."""
    answers: tuple[Answer, ...] = ()
    """The same."""

    def make(self, record: RequestMade) -> None:
        """Add a request; a screen knows its own before the run reports it."""
        numbers = {request.number for request in self.pending} | {
            answer.request.number for answer in self.answers
        }
        if record.number not in numbers:
            self.pending = (*self.pending, record)[-MAX_KEPT:]

    def answer(self, record: Answer) -> None:
        """Add an answer."""
        self.pending = tuple(request for request in self.pending if request.number != record.request.number)
        self.answers = (*self.answers, record)[-MAX_KEPT:]

    def drop_pending(self) -> None:
        """Forget the pending requests: nobody is left to answer them."""
        self.pending = ()


@dataclass(slots=True, eq=False)
class Keeping:
    """The newest checkpoint, the weights, what is currently not saved, and the number of screens."""

    checkpoint: CheckpointWritten | None = None
    weights: WeightsSaved | None = None
    not_kept: tuple[KeepingChanged, ...] = ()
    viewers: int = 0

    def add(self, record: Kept) -> None:
        """Something was saved, is no longer saved or is saved again; or a screen attached or detached."""
        if isinstance(record, CheckpointWritten):
            self.checkpoint = record
        elif isinstance(record, WeightsSaved):
            self.weights = record
        elif isinstance(record, ViewersChanged):
            self.viewers = record.viewers
        else:
            others = tuple(change for change in self.not_kept if change.what != record.what)
            self.not_kept = (*others, record) if record.trouble else others

    def resume_after(self, step: int) -> None:
        """Another process continues after ``step``: no save has failed yet, and nobody watches."""
        self.weights, self.not_kept, self.viewers = None, (), 0
        if self.checkpoint is not None and self.checkpoint.step > step:
            self.checkpoint = None


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
    _validated: records.EpochFinished | records.Validated | None = None
    _device: samples.DeviceSample | None = None
    _allocator: samples.AllocatorSample | None = None
    _pending: list[Steps] = field(default_factory=list, init=False)
    _pause: records.PauseChanged | None = None
    _compared: findings.PrecisionsCompared | None = None
    _optimizers: Optimizers = field(default_factory=Optimizers)
    _ranks: RankWatch = field(default_factory=RankWatch)
    _requests: RequestWatch = field(default_factory=RequestWatch)
    _underflow: UnderflowWatch = field(default_factory=UnderflowWatch)
    _log: EventLog = field(default_factory=EventLog)
    _views: dict[str, SessionView] = field(default_factory=dict, init=False)
    """By the optimizer in front."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def fold(self, new_records: Iterable[records.Record]) -> None:
        """Add records, in the order in which they were emitted."""
        # One lock for each batch: a view can be taken while a long journal is read.
        for batch in in_batches(new_records):
            with self._lock:
                self._fold_batch(batch)

    def view(self, front: str | None = None) -> SessionView:
        """The current view; the same object until something new is folded.

        ``front`` is the optimizer whose steps it shows; None, or a name that is not known, shows the one that
        makes steps: the first, unless that has long made none.
        """
        with self._lock:
            name = self._optimizers.front(front)
            if name not in self._views:
                self._views[name] = self._compose(name)
            return self._views[name]

    def status(self) -> RunStatus:
        """What :meth:`view` says of the run's state and events, without the cost of its curves."""
        with self._lock:
            return self._status(self._optimizers.front(None))

    def state(self) -> str:
        """The whole state as one line of JSON, for :meth:`restore`."""
        with self._lock:
            for steps in self._optimizers:
                steps.tracks.settle()
                steps.metrics.settle()
            return f'{{"version":{records.FORM},"session":{_codec().dumps(self)}}}'

    def restore(self, state: Any, *, host: str = "") -> None:
        """Replace the state with the parsed JSON of :meth:`state`; ``host`` is the machine it comes from.

        The state's run folder wins if it has one; of another machine it is ``HOST:FOLDER``. Raises
        ``ValueError`` if it is not a state of this version; this session is then unchanged.
        """
        if not isinstance(state, dict) or "version" not in state:
            raise JsonError("not the state of a run")
        if state["version"] != records.FORM:
            raise JsonError(_OTHER_VERSION)
        try:
            session = _codec().read(state.get("session"))
            session.view()
        except Exception as error:  # a number out of place may do anything
            raise JsonError(f"{_OTHER_VERSION} ({error})") from error
        if host and session._run_dir:
            session._run_dir = f"{host}:{session._run_dir}"
        self.adopt(session)

    def adopt(self, other: "Session") -> None:
        """Replace the state with that of ``other``, which must not be used afterwards.

        The other's run folder wins if it has one.
        """
        run_dir = other._run_dir or self._run_dir
        with self._lock:
            for name in [attribute.name for attribute in fields(self) if attribute.init]:
                setattr(self, name, getattr(other, name))
            self._run_dir = run_dir
            self._views.clear()

    def _fold_batch(self, batch: Sequence[records.Record]) -> None:
        self._views.clear()
        for item in batch:
            record = Steps.of(item) if isinstance(item, StepRecord) else item
            if isinstance(record, Steps):
                self._running_time.see_steps(record)
                self._pending.append(record)
                continue
            # These separate the steps before them from those after them. All other records name their step,
            # so the steps around them are folded in one piece. The changed scale is the one that float16
            # would use from then on; a device sample counts the samples trained before it.
            if isinstance(record, _BETWEEN_STEPS):
                self._fold_pending()
            if isinstance(record, INTERRUPTIONS):
                for steps in self._optimizers:
                    steps.energy.interrupt()
            self._running_time.take(record)
            _FOLDS[type(record)](self, record)
        self._fold_pending()

    def _fold_pending(self) -> None:
        steps, self._pending = self._pending, []
        if not steps:
            return
        if self._state == "starting":
            self._state = "running"
        self._optimizers.add(steps, self._run.steps_per_epoch if self._run else None)

    def _start(self, record: records.RunStarted) -> None:
        if self._run is not None:  # what is asked of a first process before it trains, it answers
            self._requests.drop_pending()
        self._run = record
        self._optimizers.set_growth_interval(record.growth_interval)
        self._begin()
        self._log.add(record)

    def _begin(self) -> None:
        """A process starts to train, however the one before it ended."""
        self._state, self._outcome, self._pause = "running", None, None
        if self._compared is not None and not self._compared.over:
            self._compared = None
        for steps in self._optimizers:
            steps.tracks.expect_resume()
        self._ranks.restart()

    def _change_phase(self, record: records.PhaseChanged) -> None:
        self._phase = record

    def _sample_device(self, record: samples.DeviceSample) -> None:
        self._device = record
        if record.allocator is not None:
            self._allocator = record.allocator
        first = self._optimizers.first
        first.metrics.add_sample(record, self._run, first.tracks.last_step)
        training = self._state == "running" and (self._phase is None or self._phase.phase == "training")
        precision = "" if record.allocator is None else record.allocator.precision
        attributed = self._optimizers.training(precision)
        for steps in self._optimizers:
            if steps in attributed:
                steps.add_sample(record, self._run, training=training)
            else:
                steps.skip_sample()

    def _change_precision(self, record: records.PrecisionChanged) -> None:
        if (steps := self._steps_of(record)) is None:
            return
        steps.switches.switch(record.step, record.current)
        if self._compared is None or self._compared.over or self._outcome is not None:
            self._log.add(record)

    def _change_loss_scale(self, record: records.LossScaleChanged) -> None:
        if (steps := self._steps_of(record)) is not None:
            steps.scaler.add_change(record)
            self._log.add_scale_change(record, steps.scaler.growth_interval)

    def _skip(self, record: records.StepSkipped) -> None:
        if (steps := self._steps_of(record)) is not None:
            steps.scaler.add_skip(record)
            self._log.add_skip(record)

    def _steps_of(self, record: _OfOptimizer) -> OptimizerSteps | None:
        """Those of the record's optimizer, which may be new; None if there are too many."""
        return self._optimizers.of(record.optimizer)

    def _follow_optimizer(self, record: OptimizerFollowed) -> None:
        if (steps := self._steps_of(record)) is not None:
            steps.followed = record
            self._name_first()
            self._log.add(record)

    def _name_first(self) -> None:
        """From now on events of the first optimizer name it, if there are others."""
        if self._optimizers.are_several:
            self._log.first_optimizer = self._optimizers.label(FIRST, self._run)

    def _drop_gradients(self, record: GradientsDropped) -> None:
        if (steps := self._steps_of(record)) is not None:
            if record.loss is not None and not math.isfinite(record.loss):
                steps.dropped = record
            self._log.add(record)

    def _add_window(self, record: findings.Float16Window) -> None:
        self._optimizers.first.numerics.add_window(record)
        self._tell_underflow(self._underflow.see_window(record))

    def _add_updates(self, record: findings.UpdatesMeasured) -> None:
        if (steps := self._steps_of(record)) is not None:
            steps.metrics.add_updates(record)

    def _tell_underflow(self, underflow: UnderflowFound | None) -> None:
        """Before float16 it is told only where ``p`` would switch to that."""
        foretells = self._run is not None and self._run.amp_precision == "fp16"
        if underflow is not None and (foretells or not underflow.hypothetical):
            self._log.add(underflow)

    def _trace(self, record: findings.ModulesTraced) -> None:
        self._optimizers.first.numerics.add_trace(record)
        self._log.add_trace(record)

    def _take_xray(self, record: findings.XRayTaken) -> None:
        self._optimizers.first.numerics.add_xray(record)
        self._log.add(summary_of_xray(record))
        self._tell_underflow(self._underflow.see_xray(record))

    def _compare(self, record: findings.PrecisionsCompared) -> None:
        self._compared = record
        if record.over:
            self._log.add(ComparisonOver(record=record, run=self._run))

    @property
    def _is_comparing(self) -> bool:
        return self._compared is not None and not self._compared.over

    def _find_nonfinite(self, record: records.NonFinite) -> None:
        if (steps := self._steps_of(record)) is None:
            return
        if record.what == "buffer":
            steps.bad_buffers = record
        pending = (
            block.precision for block in reversed(self._pending) if block.optimizer == record.optimizer
        )
        current = self._optimizers.precision(record.optimizer, self._run)
        precision = steps.switches.at(record.step) or current or next(pending, None)
        self._log.add_nonfinite(record, precision)

    def _take_ranks(self, record: RankRecord) -> None:
        if (news := self._ranks.take(record)) is not None:
            self._log.add(news)

    def _validate(self, record: records.EpochFinished | records.Validated) -> None:
        if record.validation is not None:
            self._validated = record
            self._optimizers.first.metrics.add_validation(record)
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
        self._requests.drop_pending()
        self._begin()
        if self._run is not None:
            self._run = as_resumed(self._run, record)
        self._phase = None
        self._keeping.resume_after(record.step)
        self._optimizers.resume_after(record.step, record.precision)
        if self._validated is not None and self._validated.step > record.step:
            self._validated = None
        if record.device_name != before:
            for steps in self._optimizers:
                steps.change_device()
            self._compared = None
        self._log.add(Resumption(record=record, device_before=before))

    def _end(self, record: records.RunFinished | records.RunFailed) -> None:
        self._outcome, self._pause = record, None
        self._state = "finished" if isinstance(record, records.RunFinished) else "failed"
        self._log.add(record)

    def _eta_seconds(self) -> float | None:
        total_steps = self._run.total_steps if self._run and self._state == "running" else None
        first = self._optimizers.first
        return None if total_steps is None else first.pace.eta_seconds(total_steps - first.tracks.last_step)

    def _status(self, front: str) -> RunStatus:
        steps = self._optimizers.steps_of(front)
        return RunStatus(
            state=self._state,
            phase=self._phase,
            # The run's ends are counted in steps of its first optimizer.
            run=self._run if front == FIRST or self._run is None else without_ends(self._run),
            run_dir=self._run_dir,
            step=steps.tracks.last_step,
            step_seconds=steps.pace.step_seconds,
            optimizers=self._optimizers.views(front, self._run),
            pause_reason="" if self._pause is None else self._pause.reason,
            events=self._log.events(),
            outcome=self._outcome,
        )

    def _compose(self, front: str) -> SessionView:
        is_first, status = front == FIRST, self._status(front)
        view = SessionView(
            **{attribute.name: getattr(status, attribute.name) for attribute in fields(status)},
            precision=self._optimizers.precision(front, self._run),
            front=front,
            optimizers_left_out=self._optimizers.is_left_out,
            elapsed_seconds=self._running_time.seconds if self._run else None,
            eta_seconds=self._eta_seconds() if is_first else None,
            validated=self._validated,
            compared=self._compared if is_first or self._is_comparing else None,
            pause_cause="" if self._pause is None else self._pause.cause,
            device=self._device,
            ranks=self._ranks.view(self._run.world_size if self._run else 1),
            allocator=self._allocator,
            warnings=self._log.warnings,
            errors=self._log.errors,
            checkpoint=self._keeping.checkpoint,
            weights=self._keeping.weights,
            not_kept=self._keeping.not_kept,
            viewers=self._keeping.viewers,
            pending=self._requests.pending if self._outcome is None else (),
            answers=self._requests.answers,
        )
        return self._optimizers.steps_of(front).in_front(view)


def without_ends(run: records.RunStarted) -> records.RunStarted:
    """``run`` beside steps that its length is not counted in."""
    return replace(run, total_steps=None, steps_per_epoch=None, total_epochs=0)


def as_resumed(run: records.RunStarted, resumed: records.RunResumed) -> records.RunStarted:
    """``run`` as it goes on in a new process: perhaps longer, on another device, or with other ranks."""
    changed: dict[str, Any] = {
        name: value
        for name in (
            "total_epochs",
            "total_steps",
            "world_size",
            "parallel",
            "batch_size",
            "global_batch_size",
        )
        if (value := getattr(resumed, name)) or value == ""
    }
    if resumed.world_size == 1:
        changed["global_batch_size"] = None
    if resumed.world_size is not None:
        changed["data_parallel"] = resumed.data_parallel
    return replace(
        run,
        device=resumed.device,
        device_name=resumed.device_name,
        gpu_uuid=resumed.gpu_uuid,
        **changed,
    )


_FOLDS: Mapping[type[Any], Callable[[Session, Any], None]] = {
    records.RunStarted: Session._start,
    records.PhaseChanged: Session._change_phase,
    samples.DeviceSample: Session._sample_device,
    ranks.RanksStarted: Session._take_ranks,
    ranks.RanksSampled: Session._take_ranks,
    ranks.RanksDisagree: Session._take_ranks,
    ranks.RanksOverflowed: lambda session, record: session._log.add_overflow(record),
    ranks.RanksAwaited: Session._take_ranks,
    ranks.StacksTaken: lambda session, record: session._log.add(record),
    ranks.RankLost: Session._take_ranks,
    records.PrecisionChanged: Session._change_precision,
    records.BlockFinished: lambda session, record: session._optimizers.first.ledger.add_peak(
        record.precision, record.peak_allocated_bytes
    ),
    records.LossScaleChanged: Session._change_loss_scale,
    records.StepSkipped: Session._skip,
    findings.Float16Window: Session._add_window,
    findings.UpdatesMeasured: Session._add_updates,
    findings.ModulesTraced: Session._trace,
    findings.XRayTaken: Session._take_xray,
    findings.PrecisionsCompared: Session._compare,
    findings.StepTimed: lambda session, record: session._optimizers.first.timing.add(record),
    findings.ModelCompiled: lambda session, record: session._log.add(record),
    findings.Float8Layers: lambda session, record: session._log.add(record),
    findings.MemoryBreakdown: lambda session, record: session._optimizers.first.memory.update(
        {record.precision: record}
    ),
    findings.FlopsCounted: lambda session, record: session._optimizers.first.flops.add(record),
    records.NonFinite: Session._find_nonfinite,
    records.EpochFinished: Session._validate,
    records.Validated: Session._validate,
    OptimizerFollowed: Session._follow_optimizer,
    GradientsDropped: Session._drop_gradients,
    records.PauseChanged: Session._change_pause,
    records.Note: lambda session, record: session._log.add(record),
    records.Printed: lambda session, record: session._log.add(record),
    CheckpointWritten: Session._keep,
    WeightsSaved: Session._keep,
    records.RunResumed: Session._resume,
    KeepingChanged: Session._keep,
    ViewersChanged: Session._keep,
    RequestMade: lambda session, record: session._requests.make(record),
    answers.RequestTaken: lambda session, record: session._requests.answer(record),
    answers.RequestRefused: lambda session, record: session._requests.answer(record),
    records.RunFinished: Session._end,
    records.RunFailed: Session._end,
}


@cache
def _codec() -> Codec[Session]:
    return Codec(Session, exact=True)
