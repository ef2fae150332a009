"""Everything known about a run: folds records into histories, statistics and events, and provides a view."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar

from amptui.base.strictjson import JsonError
from amptui.records import answers, findings, ranks, samples
from amptui.records import run as records
from amptui.records.answers import Answer, RequestMade
from amptui.records.codec import Codec
from amptui.records.keeping import CheckpointWritten, KeepingChanged, WeightsSaved
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.steps import Steps, in_batches
from amptui.telemetry.comparison import INTERRUPTIONS
from amptui.telemetry.events import EventLog
from amptui.telemetry.finding import Finding, FindingReported
from amptui.telemetry.health import UnderflowWatch, judge_window, judge_xray_underflow
from amptui.telemetry.optimizers import FIRST, Optimizers, OptimizerSteps
from amptui.telemetry.pace import RunningTime, judge_start
from amptui.telemetry.rank_watch import RankRecord, RankWatch
from amptui.telemetry.view import RunFacts, SessionView

_BETWEEN_STEPS = (
    *(records.RunStarted, records.RunResumed, records.PrecisionChanged),
    *(records.LossScaleChanged, samples.DeviceSample),
)


MAX_REQUESTS = 64
"""The newest requests and answers that are kept."""


@dataclass(slots=True, eq=False)
class Session:
    """Folds records as they arrive and provides a view of the result. Thread-safe.

    Records may arrive late, twice or from the middle of a run: those that do not fit are left out, and no
    value of a record raises. ``run_dir`` is the run's folder, for the view.
    """

    _run_dir: str = ""
    _facts: RunFacts = field(default_factory=RunFacts)
    _running_time: RunningTime = field(default_factory=RunningTime)
    _pending: list[Steps] = field(default_factory=list, init=False)
    _optimizers: Optimizers = field(default_factory=Optimizers)
    _ranks: RankWatch = field(default_factory=RankWatch)
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

    def state(self) -> str:
        """The whole state as one line of JSON, for :meth:`restore`."""
        with self._lock:
            for steps in self._optimizers:
                steps.tracks.settle()
                steps.metrics.settle()
            return _codec().dumps(self)

    def restore(self, state: Any, *, host: str = "") -> None:
        """Replace the state with the parsed JSON of :meth:`state`; ``host`` is the machine it comes from.

        The state's run folder wins if it has one; of another machine it is ``HOST:FOLDER``. Raises
        ``ValueError`` if this amptui cannot read it; this session is then unchanged.
        """
        try:
            session = _codec().read(state)
            session.view()
        except Exception as error:  # a number out of place may do anything
            raise JsonError(f"this amptui cannot read the run's state: {error}") from error
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
        record: Any
        for record in batch:
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
                    steps.gpu.interrupt()
            self._running_time.take(record)
            if (fold := _FOLDS.get(type(record))) is not None:
                fold(self, record)
            elif (its_steps := self._optimizers.of(record.optimizer)) is not None:
                _FOLDS_OF_OPTIMIZER[type(record)](self, its_steps, record)
        self._fold_pending()

    def _fold_pending(self) -> None:
        steps, self._pending = self._pending, []
        if not steps:
            return
        if self._facts.state == "starting":
            self._change(state="running")
        run = self._facts.run
        self._optimizers.add(steps)
        if steps[0].first_step <= 2 and run is not None:
            for block in steps:
                if (finding := judge_start(block, run)) is not None:
                    self._log.add(FindingReported(time=block.time, finding=finding))

    def _change(self, **facts: Any) -> None:
        self._facts = replace(self._facts, **facts)

    def _start(self, record: records.RunStarted) -> None:
        if self._facts.run is not None:  # what is asked of a first process before it trains, it answers
            self._change(pending=())
        self._change(run=record)
        for steps in self._optimizers:
            steps.scaler.count(growth_interval=record.growth_interval)
        self._begin()
        self._log.add(record)

    def _begin(self) -> None:
        """A process starts to train, however the one before it ended."""
        self._change(
            state="running",
            outcome=None,
            pause_reason="",
            pause_cause="",
            compared=None if self._is_comparing else self._facts.compared,
        )
        self._ranks.restart()

    def _sample_device(self, record: samples.DeviceSample) -> None:
        first, run, phase = self._optimizers.first, self._facts.run, self._facts.phase
        if run is not None and run.device == "cpu":  # why there is no GPU's data concerns no step
            record = replace(record, note="")
        self._change(device=record, allocator=record.allocator or self._facts.allocator)
        first.metrics.add_sample(record, run, first.last_step)
        alone = not self._optimizers.are_several
        if (allocator := record.allocator) is not None:
            for steps in self._optimizers:
                if alone or steps.switches.current == allocator.precision:
                    steps.ledger.add_peak(allocator.precision, allocator.peak_allocated_bytes)
        # What several optimizers do between two samples cannot be told apart.
        training = self._facts.state == "running" and (phase is None or phase.phase == "training") and alone
        first.gpu.add(record, run, first.ledger, training=training, samples_trained=first.samples_trained)

    def _change_precision(self, steps: OptimizerSteps, record: records.PrecisionChanged) -> None:
        steps.switches.switch(record.step, record.current)
        if not self._is_comparing or self._facts.outcome is not None:
            self._log.add(record)

    def _change_loss_scale(self, steps: OptimizerSteps, record: records.LossScaleChanged) -> None:
        steps.scaler.add_change(record)
        self._log.add_scale_change(record)

    def _skip(self, steps: OptimizerSteps, record: records.StepSkipped) -> None:
        self._log.add_skip(record, steps.scaler)
        steps.scaler.add_skip(record)

    def _follow_optimizer(self, steps: OptimizerSteps, record: OptimizerFollowed) -> None:
        steps.followed = record
        if self._optimizers.are_several:  # from now on events of the first optimizer name it
            self._log.first_optimizer = self._optimizers.label(FIRST, self._facts.run)
        self._log.add(record)

    def _drop_gradients(self, steps: OptimizerSteps, record: GradientsDropped) -> None:
        if record.loss is not None and not math.isfinite(record.loss):
            steps.dropped = record
        self._log.add(record)

    def _find_nonfinite(self, steps: OptimizerSteps, record: records.NonFinite) -> None:
        if record.what == "buffer":
            steps.bad_buffers = record
        pending = (
            block.precision for block in reversed(self._pending) if block.optimizer == record.optimizer
        )
        current = self._optimizers.precision(record.optimizer, self._facts.run)
        precision = steps.switches.at(record.step) or current or next(pending, None)
        self._log.add_nonfinite(record, precision)

    def _take_window(self, record: findings.Float16Window) -> None:
        self._optimizers.first.numerics.window = record
        self._report_underflow(record.time, judge_window(record), hypothetical=record.hypothetical)

    def _take_trace(self, record: findings.ModulesTraced) -> None:
        numerics = self._optimizers.first.numerics
        numerics.trace = record
        numerics.bad_batch = record if record.inputs else numerics.bad_batch
        self._log.add_trace(record)

    def _take_xray(self, record: findings.XRayTaken) -> None:
        self._optimizers.first.numerics.xray = record
        self._log.add(record)
        if (finding := judge_xray_underflow(record)) is not None:
            self._report_underflow(record.time, finding, hypothetical=False)  # float16 ran in it

    def _report_underflow(self, time: float, finding: Finding, *, hypothetical: bool) -> None:
        """Before float16 only where AMP is that."""
        run = self._facts.run
        foretells = run is not None and run.amp_precision == "fp16"
        if self._underflow.begins(finding, hypothetical=hypothetical) and (foretells or not hypothetical):
            self._log.add(FindingReported(time=time, finding=finding))

    def _compare(self, record: findings.PrecisionsCompared) -> None:
        self._change(compared=record)
        if record.over:
            self._log.add(record)

    @property
    def _is_comparing(self) -> bool:
        return self._facts.compared is not None and not self._facts.compared.over

    def _take_ranks(self, record: RankRecord) -> None:
        if (news := self._ranks.fold(record)) is not None:
            self._log.add(news)

    def _validate(self, record: records.EpochFinished | records.Validated) -> None:
        if record.validation is not None:
            self._change(validated=record)
            self._optimizers.first.metrics.add_validation(record.step, record.validation)
        self._log.add(record)

    def _change_pause(self, record: records.PauseChanged) -> None:
        if self._facts.outcome is None:
            state, reason, cause = (
                ("paused", record.reason, record.cause) if record.paused else ("running", "", "")
            )
            self._change(state=state, pause_reason=reason, pause_cause=cause)
        self._log.add(record)

    def _change_unsaved(self, record: KeepingChanged) -> None:
        others = tuple(change for change in self._facts.not_kept if change.what != record.what)
        self._change(not_kept=(*others, record) if record.trouble else others)
        self._log.add(record)

    def _note(self, record: Any, **facts: Any) -> None:
        """An event, and what it changes."""
        self._change(**facts)
        self._log.add(record)

    def _ask(self, record: RequestMade) -> None:
        """A screen knows its own request before the run reports it."""
        pending, answered = self._facts.pending, self._facts.answers
        if record.number not in {request.number for request in (*pending, *(it.request for it in answered))}:
            self._change(pending=(*pending, record)[-MAX_REQUESTS:])

    def _answer(self, record: Answer) -> None:
        """Requests and answers are matched by number, in whatever order they arrive."""
        pending = (request for request in self._facts.pending if request.number != record.request.number)
        self._change(pending=tuple(pending), answers=(*self._facts.answers, record)[-MAX_REQUESTS:])

    def _resume(self, record: records.RunResumed) -> None:
        """Another process continues after a step, perhaps on another device; later steps no longer count."""
        facts = self._facts
        before = facts.run.device_name if facts.run is not None else record.device_name
        self._begin()
        self._change(
            pending=(),
            run=None if facts.run is None else as_resumed(facts.run, record),
            phase=None,
            weights=None,
            not_kept=(),
            checkpoint=_up_to(record.step, facts.checkpoint),
            validated=_up_to(record.step, facts.validated),
        )
        self._optimizers.resume_after(record.step, record.precision)
        if record.device_name != before:
            for steps in self._optimizers:
                steps.change_device()
            self._change(compared=None)
        self._log.add(record)

    def _end(self, record: records.RunFinished | records.RunFailed) -> None:
        state = "finished" if isinstance(record, records.RunFinished) else "failed"
        self._note(record, state=state, outcome=record, pause_reason="", pause_cause="")

    def _compose(self, front: str) -> SessionView:
        steps, run, eta_seconds = self._optimizers.steps_of(front), self._facts.run, None
        facts = {attribute.name: getattr(self._facts, attribute.name) for attribute in fields(RunFacts)}
        if run is not None and front != FIRST:  # the run's length is counted in steps of its first optimizer
            facts["run"] = replace(run, total_steps=None, steps_per_epoch=None, total_epochs=0)
        elif run is not None and run.total_steps is not None and self._facts.state == "running":
            eta_seconds = steps.pace.eta_seconds(run.total_steps - steps.last_step)
        if front != FIRST and not self._is_comparing:
            facts["compared"] = None
        if self._facts.outcome is not None:
            facts["pending"] = ()
        view = SessionView(
            **facts,
            run_dir=self._run_dir,
            step=steps.last_step,
            step_seconds=steps.pace.step_seconds,
            optimizers=self._optimizers.views(front, run),
            events=self._log.events(),
            printed=self._log.printed(),
            precision=self._optimizers.precision(front, run),
            front=front,
            optimizers_left_out=self._optimizers.is_left_out,
            elapsed_seconds=self._running_time.seconds if run else None,
            eta_seconds=eta_seconds,
            ranks=self._ranks.view(run),
            warnings=self._log.counts["warning"],
            errors=self._log.counts["error"],
        )
        return steps.in_front(view, self._lock)


_Saved = TypeVar("_Saved", CheckpointWritten, records.EpochFinished | records.Validated)


def _up_to(step: int, saved: _Saved | None) -> _Saved | None:
    """What was written after ``step`` is of steps that are repeated."""
    return None if saved is None or saved.step > step else saved


def as_resumed(run: records.RunStarted, resumed: records.RunResumed) -> records.RunStarted:
    """``run`` as it goes on in a new process: perhaps longer, on another device, or with other ranks."""
    names = ("total_epochs", "total_steps", "world_size", "parallel", "batch_size", "global_batch_size")
    changed: dict[str, Any] = {
        name: value for name in names if (value := getattr(resumed, name)) or value == ""
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
    records.PhaseChanged: lambda session, record: session._change(phase=record),
    samples.DeviceSample: Session._sample_device,
    **dict.fromkeys(
        (
            ranks.RanksStarted,
            ranks.RanksSampled,
            ranks.RanksDisagree,
            ranks.RanksAwaited,
            ranks.StacksTaken,
            ranks.RankLost,
        ),
        Session._take_ranks,
    ),
    ranks.RanksOverflowed: lambda session, record: session._log.add_overflow(record),
    records.BlockFinished: lambda session, record: session._optimizers.first.ledger.add_peak(
        record.precision, record.peak_allocated_bytes
    ),
    findings.Float16Window: Session._take_window,
    findings.ModulesTraced: Session._take_trace,
    findings.XRayTaken: Session._take_xray,
    findings.PrecisionsCompared: Session._compare,
    findings.StepTimed: lambda session, record: session._optimizers.first.timing.add(record),
    findings.MemoryBreakdown: lambda session, record: session._optimizers.first.memory.update(
        {record.precision: record}
    ),
    findings.FlopsCounted: lambda session, record: session._optimizers.first.flops.add(record),
    records.EpochFinished: Session._validate,
    records.Validated: Session._validate,
    records.PauseChanged: Session._change_pause,
    **dict.fromkeys(
        (findings.ModelCompiled, findings.Float8Layers, records.Note, records.Printed),
        lambda session, record: session._log.add(record),
    ),
    CheckpointWritten: lambda session, record: session._note(record, checkpoint=record),
    WeightsSaved: lambda session, record: session._note(record, weights=record),
    KeepingChanged: Session._change_unsaved,
    records.RunResumed: Session._resume,
    RequestMade: Session._ask,
    answers.RequestTaken: Session._answer,
    answers.RequestRefused: Session._answer,
    records.RunFinished: Session._end,
    records.RunFailed: Session._end,
}

_FOLDS_OF_OPTIMIZER: Mapping[type[Any], Callable[[Session, OptimizerSteps, Any], None]] = {
    records.PrecisionChanged: Session._change_precision,
    records.LossScaleChanged: Session._change_loss_scale,
    records.StepSkipped: Session._skip,
    records.NonFinite: Session._find_nonfinite,
    findings.UpdatesMeasured: lambda _session, steps, record: steps.metrics.add_updates(record),
    OptimizerFollowed: Session._follow_optimizer,
    GradientsDropped: Session._drop_gradients,
}


@cache
def _codec() -> Codec[Session]:
    return Codec(Session)
