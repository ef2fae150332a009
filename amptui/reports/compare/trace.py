"""One run folded for a comparison: its session, and what it had trained at each step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from amptui.records.run import EpochFinished, Record, RunResumed, RunStarted, Validated
from amptui.records.steps import Steps, in_batches
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.session import Session
from amptui.telemetry.view import Floats, SessionView

MEAN_STEPS = 20
"""Steps whose mean is the loss of a training: a single batch says more of itself than of the model."""

FINAL_SHARE = 0.05
"""The fraction of the steps, the last ones, whose mean is the final training loss; `MEAN_STEPS` at least."""

MAX_UNTIMED_SHARE = 0.01
"""The fraction of the steps that may lack a time before their sum is no training time any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Losses in order, and what had been trained by each: all arrays have one element a loss."""

    steps: Floats
    seconds: Floats
    """The sum of the times of all steps so far."""
    loss: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFigures:
    """One run at one moment, as a comparison needs it; None for what was not measured."""

    name: str
    folder: str
    view: SessionView
    is_live: bool
    """Whether a process trains it now."""
    precisions: tuple[str, ...]
    """Those that it trained in, the first one first."""
    samples: int
    seconds: float | None
    """Training time: the sum of all step times, without validation and pauses. None if over 1% have none."""
    training: Curve
    """Of the steps whose loss was measured."""
    means: Floats
    """For each of these losses the mean of the last 20 finite ones; NaN before there are so many."""
    validation: Curve
    devices: tuple[str, ...]
    """The names of all devices that it ran on."""
    passed_over: str = ""
    """What of its journal could not be read, in one line."""

    def final(self, *, validation: bool) -> float | None:
        """The loss of the last validation, or the mean of the last 5% of the training losses, 20 at least.

        Of training losses those that are NaN or Inf are left out, but if they are as many as the others, or
        the last ones, the result is NaN.
        """
        if validation:
            return float(self.validation.loss[-1]) if len(self.validation.loss) else None
        losses = self.training.loss
        losses = losses[-max(MEAN_STEPS, math.ceil(FINAL_SHARE * len(losses))) :]
        finite = losses[np.isfinite(losses)]
        if not len(losses):
            return None
        if not math.isfinite(losses[-1]) or 2 * len(finite) <= len(losses):
            return math.nan
        unit = float(np.abs(finite).max()) or 1.0  # the sum of the largest floats would overflow
        return float((finite / unit).mean()) * unit

    def best(self, *, validation: bool) -> float | None:
        """The lowest finite loss of a validation, or the lowest mean of 20 training losses in a row."""
        losses = self.validation.loss if validation else self.means
        return min(losses[np.isfinite(losses)].tolist(), default=None)

    def seconds_to(self, loss: float, *, validation: bool) -> float | None:
        """Training time until the loss was first as low as that; None if it never was."""
        curve, losses = self.training, self.means
        if validation:
            curve, losses = self.validation, self.validation.loss
        places = np.flatnonzero(losses <= loss)
        return float(curve.seconds[places[0]]) if len(places) and self.seconds is not None else None


def figures_of(records: Iterable[Record], folder: str, name: str, *, is_live: bool) -> RunFigures:
    """What the records of one run say, in order. What a resumed run repeats replaces what it did before.

    Of several optimizers only the steps of the first count.
    """
    session = Session(folder)
    blocks, validations, seen = [np.empty((5, 0))], list[tuple[int, float, int]](), 0
    devices: dict[str, None] = {}
    for batch in in_batches(records):
        session.fold(batch)
        for record in batch:
            if isinstance(record, Steps) and not record.optimizer:
                blocks.append(_columns(record))
                seen += record.count
            elif isinstance(record, RunStarted | RunResumed):
                devices[record.device_name] = None
            elif isinstance(record, EpochFinished | Validated):
                loss = None if record.validation is None else record.validation.loss
                validations += [] if loss is None else [(record.step, loss, seen)]
    table = np.concatenate(blocks, axis=1)
    # The lowest step number from each place on: what is not below those that follow was repeated.
    lowest = np.append(np.minimum.accumulate(table[0, ::-1])[::-1], np.inf)
    steps, losses, measured, samples, seconds = table[:, table[0] < lowest[1:]]
    kept = [(step, loss) for step, loss, place in validations if step < lowest[place]]
    validated_steps, validated_losses = np.array(kept, np.float64).reshape(-1, 2).T
    view = session.view(FIRST)
    precisions = tuple(dict.fromkeys(switch.precision for switch in view.switches))
    if not precisions and view.run is not None:
        precisions = (view.run.precision,)
    untimed = np.count_nonzero(seconds == 0.0)
    is_timed = len(steps) > 0 and untimed <= MAX_UNTIMED_SHARE * len(steps)
    with np.errstate(over="ignore"):
        seconds = np.cumsum(seconds)
    has_loss = measured.astype(np.bool_)
    # How many steps there were by then: their time is 0 before the first one.
    done = np.searchsorted(steps, validated_steps, side="right")
    return RunFigures(
        name=name,
        folder=view.run_dir,
        view=view,
        is_live=is_live,
        precisions=precisions,
        samples=round(samples.sum()),
        seconds=float(seconds[-1]) if is_timed else None,
        training=Curve(*(column[has_loss] for column in (steps, seconds, losses))),
        means=_running_means(losses[has_loss]),
        validation=Curve(validated_steps, np.append(0.0, seconds)[done], validated_losses),
        devices=tuple(devices),
    )


def _columns(steps: Steps) -> Floats:
    """Number, loss, whether that was measured, samples and seconds of each step: [5, N]; 0 s if not timed."""
    seconds = np.array(steps.step_seconds, np.float64)  # None becomes NaN
    return np.stack(
        [
            np.arange(steps.first_step, steps.last_step + 1, dtype=np.float64),
            np.array(steps.loss, np.float64),
            np.array([loss is not None for loss in steps.loss], np.float64),
            np.array(steps.samples, np.float64),
            np.where(np.isfinite(seconds) & (seconds > 0.0), seconds, 0.0),
        ]
    )


def _running_means(losses: Floats) -> Floats:
    """See ``RunFigures.means``."""
    means, places = np.full(len(losses), np.nan), np.flatnonzero(np.isfinite(losses))
    if len(places) >= MEAN_STEPS:
        with np.errstate(over="ignore"):
            windows = np.lib.stride_tricks.sliding_window_view(losses[places], MEAN_STEPS).mean(axis=1)
        means[places[MEAN_STEPS - 1 :]] = windows
    return means
