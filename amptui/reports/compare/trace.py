"""One run folded for a comparison: its session, and what it had trained at each step."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amptui.records.run import Record, RunResumed, RunStarted, Validation
from amptui.records.samples import DeviceSample
from amptui.records.steps import Column, Steps, are_finite, joined
from amptui.telemetry.history import Track
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_SERIES, Floats, Series, SessionView

MEAN_STEPS = 20
"""Steps whose mean is the loss of a training: a single batch says more of itself than of the model."""

FINAL_SHARE = 0.05
"""The fraction of the steps, the last ones, whose mean is the final training loss; `MEAN_STEPS` at least."""

MAX_UNTIMED_SHARE = 0.01
"""The fraction of the steps that may lack a time before their sum is no training time any more."""

_MAX_LOWS = 4096
"""Record lows that are kept; of more, every second one is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A loss, and what had been trained by then."""

    step: int
    samples: float
    seconds: float
    """The sum of the times of all steps so far."""
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The training loss in buckets of steps; all arrays have one element a bucket.

    NaN in a float is what was not measured.
    """

    steps: Floats
    """The middle of the steps of each bucket."""
    samples: Floats
    """Trained so far, on average over the bucket."""
    seconds: Floats
    """The same for the sum of the step times."""
    loss: Floats
    """The mean of the finite ones."""
    nonfinite: Floats
    """How many were NaN or Inf."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFigures:
    """One run at one moment, as a comparison needs it; None for what was not measured."""

    name: str
    folder: str
    view: SessionView
    is_live: bool
    """Whether a process trains it now."""
    samples: int
    seconds: float | None
    """Training time: the sum of all step times, without validation and pauses. None if over 1% have none."""
    final_training: float | None
    """The mean of the last 5% of the losses, 20 at least; NaN or Inf if the run ended there."""
    best_training: float | None
    """The lowest mean of 20 losses in a row."""
    lows: tuple[Moment, ...]
    """Each time the mean of the last 20 losses was lower than ever before."""
    validations: tuple[Moment, ...]
    curve: Curve
    peak_process_bytes: int | None
    resumed: int
    """How often it was resumed."""
    devices: tuple[str, ...]
    """The names of all devices that it ran on."""
    last_time: float | None
    """Of its newest record, in Unix seconds."""
    passed_over: str
    """What of its journal could not be read, in one line."""

    @property
    def final_validation(self) -> float | None:
        """The loss of the last validation."""
        return self.validations[-1].loss if self.validations else None

    @property
    def best_validation(self) -> float | None:
        """The lowest finite loss of a validation."""
        return min((moment.loss for moment in self.validations if math.isfinite(moment.loss)), default=None)

    def final(self, *, validation: bool) -> float | None:
        """The final loss of either kind."""
        return self.final_validation if validation else self.final_training

    def best(self, *, validation: bool) -> float | None:
        """The best loss of either kind."""
        return self.best_validation if validation else self.best_training

    def reached(self, loss: float, *, validation: bool) -> Moment | None:
        """When the loss was first as low as that; None if it never was."""
        moments = self.validations if validation else self.lows
        return next((moment for moment in moments if moment.loss <= loss), None)


class Trace:
    """Folds the records of one run, in order. What a resumed run repeats replaces what it did before.

    Of several optimizers only the steps of the first count.
    """

    def __init__(self, folder: str) -> None:
        self.session = Session(folder)
        self._loss = self._samples_track = self._seconds_track = Track.empty()
        self._started = self._resuming = False
        self._samples = 0
        self._seconds = 0.0
        self._steps = self._untimed = 0
        self._window: deque[float] = deque(maxlen=MEAN_STEPS)
        self._lows: list[Moment] = []
        self._validations: list[Moment] = []
        self._peak_process: int | None = None
        self._resumed = 0
        self._devices: dict[str, None] = {}
        self._last_time: float | None = None

    def add(self, records: Sequence[Record]) -> None:
        """Add the next records."""
        self.session.fold(records)
        steps: list[Steps] = []
        for record in records:
            self._last_time = record.time
            if isinstance(record, Steps):
                if not record.optimizer:
                    steps.append(record)
            elif isinstance(record, RunStarted | RunResumed):
                self._add_steps(steps)
                steps = []
                self._resuming = True
                self._devices[record.device_name] = None
                if isinstance(record, RunResumed):
                    self._resumed += 1
                    self._rewind(record.step + 1)
            elif isinstance(validation := getattr(record, "validation", None), Validation):
                # At an epoch's end, or in a record of its own.
                self._add_steps(steps)
                steps = []
                if validation.loss is not None:
                    self._validations.append(self._moment(getattr(record, "step", 0), validation.loss))
            elif isinstance(record, DeviceSample) and record.host.process_rss_bytes is not None:
                self._peak_process = max(self._peak_process or 0, record.host.process_rss_bytes)
        self._add_steps(steps)

    def figures(self, name: str, *, is_live: bool, passed_over: str) -> RunFigures:
        """What is known so far; the arguments are fields of the result."""
        loss = self._loss.snapshot() if self._started else EMPTY_SERIES
        view = self.session.view(FIRST)
        is_timed = self._steps > 0 and self._untimed <= MAX_UNTIMED_SHARE * self._steps
        buckets = np.arange(len(loss.mean), dtype=np.float64) + 0.5
        return RunFigures(
            name=name,
            folder=view.run_dir,
            view=view,
            is_live=is_live,
            samples=self._samples,
            seconds=self._seconds if is_timed else None,
            final_training=final_mean(loss),
            best_training=self._lows[-1].loss if self._lows else None,
            lows=tuple(self._lows),
            validations=tuple(self._validations),
            curve=Curve(
                steps=loss.first_step + buckets * loss.bucket_steps - 0.5,
                samples=self._samples_track.snapshot().mean if self._started else np.empty(0),
                seconds=self._seconds_track.snapshot().mean if self._started else np.empty(0),
                loss=loss.mean,
                nonfinite=loss.nonfinite.astype(np.float64),
            ),
            peak_process_bytes=self._peak_process,
            resumed=self._resumed,
            devices=tuple(self._devices),
            last_time=self._last_time,
            passed_over=passed_over,
        )

    def _add_steps(self, blocks: Sequence[Steps]) -> None:
        for steps in joined(blocks):
            if not self._started:
                self._started = True
                self._loss = Track.empty(first_step=steps.first_step)
                self._samples_track = Track.empty(first_step=steps.first_step)
                self._seconds_track = Track.empty(first_step=steps.first_step)
            gap = steps.first_step - self._loss.next_step
            if gap < 0 and not self._resuming:
                continue  # arrived after newer steps
            if gap < 0:
                self._rewind(steps.first_step)
            self._resuming = False
            samples = self._samples + np.cumsum(steps.samples, dtype=np.float64)
            timed = _timed(steps.step_seconds)
            with np.errstate(over="ignore"):
                seconds = self._seconds + np.cumsum(timed)
            for track, values in (
                (self._loss, steps.loss),
                (self._samples_track, samples.tolist()),
                (self._seconds_track, seconds.tolist()),
            ):
                track.skip(max(0, gap))
                track.extend(values)
            self._add_lows(steps, samples, seconds)
            self._samples += sum(steps.samples)
            self._seconds = float(seconds[-1])
            self._steps += steps.count
            self._untimed += timed.count(0.0)

    def _add_lows(self, steps: Steps, samples: Floats, seconds: Floats) -> None:
        losses = np.array(steps.loss, np.float64)  # None becomes NaN
        places = np.flatnonzero(np.isfinite(losses))
        recent = np.append(np.array(self._window), losses[places])
        self._window.extend(losses[places].tolist())
        if not len(places) or len(recent) < MEAN_STEPS:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.lib.stride_tricks.sliding_window_view(recent, MEAN_STEPS).mean(axis=1)
        means = means[-len(places) :]  # the others end at losses of before
        places = places[-len(means) :]
        best = self._lows[-1].loss if self._lows else math.inf
        lowest = np.minimum.accumulate(np.append(best, means))
        for at in np.flatnonzero(means < lowest[:-1]).tolist():
            place = int(places[at])
            self._lows.append(
                Moment(
                    step=steps.first_step + place,
                    samples=float(samples[place]),
                    seconds=float(seconds[place]),
                    loss=float(means[at]),
                )
            )
        if len(self._lows) > _MAX_LOWS:
            self._lows = [*self._lows[:-1:2], self._lows[-1]]

    def _rewind(self, next_step: int) -> None:
        """Forget the steps from ``next_step`` on: the run repeats them."""
        if not self._started or next_step >= self._loss.next_step:
            return
        last = self._moment(next_step - 1, 0.0)
        self._samples, self._seconds = round(last.samples), last.seconds
        for track in (self._loss, self._samples_track, self._seconds_track):
            track.rewind(next_step)
        self._window.clear()
        self._lows = [low for low in self._lows if low.step < next_step]
        self._validations = [moment for moment in self._validations if moment.step < next_step]

    def _moment(self, step: int, loss: float) -> Moment:
        """What had been trained after ``step``."""
        if self._started and step == self._loss.next_step - 1:
            return Moment(step=step, samples=self._samples, seconds=self._seconds, loss=loss)
        tracks = (self._samples_track, self._seconds_track)
        samples, seconds = (_value_at(track.snapshot(), step) if self._started else 0.0 for track in tracks)
        return Moment(step=step, samples=samples, seconds=seconds, loss=loss)


def _timed(seconds: Column) -> Sequence[float]:
    """``seconds``, and 0 for steps that were not timed."""
    if are_finite(seconds) and min(seconds) > 0.0:
        return seconds
    return [time if time is not None and 0.0 < time < math.inf else 0.0 for time in seconds]


def final_mean(losses: Series) -> float | None:
    """The mean of the last 5% of all losses, of 20 at least; None if none of them was measured.

    Exact for a run of up to 40,960 steps, otherwise of the buckets that these steps fill. Losses that are NaN
    or Inf are left out, but if they are as many as the others, or the last ones, the result is NaN.
    """
    count = max(MEAN_STEPS, math.ceil(FINAL_SHARE * losses.count))
    if count <= len(losses.recent):
        values, bad = losses.recent[-count:], losses.recent_nonfinite[-count:].astype(np.float64)
    else:
        buckets = -(-count // losses.bucket_steps)
        values, bad = losses.mean[-buckets:], losses.nonfinite[-buckets:].astype(np.float64)
    finite = np.isfinite(values)
    measured = np.flatnonzero(finite | (bad > 0))
    if not len(measured):
        return None
    if not finite[measured[-1]] or 2 * (bad > 0).sum() >= len(measured):
        return math.nan
    unit = float(np.abs(values[finite]).max()) or 1.0  # the sum of the largest floats would overflow
    return float((values[finite] / unit).mean()) * unit


def _value_at(series: Series, step: int) -> float:
    """A running total after ``step``: exact for recent steps, otherwise that of the step's bucket."""
    if step < series.first_step or not series.count:
        return 0.0
    recent = step - (series.last_step - len(series.recent) + 1)
    if 0 <= recent < len(series.recent) and np.isfinite(series.recent[recent]):
        return float(series.recent[recent])
    bucket = min((step - series.first_step) // series.bucket_steps, len(series.maximum) - 1)
    value = float(series.maximum[bucket])
    return value if math.isfinite(value) else 0.0
