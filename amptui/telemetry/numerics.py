"""How the gradients fit into float16: headroom of each step, and the newest result of each kind."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import base_precision
from amptui.records.steps import Column
from amptui.telemetry.health import LARGEST_FLOAT16
from amptui.telemetry.scaler import ScalerWatch
from amptui.telemetry.scaling import ScalerFacts, judge_scaler
from amptui.telemetry.stretch import Stretch, are_finite
from amptui.telemetry.view import GrowthOutlook, NumericsView, ScalerView, Series

FIRST_SCALE = 65536.0
"""The default initial scale of ``torch.amp.GradScaler``: assumed for float16 until there is a scale, and
after a scale has collapsed."""

GROWTH_FACTOR = 2.0
"""The default growth factor of ``torch.amp.GradScaler``."""

MIN_OF = 256
"""The minimum headroom is over so many of the newest measured steps."""

TRACE_HOLDS_STEPS = 300
"""A trace still explains a skip up to so many steps later: a lasting problem is traced again every few
hundred steps."""

_LOG2_LARGEST = math.log2(LARGEST_FLOAT16)


def headroom(grad_max: float, scale: float) -> float | None:
    """log2(65504 / (grad_max scale)): how many doublings of the scale to overflow.

    -inf if ``grad_max`` is NaN or Inf; None if all gradients are zero or the scale is invalid. It is an upper
    bound, since it is computed from the weights' gradients: those between the layers may be larger.
    """
    if not 0.0 < scale < math.inf:
        return None
    if not math.isfinite(grad_max):
        return -math.inf
    # Not of their product, which may overflow or lose precision.
    return _LOG2_LARGEST - math.log2(grad_max) - math.log2(scale) if grad_max > 0.0 else None


def headrooms(stretch: Stretch, float16_scale: float) -> Column | None:
    """The headroom of each step, or None; None for all if no step's gradients were measured.

    A step without a scale did not run in float16: its headroom is what it would be at
    ``float16_scale``. Steps in a precision that autocast does not choose have none: weights that are float16
    themselves have gradients without a scale, and of a mixture nothing can be told.
    """
    if stretch.grad_maxima is None:
        return None
    if base_precision(stretch.precision) in OTHER_PRECISIONS:
        return [None] * len(stretch)
    maxima, scales = stretch.grad_maxima, stretch.loss_scales
    scale = float16_scale if scales[0] is None else scales[0]
    if scales.count(scales[0]) == len(scales) and 0.0 < scale < math.inf and _are_positive(maxima):
        log2_scale = math.log2(scale)  # the usual case: as for single steps, without a call for each
        return [_LOG2_LARGEST - log2_max - log2_scale for log2_max in map(math.log2, maxima)]
    return [
        None if grad_max is None else headroom(grad_max, float16_scale if scale is None else scale)
        for grad_max, scale in zip(maxima, scales, strict=True)
    ]


def _are_positive(maxima: Column) -> TypeGuard[Sequence[float]]:
    return are_finite(maxima) and min(maxima) > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One step's gradients, and the scale that their headroom is for."""

    step: int
    norm: float | None
    largest: float | None
    nonfinite: int | None
    headroom: float | None
    scale: float
    hypothetical: bool


