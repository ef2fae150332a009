"""How the gradients fit into float16: headroom of each step, and the newest result of each kind."""

import math
from collections import deque
from dataclasses import dataclass, field, replace

from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.steps import Column, Steps, are_finite
from amptui.telemetry.health import LARGEST_FLOAT16
from amptui.telemetry.scaling import ScalerView, judge_scaler
from amptui.telemetry.view import NumericsView, Series

FIRST_SCALE = 65536.0
"""The default initial scale of ``torch.amp.GradScaler``: assumed for float16 until there is a scale, and
after a scale has collapsed."""

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


def headrooms(steps: Steps, float16_scale: float) -> Column | None:
    """The headroom of each step, or None; None for all if no step's gradients were measured.

    A step without a scale did not run in float16: its headroom is what it would be at
    ``float16_scale``. Steps in a precision that autocast does not choose have none: weights that are float16
    themselves have gradients without a scale, and of a mixture nothing can be told.
    """
    maxima, scales = steps.grad_max, steps.loss_scale
    if maxima.count(None) == steps.count:
        return None
    if steps.precision in OTHER_PRECISIONS:
        return [None] * steps.count
    scale = float16_scale if scales[0] is None else scales[0]
    is_usual = scales.count(scales[0]) == len(scales) and 0.0 < scale < math.inf
    if is_usual and are_finite(maxima) and min(maxima) > 0.0:
        log2_scale = math.log2(scale)  # as for single steps, without a call for each
        return [_LOG2_LARGEST - log2_max - log2_scale for log2_max in map(math.log2, maxima)]
    return [
        None if grad_max is None else headroom(grad_max, float16_scale if scale is None else scale)
        for grad_max, scale in zip(maxima, scales, strict=True)
    ]


@dataclass(slots=True, eq=False)
class NumericsWatch:
    """Keeps the newest measurement of each kind, and the last headrooms."""

    _newest: Steps | None = None
    """The row of the newest step with measured gradients, then its headroom and the scale that it is for."""
    _newest_headroom: float | None = None
    _newest_scale: float = FIRST_SCALE
    _recent: deque[tuple[int, float, float]] = field(default_factory=lambda: deque(maxlen=MIN_OF))
    """Step, headroom and the scale that it is for."""
    window: Float16Window | None = None
    trace: ModulesTraced | None = None
    bad_batch: ModulesTraced | None = None
    """The newest trace of a step whose inputs held NaN or Inf."""
    xray: XRayTaken | None = None

    def add(self, steps: Steps, rooms: Column | None, float16_scale: float) -> None:
        """Add steps and their :func:`headrooms`; they replace everything from the first of them on."""
        while self._recent and self._recent[-1][0] >= steps.first_step:
            self._recent.pop()
        if self._newest is not None and self._newest.step >= steps.first_step:
            self._newest = None
        if rooms is None:
            return
        scales = [float16_scale if scale is None else scale for scale in steps.loss_scale]
        self._newest = newest = steps.newest("grad_max")
        assert newest is not None, "it has headrooms"
        last = newest.step - steps.first_step
        self._newest_headroom, self._newest_scale = rooms[last], scales[last]
        numbers = range(steps.first_step, steps.last_step + 1)
        recent = slice(-MIN_OF if None not in rooms else 0, None)
        measured = zip(numbers[recent], rooms[recent], scales[recent], strict=True)
        self._recent.extend((step, room, scale) for step, room, scale in measured if room is not None)

    def view(self, scaler: ScalerView, series: Series, precision: str | None, low: str) -> NumericsView:
        """Everything. ``series``: the run's headrooms; ``precision``: the confirmed one.

        ``low``: the AMP precision that runs, or that an A/B test alternates with another.
        """
        newest, finding = self._newest, judge_scaler(scaler, self._explaining(scaler))
        view = NumericsView(
            headrooms=series,
            scaler=replace(finding, freshness="old") if scaler.steps and low != "fp16" else finding,
            window=self.window,
            trace=self.trace,
            bad_batch=self.bad_batch,
            xray=self.xray,
        )
        if newest is None:
            return view
        view = replace(
            view,
            grad_norm=newest.grad_norm[0],
            grad_max=newest.grad_max[0],
            nonfinite_gradients=newest.nonfinite_gradients[0],
            measured_step=newest.step,
            headroom_scale=self._newest_scale,
        )
        if precision in OTHER_PRECISIONS:
            return view
        return replace(
            view,
            headroom=self._newest_headroom,
            hypothetical=newest.loss_scale[0] is None,
            min_headroom=self._least(self._newest_scale),
        )

    def _least(self, scale: float) -> float | None:
        """The minimum recent headroom, each converted to ``scale``; -inf if any step overflowed."""
        if not 0 < scale < math.inf:
            return None
        least: dict[float, float] = {}  # at each scale: many steps, but only a scale or two
        for _, room, at in self._recent:
            least[at] = min(room, least.get(at, math.inf))
        rooms = (room + (math.log2(at) - math.log2(scale)) for at, room in least.items())
        return min(rooms, default=None)

    def _explaining(self, scaler: ScalerView) -> ModulesTraced | None:
        """The newest trace, if it still explains the newest skip."""
        trace, skip = self.trace, scaler.newest_skip
        if skip is not None and self.bad_batch is not None and self.bad_batch.step == skip.step:
            trace = self.bad_batch
        if trace is None or trace.precision != "fp16" or skip is None:
            return None
        if trace.cause == "buffer" and not trace.modules:
            return None  # statistics that a skipped step left behind
        return trace if skip.step - trace.step <= TRACE_HOLDS_STEPS else None
