"""The run's curves: five histories over the same steps, its best loss, and the precision of each step."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from amptui.records.steps import Column
from amptui.telemetry.history import RateTrack, Track
from amptui.telemetry.stretch import Stretch, are_finite
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
    def last_step(self) -> int:
        """The newest step; 0 before the first."""
        return self._loss.next_step - 1 if self._started else 0

    @property
    def loss(self) -> Series:
        """The loss of each step."""
        return self._loss.snapshot() if self._started else EMPTY_SERIES

    @property
    def samples_rate(self) -> Series:
        """The samples per second of each applied step; of several steps, their samples by their seconds."""
        return self._rate.snapshot() if self._started else EMPTY_SERIES

    @property
    def loss_scale(self) -> Series:
        """The loss scale of each step."""
        return self._scale.snapshot() if self._started else EMPTY_SERIES

    @property
    def skips(self) -> Series:
        """1 for a skipped step, 0 for an applied one."""
        return self._skips.snapshot() if self._started else EMPTY_SERIES

    @property
    def headrooms(self) -> Series:
        """Doublings to overflow, for steps whose gradients were measured."""
        return self._headrooms.snapshot() if self._started else EMPTY_SERIES

    def expect_resume(self) -> None:
        """The next stretch may begin before the newest step: its steps replace those from there on."""
        self._resuming = True

    def rewind(self, next_step: int) -> None:
        """Forget the steps from ``next_step`` on: they are repeated."""
        if next_step <= self._first_step:
            self._started = False
        for track in (self._loss, self._rate, self._scale, self._skips, self._headrooms):
            track.rewind(next_step)

    def add(self, stretch: Stretch, headrooms: Column | None = None) -> bool:
        """Add a stretch of steps; false if it arrives after newer steps and is left out.

        Missing steps before it count as not measured, as does the headroom without ``headrooms``.
        """
        first = stretch.first_step
        if not self._started or (self._resuming and first < self._first_step):
            self._start(first)
            self._started = True
        tracks = (self._loss, self._rate, self._scale, self._skips, self._headrooms)
        gap = first - self._loss.next_step
        if gap < 0 and not self._resuming:
            return False
        for track in tracks:
            track.rewind(first)
            track.skip(max(0, gap))
        self._resuming = False
        self._loss.extend(stretch.losses)
        self._rate.extend(
            stretch.rates,
            stretch.samples,
            stretch.seconds,
        )
        self._scale.extend(stretch.loss_scales)
        self._skips.extend(stretch.skips)
        if headrooms is None:
            self._headrooms.skip(len(stretch))
        else:
            self._headrooms.extend(headrooms)
        return True

    def settle(self) -> None:
        """As :meth:`Track.settle`."""
        for track in (self._loss, self._rate, self._scale, self._skips, self._headrooms):
            track.settle()

    def _start(self, first_step: int) -> None:
        self._first_step = first_step
        self._loss = Track.empty(first_step=first_step)
        self._rate = RateTrack.empty(first_step=first_step)
        self._scale = Track.empty(first_step=first_step)
        self._skips = Track.empty(first_step=first_step)
        self._headrooms = Track.empty(first_step=first_step)


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

    def add(self, stretch: Stretch) -> None:
        """Add a stretch of steps."""
        losses = stretch.losses
        finite = losses if are_finite(losses) else _finite(losses)
        self.unmeasured_steps += stretch.unmeasured
        if not finite:
            return
        self._smooth(finite)
        lowest = min(finite)
        if self.best is None or lowest < self.best:
            self.best, self.best_step = lowest, stretch.first_step + losses.index(lowest)

    def _smooth(self, finite: Sequence[float]) -> None:
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


def _finite(losses: Column) -> list[float]:
    return [loss for loss in losses if loss is not None and -math.inf < loss < math.inf]


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