@dataclass(slots=True, eq=False)
class NumericsWatch:
    """Keeps the newest measurement of each kind, and the last headrooms."""

    _newest: _Measured | None = None
    _recent: deque[tuple[int, float, float]] = field(default_factory=lambda: deque(maxlen=MIN_OF))
    """Step, headroom and the scale that it is for."""
    _forward_overflows: deque[int] = field(default_factory=lambda: deque(maxlen=MIN_OF))
    """Those steps whose loss was not finite: their gradients say nothing about the scale."""
    window: Float16Window | None = None
    trace: ModulesTraced | None = None
    xray: XRayTaken | None = None

    def add(self, stretch: Stretch, rooms: Column | None, float16_scale: float) -> None:
        """Add a stretch and its :func:`headrooms`; it replaces everything from its first step on."""
        while self._recent and self._recent[-1][0] >= stretch.first_step:
            self._recent.pop()
        if self._newest is not None and self._newest.step >= stretch.first_step:
            self._newest = None
        if rooms is None:
            return
        scales = [float16_scale if scale is None else scale for scale in stretch.loss_scales]
        self._add_rooms(stretch, rooms, scales)
        maxima = stretch.grad_maxima or ()
        last = next(index for index in reversed(range(len(maxima))) if maxima[index] is not None)
        record = stretch.one(last)
        self._newest = _Measured(
            step=record.step,
            norm=record.grad_norm,
            largest=record.grad_max,
            nonfinite=record.nonfinite_gradients,
            headroom=rooms[last],
            scale=scales[last],
            hypothetical=record.loss_scale is None,
        )

    def _add_rooms(self, stretch: Stretch, rooms: Column, scales: Sequence[float]) -> None:
        steps = range(stretch.first_step, stretch.first_step + len(stretch))
        if None in rooms:
            measured = zip(steps, rooms, scales, strict=True)
            self._recent.extend((step, room, scale) for step, room, scale in measured if room is not None)
        else:
            newest = slice(-MIN_OF, None)
            self._recent.extend(zip(steps[newest], rooms[newest], scales[newest], strict=True))  # type: ignore[arg-type]
        if not are_finite(stretch.losses):
            self._forward_overflows.extend(
                step
                for step, room, loss in zip(steps, rooms, stretch.losses, strict=True)
                if room is not None and loss is not None and not math.isfinite(loss)
            )

    def view(self, watch: ScalerWatch, series: Series, precision: str | None, low: str) -> NumericsView:
        """Everything. ``series``: the run's headrooms; ``precision``: the confirmed one.

        ``low``: the AMP precision that runs, or that an A/B test alternates with another.
        """
        newest, facts = self._newest, watch.facts()
        has_room = base_precision(precision or "") not in OTHER_PRECISIONS
        return NumericsView(
            grad_norm=newest.norm if newest else None,
            grad_max=newest.largest if newest else None,
            nonfinite_gradients=newest.nonfinite if newest else None,
            measured_step=newest.step if newest else None,
            headroom=newest.headroom if newest and has_room else None,
            headroom_scale=newest.scale if newest else None,
            hypothetical=newest is not None and has_room and newest.hypothetical,
            min_headroom=self._least(newest.scale) if newest and has_room else None,
            headrooms=series,
            outlook=self._outlook(watch.view()) if precision == "fp16" else None,
            scaler=replace(
                judge_scaler(facts, self._explaining(facts)), is_past=facts.steps > 0 and low != "fp16"
            ),
            window=self.window,
            trace=self.trace,
            xray=self.xray,
        )

    def _least(self, scale: float) -> float | None:
        """The minimum recent headroom, each converted to ``scale``; -inf if any step overflowed."""
        if not 0 < scale < math.inf:
            return None
        least = self._min_by_scale()
        return min((_moved(room, at, scale) for at, room in least.items()), default=None)

    def _min_by_scale(self, *, overflowed: bool = True) -> dict[float, float]:
        """The minimum recent headroom at each scale: many steps, but only a scale or two."""
        least: dict[float, float] = {}
        for _, room, at in self._recent:
            if room <= least.get(at, math.inf) and (overflowed or room > -math.inf):
                least[at] = room
        return least

    def _outlook(self, scaler: ScalerView) -> GrowthOutlook | None:
        """When the scale grows next, and whether recent gradients would still fit; None if unknown."""
        newest = self._newest
        if newest is None or newest.hypothetical or newest.headroom == -math.inf:
            return None
        scale, tracker, interval = scaler.scale, scaler.growth_tracker, scaler.growth_interval
        if tracker is None or interval is None or interval <= tracker:
            return None
        if scale is None or not 0 < scale < math.inf:
            return None
        steps = interval - tracker
        for step, room, at in reversed(self._recent):
            if room == -math.inf and at <= GROWTH_FACTOR * scale and step not in self._forward_overflows:
                return GrowthOutlook(steps=steps, overflow_step=step, overflow_scale=at)
        finite = self._min_by_scale(overflowed=False)
        if not finite:
            return None
        now = min(_moved(room, at, scale) for at, room in finite.items())
        return GrowthOutlook(steps=steps, headroom_now=now, headroom_then=now - math.log2(GROWTH_FACTOR))

    def _explaining(self, facts: ScalerFacts) -> ModulesTraced | None:
        """The newest trace, if it still explains the newest skip."""
        trace, skip = self.trace, facts.newest_skip
        if trace is None or trace.precision != "fp16" or skip is None:
            return None
        if trace.cause == "buffer" and not trace.modules:
            return None  # statistics that a skipped step left behind
        return trace if skip.step - trace.step <= TRACE_HOLDS_STEPS else None


def _moved(room: float, at: float, scale: float) -> float:
    """A headroom at the scale ``at``, converted to ``scale``."""
    return room + (math.log2(at) - math.log2(scale))
