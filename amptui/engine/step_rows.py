"""The row of numbers that a step sends to the host, and how rows of like steps become a block of records."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from amptui.engine.lr_schedule import LearningRates
from amptui.engine.precision import ScalerTensors
from amptui.engine.probes.gradients import GradientHealth, GradientProbe
from amptui.engine.readback import Delivered
from amptui.records.own_loop import LossForm
from amptui.records.steps import SECONDS_DECIMALS, Steps


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


_LOSS_ALONE = RowLayout()

_row_layout = lru_cache(maxsize=64)(RowLayout)
"""Steps have the layout of earlier ones: looking it up is faster than building it."""


class StepTensors(NamedTuple):
    """What one step left on the device."""

    precision: str
    loss: Tensor
    """The mean over the step's samples; it has a graph if the step has one batch."""
    parts: Mapping[str, Tensor]
    lrs: LearningRates
    scaler: ScalerTensors | None
    clip_norm: Tensor | None
    """The norm of the unscaled gradients that clipping used."""
    gradients: Tensor | None
    """What the gradient probe measured."""
    gradients_scaled: bool
    """Whether it measured before unscaling."""


def row_of(
    loss: Tensor | None,
    parts: Mapping[str, Tensor] | None,
    lrs: Sequence[Tensor],
    scaler: ScalerTensors | None,
    clip_norm: Tensor | None,
    gradients: Tensor | None,
) -> tuple[RowLayout, list[Tensor]]:
    """The values of a step to send to the host, and the layout that reads them there.

    ``lrs`` are the learning rates that are on the device.
    """
    is_short = scaler is None and gradients is None and clip_norm is None and not parts and not lrs
    if is_short and loss is not None:
        return _LOSS_ALONE, [loss]  # the usual case without a scaler
    values: list[Tensor] = [] if loss is None else [loss]
    names: tuple[str, ...] = ()
    if parts:
        names = tuple(parts)
        values += parts.values()
    values += lrs
    if scaler is not None:
        values += scaler
    if clip_norm is not None:
        values.append(clip_norm)
    if gradients is not None:
        values.append(gradients)
    layout = _row_layout(names, len(lrs), scaler is not None, clip_norm is not None, loss is not None)
    return layout, values


class StepKind(NamedTuple):
    """What the steps of one block have in common. Who sends steps makes one and keeps it while it is true."""

    epoch: int
    precision: str
    warming_up: bool = False
    layout: RowLayout = RowLayout()
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


def runs_of_like_steps(delivered: Sequence[Delivered]) -> Iterator[Sequence[Delivered]]:
    """Split ``delivered``, at least one step, where steps are no longer alike: one block has one layout."""
    start, count = 0, len(delivered)
    while start < count:
        facts, row, _ = delivered[start]
        kind, groups, width = facts.kind, len(facts.group_lrs), -1 if row is None else len(row)
        end = start + 1
        while end < count:
            facts, row, _ = delivered[end]
            if facts.kind is not kind and facts.kind != kind:
                break
            if len(facts.group_lrs) != groups or (-1 if row is None else len(row)) != width:
                break
            end += 1
        yield delivered[start:end]
        start = end


