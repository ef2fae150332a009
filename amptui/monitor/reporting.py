"""Makes records from a step's delivered numbers; handles no tensors."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from amptui.device.readback import Delivered
from amptui.monitor.step_rows import StepBlock, read_block
from amptui.probes.gradients import GradientHealth, GradientProbe
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
from amptui.records.steps import Steps

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
    optimizer: str = ""
    """Under which name its steps are recorded."""
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
        """Emit the records of :class:`Step` objects that were pushed, in order.

        One look reads many steps. A step ends its seconds after the one before, and not before its batch
        was loaded: no time is later than the true one, nor earlier than that of the step before. It follows
        in a block if it is the next one and like it, and began when the one before ended.
        """
        start, ends, end, before = 0, list[float](), self._end, 0
        kind: tuple[object, ...] = ()
        for index, (step, row, seconds) in enumerate(delivered):
            loaded = step.ended if step.load_start is None else step.load_start + step.data_seconds
            end += seconds or 0.0
            is_gap = loaded - end > MAX_GAP_SECONDS
            end = max(end, loaded)
            before_kind, kind = kind, (step.likeness(), -1 if row is None else len(row))
            if ends and (is_gap or step.number != before + 1 or kind != before_kind):
                self._report(delivered[start:index], ends)
                start, ends = index, []
            ends.append(end)
            before = step.number
        self._end = end
        self._report(delivered[start:], ends)

    def _report(self, delivered: Sequence[Delivered], ends: Sequence[float]) -> None:
        """Emit a block, or several: a step that has records of its own ends one, a skipped one is alone."""
        now = self._unix_seconds(ends[-1])
        block = read_block(delivered, ends, now, self.gradients, self.optimizer)
        start, count = 0, block.steps.count
        for index in [count - 1] if block.is_quiet else range(count):
            if block.steps.skipped[index] and start < index:
                self._emit_part(block, start, index)
                start = index
            if index + 1 == count or block.is_in_trouble(index) or block.changes_scale(index):
                self._emit_part(block, start, index + 1)
                start = index + 1

    def _emit_part(self, block: StepBlock, start: int, end: int) -> None:
        """Emit the steps from index ``start`` to before ``end``, and the records of the last one."""
        self.delivered += end - start
        now, last = self._unix_seconds(block.ends[end - 1]), end - 1
        steps = block.steps.part(start, end, now)
        self.emit(steps)
        if not block.is_measured:
            self._epoch.unmeasured += steps.count
            return
        skipped = steps.skipped[-1]
        self._update_losses(steps.loss, applied=not skipped)
        seconds = [seconds for seconds in steps.step_seconds if seconds is not None]
        self._epoch.seconds += sum(seconds)
        self._epoch.unmeasured += steps.count - len(seconds)
        if block.is_in_trouble(last):
            self._report_troubles(steps, block.healths[last])
        if not skipped:
            self.consecutive_skips = 0
        scale, next_scale = steps.loss_scale[-1], block.next_scale[last]
        if scale is not None:
            self.growth_tracker, self.scaled_step = steps.growth_tracker[-1] or 0, steps.last_step
            self.loss_scale = next_scale
        if scale is not None and scale != next_scale:
            self.emit(
                LossScaleChanged(
                    time=now,
                    step=steps.last_step,
                    previous=scale,
                    current=next_scale,
                    reason="growth" if next_scale > scale else "backoff",
                    optimizer=steps.optimizer,
                )
            )

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

    def _report_troubles(self, steps: Steps, health: GradientHealth | None) -> None:
        """Emit what was not finite in the last of ``steps``, or that it was skipped."""
        now, step, loss, name = steps.time, steps.last_step, steps.loss[-1], steps.optimizer
        skipped = steps.skipped[-1]
        self.trouble_step = step
        if self.suspect is None and (not skipped or not self.loss_is_finite):
            self.suspect = SuspectStep(step, self.delivered)
        if loss is not None and not self.loss_is_finite:
            kind: NonFiniteKind = "nan" if math.isnan(loss) else "inf"
            self.unexplained_step = step
            self.emit(
                NonFinite(time=now, step=step, what="loss", kind=kind, names=(), count=1, optimizer=name)
            )
        scale = steps.loss_scale[-1]
        if skipped and scale is not None:
            self.consecutive_skips += 1
            if self.consecutive_skips >= COLLAPSE_SKIPS:
                self.unexplained_step = step
            self.emit(
                StepSkipped(
                    time=now,
                    step=step,
                    loss_scale=scale,
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
