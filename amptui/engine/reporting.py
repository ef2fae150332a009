"""Makes records from a step's delivered numbers; handles no tensors."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.readback import Delivered
from amptui.engine.step_rows import StepColumns, runs_of_like_steps
from amptui.records.run import (
    COLLAPSE_SKIPS,
    EpochFinished,
    LossScaleChanged,
    NonFinite,
    NonFiniteKind,
    Record,
    StepSkipped,
    Validated,
    Validation,
)

_COUNTED = (
    "consecutive_skips",
    "loss_scale",
    "finite_losses",
    "bad_applied_steps",
    "last_loss",
    "loss_is_finite",
)


MAX_GAP_SECONDS = 0.001
"""The times of a block's steps follow from how long each took, if no more than this lies between two."""


class SuspectStep(NamedTuple):
    """A step that may have made weights NaN: its loss or gradients were not finite."""

    step: int
    delivered: int
    """The number of delivered steps, including this one."""


@dataclass(slots=True)
class _EpochSums:
    """Sums over an epoch's delivered steps."""

    loss: float = 0.0
    losses: int = 0
    seconds: float = 0.0
    unmeasured: int = 0


@dataclass(slots=True)
class StepReporter:
    """Emits the records of delivered steps, in order."""

    emit: Callable[[Record], object]
    gradients: GradientProbe
    consecutive_skips: int = 0
    loss_scale: float | None = None
    """The scale after the newest delivered scaled step."""
    growth_tracker: int = 0
    """Applied steps since the scale last changed, at the newest delivered scaled step, ``scaled_step``."""
    scaled_step: int = 0
    finite_losses: int = 0
    bad_applied_steps: int = 0
    """Applied steps with a non-finite loss, before any finite loss."""
    nonfinite_losses: int = 0
    """How many in a row, up to the newest delivered step."""
    last_loss: float = 0.0
    loss_is_finite: bool = True
    """Whether the newest delivered loss was."""
    epoch_metric: float | None = None
    """The newest epoch's validation loss; without validation its mean loss."""
    delivered: int = 0
    trouble_step: int = 0
    """The newest step with a non-finite loss or gradient; 0 if there is none."""
    unexplained_step: int = 0
    """The newest of them that the scaler's usual search for its scale does not explain."""
    suspect: SuspectStep | None = None
    """The first step since the last check of the weights that may have made some of them NaN."""
    _epoch: _EpochSums = field(default_factory=_EpochSums)
    _end: float = -math.inf
    """When the newest step ended, by the performance counter."""
    _clock_ahead: float = 0.0
    """Seconds that the clock is ahead of the performance counter."""

    @property
    def in_trouble(self) -> bool:
        """Whether the newest delivered step was skipped or had a non-finite loss, or weights may be NaN."""
        return self.consecutive_skips > 0 or not self.loss_is_finite or self.suspect is not None

    def next_growth(self, growth_interval: int, step: int) -> int | None:
        """The step after ``step`` at which the scale doubles if none is skipped; None if unknown."""
        growth = self.scaled_step + growth_interval - self.growth_tracker
        return growth if self.scaled_step and growth > step else None

    def _unix_seconds(self, moment: float) -> float:
        """A moment of ``perf_counter`` as Unix time."""
        ahead = time.time() - time.perf_counter()
        # The process may be suspended between the two calls: only a large change means that a clock was set.
        if abs(ahead - self._clock_ahead) > 1.0:
            self._clock_ahead = ahead
        return self._clock_ahead + moment

    def state(self) -> dict[str, Any]:
        """Its counters as plain values; not the steps with trouble."""
        return {name: getattr(self, name) for name in _COUNTED} | {"epoch": asdict(self._epoch)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the :meth:`state` of another reporter."""
        for name in _COUNTED:
            setattr(self, name, state[name])
        self._epoch = _EpochSums(**state["epoch"])

    def steps(self, delivered: Sequence[Delivered]) -> None:
        """Emit the records of steps that were pushed with their :class:`StepFacts`, in order."""
        for alike in runs_of_like_steps(delivered):
            self._report(StepColumns(alike, self.gradients))

    def _report(self, columns: StepColumns) -> None:
        """Emit blocks of steps. A block ends with a step that has records of its own."""
        (ends, gaps), start = self._ends(columns), 0
        if columns.is_quiet and not gaps:
            self._emit_block(columns, 0, columns.count, ends)  # the usual case
            return
        for index in range(columns.count):
            last = index + 1 == columns.count
            has_records = columns.is_in_trouble(index) or columns.changes_scale(index)
            if columns.is_skipped(index) and start < index:
                self._emit_block(columns, start, index, ends)
                start = index
            if has_records or last or index + 1 in gaps:
                self._emit_block(columns, start, index + 1, ends)
                start = index + 1

    def _emit_block(self, columns: StepColumns, start: int, end: int, ends: Sequence[float]) -> None:
        """Emit the steps from index ``start`` to before ``end``, and the records of the last one."""
        self.delivered += end - start
        now, last = self._unix_seconds(ends[end - 1]), end - 1
        self.emit(columns.block(start, end, now))
        if not columns.is_measured:
            self._epoch.unmeasured += end - start
            return
        skipped = columns.is_skipped(last)
        self._update_losses(columns.loss[start:end], applied=not skipped)
        seconds = [seconds for seconds in columns.seconds[start:end] if seconds is not None]
        self._epoch.seconds += sum(seconds)
        self._epoch.unmeasured += end - start - len(seconds)
        if columns.is_in_trouble(last):
            self._report_troubles(columns, last, now)
        if not skipped:
            self.consecutive_skips = 0
        if columns.scaled:
            self.growth_tracker, self.scaled_step = columns.growth_tracker[last], columns.steps[last]
            scale, self.loss_scale = columns.scale[last], columns.next_scale[last]
            if columns.changes_scale(last):
                self.emit(
                    LossScaleChanged(
                        time=now,
                        step=self.scaled_step,
                        previous=scale,
                        current=columns.next_scale[last],
                        reason="growth" if columns.next_scale[last] > scale else "backoff",
                        optimizer=columns.kind.optimizer,
                    )
                )

    def _ends(self, columns: StepColumns) -> tuple[list[float], set[int]]:
        """When each step ended, by the performance counter; and the steps that do not follow in a block.

        One look reports many steps. A step ends its seconds after the one before, and not before its batch
        was loaded: no time is later than the true one, nor earlier than that of the step before. It follows
        in a block if it is numbered next, and began when the one before ended.
        """
        ends, gaps, end, number = list[float](), set[int](), self._end, columns.steps[0]
        rows = zip(columns.steps, columns.load_start, columns.data_seconds, columns.seconds, strict=True)
        for index, (step, load_start, data_seconds, seconds) in enumerate(rows):
            end += seconds or 0.0
            loaded = load_start + (data_seconds or 0.0)
            if loaded > end:
                if loaded - end > MAX_GAP_SECONDS:
                    gaps.add(index)
                end = loaded
            if step != number:
                gaps.add(index)
            number = step + 1
            ends.append(end)
        self._end = end
        gaps.discard(0)  # the first one follows nothing here
        return ends, gaps

    def validated(self, *, step: int, epoch: int, validation: Validation | None) -> None:
        """Emit a validation within an epoch; None if its row was dropped or it had no batches."""
        if validation is not None:
            self.emit(Validated(time=time.time(), step=step, epoch=epoch, validation=validation))

    def validated_by_script(
        self, step: int, epoch: int, names: Sequence[str], row: Sequence[float] | None, _seconds: float | None
    ) -> None:
        """Emit what a script logged in a validation, from its ``row``; not if that was dropped."""
        if row is not None:
            metrics = dict(zip(names, row, strict=True))
            loss, accuracy = metrics.pop("loss", None), metrics.pop("accuracy", None)
            validation = Validation(loss=loss, accuracy=accuracy, samples=0, metrics=metrics)
            self.validated(step=step, epoch=epoch, validation=validation)

    def epoch(self, *, step: int, epoch: int, validation: Validation | None) -> None:
        """Emit the epoch's end, after all of its steps."""
        sums, self._epoch = self._epoch, _EpochSums()
        mean_loss = sums.loss / sums.losses if sums.losses else None
        self.epoch_metric = mean_loss if validation is None else validation.loss
        self.emit(
            EpochFinished(
                time=time.time(),
                step=step,
                epoch=epoch,
                seconds=None if sums.unmeasured else sums.seconds,
                mean_loss=mean_loss,
                validation=validation,
            )
        )

    def _update_losses(self, losses: Sequence[float | None], *, applied: bool) -> None:
        """Count those of a block, of which only the last may not be finite: such a step ends its block."""
        sums, last = self._epoch, losses[-1]
        self.loss_is_finite = last is None or math.isfinite(last)
        if last is not None:
            self.last_loss = last
            finite = [loss for loss in losses[: len(losses) - (not self.loss_is_finite)] if loss is not None]
            self.finite_losses += len(finite)
            sums.loss += sum(finite)
            sums.losses += len(finite)
        if self.loss_is_finite:
            self.nonfinite_losses = 0
            return
        self.nonfinite_losses = 1 + (self.nonfinite_losses if len(losses) == 1 else 0)
        if applied and not self.finite_losses:
            self.bad_applied_steps += 1

    def _report_troubles(self, columns: StepColumns, index: int, now: float) -> None:
        step, loss, health = columns.steps[index], columns.loss[index], columns.healths[index]
        name = columns.kind.optimizer
        skipped = columns.is_skipped(index)
        self.trouble_step = step
        if self.suspect is None and (not skipped or not self.loss_is_finite):
            self.suspect = SuspectStep(step, self.delivered)
        if loss is not None and not self.loss_is_finite:
            kind: NonFiniteKind = "nan" if math.isnan(loss) else "inf"
            self.unexplained_step = step
            self.emit(
                NonFinite(time=now, step=step, what="loss", kind=kind, names=(), count=1, optimizer=name)
            )
        if skipped:
            self.consecutive_skips += 1
            if self.consecutive_skips >= COLLAPSE_SKIPS:
                self.unexplained_step = step
            self.emit(
                StepSkipped(
                    time=now,
                    step=step,
                    loss_scale=columns.scale[index],
                    loss=loss,
                    names=health.nonfinite_names if health else (),
                    count=health.nonfinite_count if health else None,
                    consecutive=self.consecutive_skips,
                    kinds=health.nonfinite_kinds if health else (),
                    optimizer=name,
                )
            )
        elif health is not None and health.nonfinite_count:
            self.unexplained_step = step
            self.emit(
                NonFinite(
                    time=now,
                    step=step,
                    what="gradient",
                    kind=health.nonfinite_kinds[0],
                    names=health.nonfinite_names,
                    count=health.nonfinite_count,
                    kinds=health.nonfinite_kinds,
                    optimizer=name,
                )
            )