class StepColumns:
    """Steps that are alike, at least one, in columns."""

    def __init__(self, delivered: Sequence[Delivered], probe: GradientProbe) -> None:
        facts, rows, seconds = zip(*delivered, strict=True)
        self.facts: tuple[StepFacts, ...] = facts
        self.count = len(facts)
        self.kind = kind = facts[0].kind
        layout = kind.layout
        by_name: Any = StepFacts._make(zip(*facts, strict=True))  # a column in the place of each fact
        nothing: list[Any] = [None] * self.count
        self.scaled = layout.scaled
        self.is_measured = rows[0] is not None
        columns = iter([list(column) for column in zip(*rows, strict=True)] if self.is_measured else [])
        self.loss: list[float | None] = next(columns) if layout.loss and self.is_measured else nothing
        self.parts = {name: next(columns) for name in layout.parts} if self.is_measured else {}
        lrs = [next(columns) for _ in range(layout.lrs)] if self.is_measured else []
        self.lr: list[float | None] = [*by_name.lr]
        self.group_lrs = [list(lrs) for lrs in zip(*by_name.group_lrs, strict=True)]
        if lrs:
            self.lr = list(lrs[0])
            self.group_lrs = lrs if any(lr != lrs[0] for lr in lrs) else []
        self.scale, self.found_inf, self.next_scale, self.growth_tracker = nothing, nothing, nothing, nothing
        if self.scaled and self.is_measured:
            self.scale, self.found_inf, self.next_scale = next(columns), next(columns), next(columns)
            self.growth_tracker = [int(tracker) for tracker in next(columns)]
        self.steps: Sequence[int] = by_name.step
        self.samples: Sequence[int] = by_name.samples
        self.load_start: Sequence[float] = by_name.load_start
        self.seconds = _rounded(seconds) if self.is_measured else nothing
        self.data_seconds = _rounded(by_name.data_seconds)
        clip_norms: list[float | None] = next(columns) if layout.clipped and self.is_measured else nothing
        gradients = [*zip(*columns, strict=True)]
        self.healths: Sequence[GradientHealth | None] = nothing
        if gradients or layout.clipped:
            scales = self.scale if kind.gradients_scaled else [1.0] * self.count
            step_values = zip(gradients or [()] * self.count, clip_norms, scales, strict=True)
            self.healths = [_health(probe, *values) for values in step_values]

    @property
    def is_quiet(self) -> bool:
        """Whether no step has records of its own: see :meth:`is_in_trouble` and :meth:`changes_scale`."""
        losses: Sequence[Any] = self.loss if self.loss[0] is not None else ()
        norms = [health.norm for health in self.healths if health is not None]
        if self.scaled and self.is_measured and (any(self.found_inf) or self.scale != self.next_scale):
            return False
        return all(map(math.isfinite, losses)) and all(map(math.isfinite, norms))

    def is_skipped(self, index: int) -> bool:
        """Whether the scaler dropped the step."""
        return self.scaled and self.is_measured and self.found_inf[index] > 0

    def is_in_trouble(self, index: int) -> bool:
        """Whether it was skipped, or its loss or gradients were not finite."""
        loss, health = self.loss[index], self.healths[index]
        is_finite = (loss is None or math.isfinite(loss)) and (health is None or math.isfinite(health.norm))
        return not is_finite or self.is_skipped(index)

    def changes_scale(self, index: int) -> bool:
        """Whether the scale is another one after the step."""
        return self.scaled and self.is_measured and bool(self.next_scale[index] != self.scale[index])

    def block(self, start: int, end: int, time: float) -> Steps:
        """The record of the steps from index ``start`` to before ``end``, which ended at ``time``."""
        part, kind, healths = slice(start, end), self.kind, self.healths[start:end]
        return Steps(
            time=time,
            first_step=self.steps[start],
            count=end - start,
            epoch=kind.epoch,
            precision=kind.precision,
            skipped=[self.is_skipped(index) for index in range(start, end)],
            settling=kind.warming_up,
            loss=self.loss[part],
            samples=self.samples[part],
            step_seconds=self.seconds[part],
            data_seconds=self.data_seconds[part],
            lr=self.lr[part],
            loss_scale=self.scale[part],
            growth_tracker=self.growth_tracker[part],
            grad_norm=[None if health is None else health.norm for health in healths],
            nonfinite_gradients=[None if health is None else health.nonfinite_count for health in healths],
            grad_max=[None if health is None else health.largest for health in healths],
            losses={name: column[part] for name, column in self.parts.items()},
            micro_batches=kind.micro_batches,
            group_lrs=tuple(column[part] for column in self.group_lrs),
            optimizer=kind.optimizer,
            loss_form=kind.loss_form if self.is_measured else "",
        )


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
