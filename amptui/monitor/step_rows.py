"""The row of numbers that a step sends to the host, and how rows that arrived become a block of steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from amptui.device.readback import Delivered
from amptui.monitor.lr_schedule import LearningRates
from amptui.probes.gradients import GradientHealth, GradientProbe
from amptui.recipe.precision import ScalerTensors
from amptui.records.own_loop import LossForm
from amptui.records.steps import SECONDS_DECIMALS, Steps, are_finite


class RowLayout(NamedTuple):
    """Which numbers a row holds, in this order: loss, parts, learning rates, scaler, clip norm, gradients."""

    parts: tuple[str, ...] = ()
    """Names of the loss's parts."""
    lrs: int = 0
    """The number of learning rates."""
    scaled: bool = False
    """Whether it holds the scaler's values."""
    clipped: bool = False
    """Whether it holds a clip norm."""
    loss: bool = True
    """Whether it holds a loss: the one of somebody else's loop may not be known."""


LOSS_ALONE = RowLayout()

_row_layout = lru_cache(maxsize=64)(RowLayout)
"""Steps have the layout of earlier ones: looking it up is faster than building it."""


class Step:
    """One optimizer step, filled by whoever knows of it: what nobody fills is unknown, as it stands here."""

    precision = "unknown"
    warming_up = False
    loss: Tensor | None = None
    """The mean over the step's samples; it has a graph if a loop of ours made it of one batch."""
    form: LossForm = ""
    """What the loss is, or why there is none, if it is not simply that of the step."""
    parts: Mapping[str, Tensor] | None = None
    """What the loss is made of, or what else the loop logged."""
    lrs = LearningRates(None)
    scale: ScalerTensors | None = None
    """Of the scaler that made the step, if one did."""
    clip_norm: Tensor | None = None
    """The norm of the unscaled gradients that clipping used."""
    gradients: Tensor | None = None
    """What the gradient probe measured."""
    gradients_scaled = False
    """Whether it measured before unscaling."""
    micro_batches = 1
    samples = 0
    load_start: float | None = None
    """When loading its batches began, by ``perf_counter``; None if nobody measures it."""
    data_seconds = 0.0
    """How long that took."""
    is_timed = True
    """Whether its own time is known: its beginning was seen."""


def row_of(step: Step) -> tuple[RowLayout, list[Tensor]]:
    """The values of a step to send to the host, and the layout that reads them there."""
    loss, parts, lrs = step.loss, step.parts, step.lrs.on_device
    scale, clip_norm, gradients = step.scale, step.clip_norm, step.gradients
    values: list[Tensor] = [] if loss is None else [loss]
    names: tuple[str, ...] = ()
    if parts:
        names = tuple(parts)
        values += parts.values()
    values += lrs
    if scale is not None:
        values += scale
    if clip_norm is not None:
        values.append(clip_norm)
    if gradients is not None:
        values.append(gradients)
    layout = _row_layout(names, len(lrs), scale is not None, clip_norm is not None, loss is not None)
    return layout, values


class StepKind(NamedTuple):
    """What the steps of one block have in common. Who sends steps makes one and keeps it while it is true."""

    epoch: int
    precision: str
    warming_up: bool = False
    layout: RowLayout = LOSS_ALONE
    gradients_scaled: bool = False
    """Whether the row's gradients were measured before unscaling."""
    micro_batches: int = 1
    optimizer: str = ""
    loss_form: LossForm = ""


class StepFacts(NamedTuple):
    """What the host knows about a step when it is sent to the device. A tuple is quick to create."""

    kind: StepKind
    step: int
    samples: int
    data_seconds: float | None
    """None in somebody else's loop, where nobody measures it."""
    load_start: float
    """When loading its batch began, by ``perf_counter``."""
    lr: float | None
    """None if the optimizer has none, or if the row holds it."""
    group_lrs: tuple[float, ...] = ()


