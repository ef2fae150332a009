"""The run's curves: five histories over the same steps, its best loss, and the precision of each step."""

import math
from collections import deque
from dataclasses import dataclass, field

from amptui.records.steps import Column, Steps, are_finite
from amptui.telemetry.history import RateTrack, Track
from amptui.telemetry.view import EMPTY_SERIES, PrecisionSwitch, Series


@dataclass(slots=True, eq=False)
class Tracks:
    """Loss, samples per second, loss scale, skips and headroom of every step."""

    _started: bool = False
    _resuming: bool = False
    _first_step: int = 1
    _loss: Track = field(default_factory=Track.empty)
    _rate: RateTrack = field(default_factory=RateTrack.empty)
    _scale: Track = field(default_factory=Track.empty)
    _skips: Track = field(default_factory=Track.empty)
    _headrooms: Track = field(default_factory=Track.empty)

    @property
    def _all(self) -> tuple[Track | RateTrack, ...]:
        return self._loss, self._rate, self._scale, self._skips, self._headrooms

    @property
    def last_step(self) -> int:
        """The newest step; 0 before the first."""
        return self._loss.next_step - 1 if self._started else 0

    def series(self) -> tuple[Series, Series, Series, Series, Series]:
        """The loss, the samples per second, the loss scale, the skips and the headroom of each step.

        Of several steps the rate is their samples by their seconds. A skip is 1 for a skipped step, 0 for an
        applied one. The headroom is in doublings, for steps whose gradients were measured.
        """
        loss, rate, scale, skips, headrooms = (
            track.snapshot() if self._started else EMPTY_SERIES for track in self._all
        )
        return loss, rate, scale, skips, headrooms

    def expect_resume(self) -> None:
        """The next steps may begin before the newest one: they replace those from there on."""
        self._resuming = True

    def rewind(self, next_step: int) -> None:
        """Forget the steps from ``next_step`` on: they are repeated."""
        if next_step <= self._first_step:
            self._started = False
        for track in self._all:
            track.rewind(next_step)

    def add(self, steps: Steps, headrooms: Column | None = None) -> bool:
        """Add steps; false if they arrive after newer ones and are left out.

        Missing steps before them count as not measured, as does the headroom without ``headrooms``.
        """
        first = steps.first_step
        if not self._started or (self._resuming and first < self._first_step):
            self._loss, self._scale, self._skips, self._headrooms = (
                Track.empty(first_step=first) for _ in range(4)
            )
            self._rate = RateTrack.empty(first_step=first)
            self._first_step, self._started = first, True
        gap = first - self._loss.next_step
        if gap < 0 and not self._resuming:
            return False
        for track in self._all:
            track.rewind(first)
            track.skip(max(0, gap))
        self._resuming = False
        self._loss.extend(steps.loss)
        self._rate.extend(steps.rates(), steps.samples, steps.step_seconds)
        self._scale.extend(steps.loss_scale)
        self._skips.extend(steps.skips)
        if headrooms is None:
            self._headrooms.skip(steps.count)
        else:
            self._headrooms.extend(headrooms)
        return True

    def settle(self) -> None:
        """As :meth:`Track.settle`."""
        for track in self._all:
            track.settle()


SMOOTHING = 0.98
"""The decay of the moving average per finite loss: it spans about 50 steps."""


@dataclass(slots=True, eq=False)
class LossSummary:
    """Exponential moving average and minimum of the finite losses, and the number of unmeasured ones."""

    best: float | None = None
    best_step: int | None = None
    unmeasured_steps: int = 0
    _average: float = 0.0
    _weight: float = 0.0

    def add(self, steps: Steps) -> None:
        """Add steps."""
        losses = steps.loss
        measured = [loss for loss in losses if loss is not None]
        finite = measured if are_finite(measured) else [loss for loss in measured if math.isfinite(loss)]
        self.unmeasured_steps += steps.unmeasured
        if not finite:
            return
        lowest = min(finite)
        if self.best is None or lowest < self.best:
            self.best, self.best_step = lowest, steps.first_step + losses.index(lowest)
        average, weight, share = self._average, self._weight, 1 - SMOOTHING
        for loss in finite:
            average += share * (loss - average)
        for _ in finite:
            before, weight = weight, weight + share * (1 - weight)
            if weight == before:  # as close to 1 as a float gets
                break
        self._average, self._weight = average, weight

    @property
    def smoothed(self) -> float | None:
        """The moving average with bias correction, as in Adam (Kingma and Ba, 2015)."""
        return self._average / self._weight if self._weight else None


KEPT_SWITCHES = 1000
"""So many of the newest switches are kept."""


@dataclass(slots=True, eq=False)
class SwitchList:
    """The run's switches by step, including the precision of the first step."""

    _switches: deque[PrecisionSwitch] = field(default_factory=lambda: deque(maxlen=KEPT_SWITCHES))

    @property
    def switches(self) -> tuple[PrecisionSwitch, ...]:
        """Oldest first."""
        return tuple(self._switches)

    @property
    def current(self) -> str | None:
        """The precision of the newest steps."""
        return self._switches[-1].precision if self._switches else None

    def at(self, step: int) -> str | None:
        """The precision of ``step``; None before the first known switch."""
        for switch in reversed(self._switches):
            if switch.step <= step:
                return switch.precision
        return None

    def switch(self, step: int, precision: str) -> None:
        """Steps from ``step`` on run in ``precision``, which overrides what was known before."""
        while self._switches and self._switches[-1].step >= step:
            self._switches.pop()
        if self.current != precision:
            self._switches.append(PrecisionSwitch(step, precision))

    def observe(self, step: int, precision: str) -> None:
        """Steps from ``step`` on were seen to run in ``precision``.

        Step records arrive a little later than a switch: those from before it do not contradict it.
        """
        if not self._switches or step >= self._switches[-1].step:
            self.switch(step, precision)
        elif len(self._switches) == 1 and precision != self._switches[0].precision:
            self._switches.appendleft(PrecisionSwitch(step, precision))
