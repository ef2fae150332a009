"""Turns the delivered rows of like steps into columns, and columns into the blocks that are recorded."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from amptui.engine.probes.gradients import GradientHealth, GradientProbe
from amptui.engine.readback import Delivered
from amptui.engine.step_row import RowLayout
from amptui.loop_records import LossForm
from amptui.steps import SECONDS_DECIMALS, Steps


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


def likeness(delivered: Delivered) -> tuple[object, ...]:
    """What steps of one block have in common."""
    facts, row, _ = delivered
    return (
        *(facts.epoch, facts.precision, facts.warming_up, facts.layout, facts.gradients_scaled),
        *(facts.micro_batches, len(facts.group_lrs), facts.optimizer, facts.loss_form),
        -1 if row is None else len(row),
    )


class StepColumns:
    """Steps that are alike, at least one, in columns."""

    def __init__(self, delivered: Sequence[Delivered], probe: GradientProbe) -> None:
        facts: list[StepFacts] = [facts for facts, _, _ in delivered]
        self.facts = facts
        self.count = len(delivered)
        nothing: list[Any] = [None] * self.count
        first, layout = facts[0], facts[0].layout
        self.scaled = layout.scaled
        self.is_measured = delivered[0][1] is not None
        rows = [row for _, row, _ in delivered if row is not None]
        columns = iter([list(column) for column in zip(*rows, strict=True)])
        self.loss: list[float | None] = next(columns) if layout.loss and rows else nothing
        self.parts = {name: next(columns) for name in layout.parts} if rows else {}
        lrs = [next(columns) for _ in range(layout.lrs)] if rows else []
        self.lr: list[float | None] = [one.lr for one in facts]
        self.group_lrs = [list(lrs) for lrs in zip(*(one.group_lrs for one in facts), strict=True)]
        if lrs:
            self.lr = list(lrs[0])
            self.group_lrs = lrs if any(lr != lrs[0] for lr in lrs) else []
        self.scale, self.found_inf, self.next_scale, self.growth_tracker = nothing, nothing, nothing, nothing
        if self.scaled and rows:
            self.scale, self.found_inf, self.next_scale = next(columns), next(columns), next(columns)
            self.growth_tracker = [int(tracker) for tracker in next(columns)]
        self.seconds = [
            None if seconds is None or not rows else round(seconds, SECONDS_DECIMALS)
            for _, _, seconds in delivered
        ]
        self.data_seconds = [
            None if one.data_seconds is None else round(one.data_seconds, SECONDS_DECIMALS) for one in facts
        ]
        clip_norms: list[float | None] = next(columns) if layout.clipped and rows else nothing
        gradients = [*zip(*columns, strict=True)] or [()] * self.count
        scales = self.scale if first.gradients_scaled else [1.0] * self.count
        self.healths = [
            _health(probe, *measured) for measured in zip(gradients, clip_norms, scales, strict=True)
        ]

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
        part, first, healths = slice(start, end), self.facts[start], self.healths[start:end]
        return Steps(
            time=time,
            first_step=first.step,
            count=end - start,
            epoch=first.epoch,
            precision=first.precision,
            skipped=self.is_skipped(start),
            settling=first.warming_up,
            loss=self.loss[part],
            samples=[facts.samples for facts in self.facts[part]],
            step_seconds=self.seconds[part],
            data_seconds=self.data_seconds[part],
            lr=self.lr[part],
            loss_scale=self.scale[part],
            growth_tracker=self.growth_tracker[part],
            grad_norm=[None if health is None else health.norm for health in healths],
            nonfinite_gradients=[None if health is None else health.nonfinite_count for health in healths],
            grad_max=[None if health is None else health.largest for health in healths],
            losses={name: column[part] for name, column in self.parts.items()},
            micro_batches=first.micro_batches,
            group_lrs=tuple(column[part] for column in self.group_lrs),
            optimizer=first.optimizer,
            loss_form=first.loss_form if self.is_measured else "",
        )


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