class StepBlock(NamedTuple):
    """Steps that are alike and follow each other, as their rows were read."""

    steps: Steps
    ends: Sequence[float]
    """When each ended, by ``perf_counter``."""
    healths: Sequence[GradientHealth | None]
    next_scale: Sequence[Any]
    """The loss scale after each step; None without a scaler."""
    is_measured: bool
    """Whether their rows reached the host."""

    @property
    def is_quiet(self) -> bool:
        """Whether no step has records of its own: see :meth:`is_in_trouble` and :meth:`changes_scale`."""
        steps, losses = self.steps, self.steps.loss
        if any(steps.skipped) or steps.loss_scale != self.next_scale:
            return False
        norms = [health.norm for health in self.healths if health is not None]
        return (losses[0] is None or are_finite(losses)) and all(map(math.isfinite, norms))

    def is_in_trouble(self, index: int) -> bool:
        """Whether it was skipped, or its loss or gradients were not finite."""
        loss, health = self.steps.loss[index], self.healths[index]
        is_finite = (loss is None or math.isfinite(loss)) and (health is None or math.isfinite(health.norm))
        return not is_finite or self.steps.skipped[index]

    def changes_scale(self, index: int) -> bool:
        """Whether the scale is another one after the step."""
        return bool(self.steps.loss_scale[index] != self.next_scale[index])


def read_block(
    delivered: Sequence[Delivered], ends: Sequence[float], time: float, probe: GradientProbe
) -> StepBlock:
    """Read steps that follow each other, at least one; ``time`` is the Unix time of the last of ``ends``."""
    facts, rows, seconds = zip(*delivered, strict=True)
    count, kind, is_measured = len(facts), facts[0].kind, rows[0] is not None
    by_name: Any = StepFacts._make(zip(*facts, strict=True))  # a column in the place of each fact
    layout = kind.layout if is_measured else RowLayout(loss=False)
    columns = iter([list(column) for column in zip(*rows, strict=True)] if is_measured else [])
    nothing: list[Any] = [None] * count
    loss = next(columns) if layout.loss else nothing
    parts = {name: next(columns) for name in layout.parts}
    lr, group_lrs = list(by_name.lr), [list(lrs) for lrs in zip(*by_name.group_lrs, strict=True)]
    if lrs := [next(columns) for _ in range(layout.lrs)]:
        lr, group_lrs = list(lrs[0]), lrs if any(lr != lrs[0] for lr in lrs) else []
    scale, next_scale, growth_tracker, skipped = nothing, nothing, nothing, [False] * count
    if layout.scaled:
        scale, found_inf, next_scale, trackers = (next(columns) for _ in ScalerTensors._fields)
        skipped, growth_tracker = [count > 0 for count in found_inf], [*map(int, trackers)]
    clip_norms = next(columns) if layout.clipped else nothing
    gradients = [*zip(*columns, strict=True)]
    healths: Sequence[GradientHealth | None] = nothing
    if gradients or layout.clipped:
        scales = scale if kind.gradients_scaled else [1.0] * count
        step_values = zip(gradients or [()] * count, clip_norms, scales, strict=True)
        healths = [_health(probe, *values) for values in step_values]
    steps = Steps(
        time=time,
        first_step=facts[0].step,
        count=count,
        epoch=kind.epoch,
        precision=kind.precision,
        skipped=skipped,
        settling=kind.warming_up,
        loss=loss,
        samples=by_name.samples,
        step_seconds=_rounded(seconds) if is_measured else nothing,
        data_seconds=_rounded(by_name.data_seconds),
        lr=lr,
        loss_scale=scale,
        growth_tracker=growth_tracker,
        grad_norm=[None if health is None else health.norm for health in healths],
        nonfinite_gradients=[None if health is None else health.nonfinite_count for health in healths],
        grad_max=[None if health is None else health.largest for health in healths],
        losses=parts,
        micro_batches=kind.micro_batches,
        group_lrs=tuple(group_lrs),
        optimizer=kind.optimizer,
        loss_form=kind.loss_form if is_measured else "",
    )
    return StepBlock(steps, ends, healths, next_scale, is_measured)


def _rounded(seconds: Sequence[float | None]) -> list[float | None]:
    """As a run records them. numpy rounds a column in the time that Python takes for a few numbers."""
    if None in seconds:
        return [None if one is None else round(one, SECONDS_DECIMALS) for one in seconds]
    rounded: list[float | None] = np.round(seconds, SECONDS_DECIMALS).tolist()  # type: ignore[arg-type]
    return rounded


def _health(
    probe: GradientProbe, gradients: Sequence[float], clip_norm: float | None, scale: float
) -> GradientHealth | None:
    """A step's gradients as measured by the probe or by clipping; None if neither did."""
    if gradients and gradients[0] < 0:  # a rank could not measure its part
        gradients = ()
    if not gradients:
        return None if clip_norm is None else GradientHealth(clip_norm, None, None, (), ())
    health = probe.health(gradients, scale)
    # Clipping sums in another order: show the norm that it used.
    return health if clip_norm is None or health.nonfinite_count else replace(health, norm=clip_norm)
