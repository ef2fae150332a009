"""Makes records from a step's delivered numbers; handles no tensors."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from amptui.engine.probes.gradients import GradientHealth, GradientProbe
from amptui.engine.step_row import RowLayout, StepNumbers
from amptui.loop_records import LossForm
from amptui.records import (
    COLLAPSE_SKIPS,
    EpochFinished,
    LossScaleChanged,
    NonFinite,
    Record,
    StepRecord,
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


class SuspectStep(NamedTuple):
    """A step that may have made weights NaN: its loss or gradients were not finite."""

    step: int
    delivered: int
    """The number of delivered steps, including this one."""


class StepFacts(NamedTuple):
    """What the host knows about a step when it is sent to the device. A tuple is quick to create."""

    step: int
    epoch: int
    precision: str
    samples: int
    data_seconds: float | None
    """None in somebody else's loop, where nobody measures it."""
    asked: float
    """When loading its batch began, by ``perf_counter``."""
    lr: float | None
    """None if the optimizer has none, or if the row holds it."""
    warming_up: bool
    layout: RowLayout = RowLayout()
    gradients_scaled: bool = False
    """Whether the row's gradients were measured before unscaling."""
    micro_batches: int = 1
    group_lrs: tuple[float, ...] = ()
    optimizer: str = ""
    loss_form: LossForm = ""


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

    def step(self, facts: StepFacts, row: Sequence[float] | None, seconds: float | None) -> None:
        """Emit the records of one step from its ``row``; None if the row was dropped."""
        self.delivered += 1
        # One look reports many steps. A step ends its seconds after the one before, and not before its batch
        # was loaded: no time is later than the true one, nor earlier than that of the step before.
        self._end = max(facts.asked + (facts.data_seconds or 0.0), self._end + (seconds or 0.0))
        now = self._unix_seconds(self._end)
        if row is None:
            self._epoch.unmeasured += 1
            self.emit(_unmeasured(facts, now))
            return
        numbers = facts.layout.read(row)
        loss, scale, scaled = numbers.loss, numbers.scale, facts.layout.scaled
        lr, group_lrs = _learning_rates(numbers.lrs) if numbers.lrs else (facts.lr, facts.group_lrs)
        if numbers.gradients and numbers.gradients[0] < 0:  # a rank could not measure its part
            numbers = numbers._replace(gradients=[])
        measured = numbers.gradients or numbers.clip_norm is not None
        health = self._health(facts, numbers) if measured else None
        skipped = numbers.found_inf > 0
        self.emit(
            StepRecord(
                time=now,
                step=facts.step,
                epoch=facts.epoch,
                precision=facts.precision,
                loss=loss,
                losses=numbers.parts,
                samples=facts.samples,
                step_seconds=seconds,
                data_seconds=facts.data_seconds,
                lr=lr,
                loss_scale=scale if scaled else None,
                growth_tracker=int(numbers.growth_tracker) if scaled else None,
                skipped=skipped,
                grad_norm=health.norm if health else None,
                nonfinite_gradients=health.nonfinite_count if health else None,
                settling=facts.warming_up,
                grad_max=health.largest if health else None,
                micro_batches=facts.micro_batches,
                group_lrs=group_lrs,
                optimizer=facts.optimizer,
                loss_form=facts.loss_form,
            )
        )
        self._update_loss(loss, seconds, applied=not skipped)
        if skipped or not self.loss_is_finite or (health is not None and not math.isfinite(health.norm)):
            self._report_troubles(facts, now, loss, health, scale if skipped else None)
        if not skipped:
            self.consecutive_skips = 0
        if scaled:
            self.growth_tracker, self.scaled_step = int(numbers.growth_tracker), facts.step
            self._update_scale(facts, now, scale, numbers.next_scale)

    def _health(self, facts: StepFacts, numbers: StepNumbers) -> GradientHealth:
        """The step's gradients as measured by the probe or by clipping."""
        norm = numbers.clip_norm
        if norm is not None and not numbers.gradients:
            return GradientHealth(norm, None, None, (), ())
        health = self.gradients.health(numbers.gradients, numbers.scale if facts.gradients_scaled else 1.0)
        # Clipping sums in another order: show the norm that it used.
        return health if norm is None or health.nonfinite_count else replace(health, norm=norm)

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
            found = Validation(loss=loss, accuracy=accuracy, samples=0, metrics=metrics)
            self.validated(step=step, epoch=epoch, validation=found)

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

    def _update_loss(self, loss: float | None, seconds: float | None, *, applied: bool) -> None:
        sums = self._epoch
        if loss is not None:
            self.last_loss = loss
        self.loss_is_finite = loss is None or math.isfinite(loss)
        self.nonfinite_losses = 0 if self.loss_is_finite else self.nonfinite_losses + 1
        if loss is not None and self.loss_is_finite:
            self.finite_losses += 1
            sums.loss += loss
            sums.losses += 1
        elif applied and not self.finite_losses and not self.loss_is_finite:
            self.bad_applied_steps += 1
        if seconds is None:
            sums.unmeasured += 1
        else:
            sums.seconds += seconds

    def _report_troubles(
        self,
        facts: StepFacts,
        now: float,
        loss: float | None,
        health: GradientHealth | None,
        skipped_at_scale: float | None,
    ) -> None:
        self.trouble_step = facts.step
        if self.suspect is None and (skipped_at_scale is None or not self.loss_is_finite):
            self.suspect = SuspectStep(facts.step, self.delivered)
        if loss is not None and not self.loss_is_finite:
            kind = _kind(loss)
            self.unexplained_step = facts.step
            name = facts.optimizer
            self.emit(
                NonFinite(
                    time=now, step=facts.step, what="loss", kind=kind, names=(), count=1, optimizer=name
                )
            )
        if skipped_at_scale is not None:
            self.consecutive_skips += 1
            if self.consecutive_skips >= COLLAPSE_SKIPS:
                self.unexplained_step = facts.step
            self.emit(
                StepSkipped(
                    time=now,
                    step=facts.step,
                    loss_scale=skipped_at_scale,
                    loss=loss,
                    names=health.nonfinite_names if health else (),
                    count=health.nonfinite_count if health else None,
                    consecutive=self.consecutive_skips,
                    kinds=health.nonfinite_kinds if health else (),
                    optimizer=facts.optimizer,
                )
            )
        elif health is not None and health.nonfinite_count:
            self.unexplained_step = facts.step
            self.emit(
                NonFinite(
                    time=now,
                    step=facts.step,
                    what="gradient",
                    kind=health.nonfinite_kinds[0],
                    names=health.nonfinite_names,
                    count=health.nonfinite_count,
                    kinds=health.nonfinite_kinds,
                    optimizer=facts.optimizer,
                )
            )

    def _update_scale(self, facts: StepFacts, now: float, scale: float, next_scale: float) -> None:
        self.loss_scale = next_scale
        if next_scale != scale:
            self.emit(
                LossScaleChanged(
                    time=now,
                    step=facts.step,
                    previous=scale,
                    current=next_scale,
                    reason="growth" if next_scale > scale else "backoff",
                    optimizer=facts.optimizer,
                )
            )


def _learning_rates(groups: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
    """The first group's, and those of all groups if they differ."""
    return groups[0], groups if any(lr != groups[0] for lr in groups) else ()


def _kind(value: float) -> Literal["nan", "inf"]:
    return "nan" if math.isnan(value) else "inf"


def _unmeasured(facts: StepFacts, now: float) -> StepRecord:
    """The record of a step whose numbers were dropped to avoid waiting."""
    return StepRecord(
        time=now,
        step=facts.step,
        epoch=facts.epoch,
        precision=facts.precision,
        loss=None,
        samples=facts.samples,
        step_seconds=None,
        data_seconds=facts.data_seconds,
        lr=facts.lr,
        loss_scale=None,
        growth_tracker=None,
        skipped=False,
        grad_norm=None,
        nonfinite_gradients=None,
        settling=facts.warming_up,
        micro_batches=facts.micro_batches,
        group_lrs=facts.group_lrs,
        optimizer=facts.optimizer,
    )
