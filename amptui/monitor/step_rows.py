"""The row of numbers that a step sends to the host, and how rows that arrived become a block of steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from amptui.device.readback import Delivered
from amptui.probes.gradients import GradientHealth, GradientProbe
from amptui.recipe.lr_schedule import LearningRates
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
    """One optimizer step, filled by whoever knows of it: what nobody fills is unknown, as it stands here.

    Sent, it keeps what the host knows until its row is there; its tensors are in the row.
    """

    precision = "unknown"
    warming_up = False
    loss: Tensor | float | None = None
    """The mean over the step's samples; a tensor has a graph if a loop of ours made it of one batch."""
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
    number = 0
    """Steps are counted from 1; as the next two, it is set as the step is sent."""
    epoch = 1
    ended = 0.0
    """When it ended on the host, by ``perf_counter``."""
    layout = LOSS_ALONE

    def row(self) -> list[Tensor | float]:
        """The values to send to the host, which ``layout`` reads there; the step holds them no longer."""
        loss, parts, lrs = self.loss, self.parts, self.lrs.on_device
        scale, clip_norm, gradients = self.scale, self.clip_norm, self.gradients
        values: list[Tensor | float] = [] if loss is None else [loss]
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
        self.layout = _row_layout(names, len(lrs), scale is not None, clip_norm is not None, loss is not None)
        self.loss = self.parts = self.scale = self.clip_norm = self.gradients = None
        if lrs:
            self.lrs = LearningRates(None)
        return values

    def likeness(self) -> tuple[object, ...]:
        """What the steps of one block have in common."""
        return (
            *(self.epoch, self.precision, self.warming_up, self.layout, self.gradients_scaled),
            *(self.micro_batches, self.form, len(self.lrs.groups)),
        )


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
    delivered: Sequence[Delivered], ends: Sequence[float], time: float, probe: GradientProbe, optimizer: str
) -> StepBlock:
    """Read steps that follow each other, at least one; ``time`` is the Unix time of the last of ``ends``."""
    sent, rows, seconds = zip(*delivered, strict=True)
    count, first, is_measured = len(sent), sent[0], rows[0] is not None
    layout = first.layout if is_measured else RowLayout(loss=False)
    columns = iter([list(column) for column in zip(*rows, strict=True)] if is_measured else [])
    nothing: list[Any] = [None] * count
    loss = next(columns) if layout.loss else nothing
    parts = {name: next(columns) for name in layout.parts}
    lr = [step.lrs.first for step in sent]
    group_lrs = [list(lrs) for lrs in zip(*(step.lrs.groups for step in sent), strict=True)]
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
        scales = scale if first.gradients_scaled else [1.0] * count
        step_values = zip(gradients or [()] * count, clip_norms, scales, strict=True)
        healths = [_health(probe, *values) for values in step_values]
    steps = Steps(
        time=time,
        first_step=first.number,
        count=count,
        epoch=first.epoch,
        precision=first.precision,
        skipped=skipped,
        settling=first.warming_up,
        loss=loss,
        samples=[step.samples for step in sent],
        step_seconds=_rounded(seconds) if is_measured else nothing,
        data_seconds=_rounded([None if step.load_start is None else step.data_seconds for step in sent]),
        lr=lr,
        loss_scale=scale,
        growth_tracker=growth_tracker,
        grad_norm=[None if health is None else health.norm for health in healths],
        nonfinite_gradients=[None if health is None else health.nonfinite_count for health in healths],
        grad_max=[None if health is None else health.largest for health in healths],
        losses=parts,
        micro_batches=first.micro_batches,
        group_lrs=tuple(group_lrs),
        optimizer=optimizer,
        loss_form=first.form if is_measured else "",
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
