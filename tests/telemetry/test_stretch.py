"""Stretches of steps: their columns say what the steps say one by one."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amptui.records.steps import StepRecord, Steps
from amptui.telemetry.numerics import headroom, headrooms
from amptui.telemetry.stretch import are_finite, stretches
from tests.telemetry.record_strategies import BLOCKS


def is_timed(step: StepRecord) -> bool:
    return not step.skipped and step.step_seconds is not None and 0.0 < step.step_seconds < math.inf


def same(values: Any, expected: list[Any]) -> bool:
    """Whether they are equal, NaN to NaN."""
    return [*map(repr, values)] == [*map(repr, expected)]


@given(st.lists(BLOCKS, max_size=8))
def test_the_columns_of_a_stretch_are_its_steps(blocks: list[Steps]) -> None:
    found = list(stretches(blocks))
    assert [block for stretch in found for block in stretch.blocks] == blocks
    for stretch in found:
        steps = [step for block in stretch.blocks for step in block.one_by_one()]
        assert len(stretch) == len(steps)
        assert [step.step for step in steps] == list(
            range(stretch.first_step, stretch.first_step + len(steps))
        )
        assert same(stretch.losses, [step.loss for step in steps])
        timed = [step for step in steps if is_timed(step)]
        assert same(stretch.timed_seconds, [step.step_seconds for step in timed])
        assert same(stretch.timed_samples, [step.samples for step in timed])
        waits = [math.nan if step.data_seconds is None else step.data_seconds for step in timed]
        assert same(stretch.timed_data_seconds, waits)
        has_samples = any(step.samples for step in steps)
        rates = [
            step.samples / step.step_seconds if has_samples and is_timed(step) and step.step_seconds else None
            for step in steps
        ]
        assert same(stretch.rates, rates)
        assert stretch.skipped == sum(step.skipped for step in steps)
        unmeasured = [step.loss is None and not step.loss_form for step in steps]
        skips = [
            None if lacks else float(step.skipped) for step, lacks in zip(steps, unmeasured, strict=True)
        ]
        assert same(stretch.skips, skips)
        assert stretch.unmeasured == sum(unmeasured)


@given(st.lists(BLOCKS, min_size=1, max_size=4), st.floats(0.0))
def test_the_headroom_of_many_steps_is_that_of_each(blocks: list[Steps], scale: float) -> None:
    for stretch in stretches(blocks):
        found = headrooms(stretch, scale)
        if found is None or stretch.precision not in ("fp32", "fp16"):
            continue
        steps = [step for block in stretch.blocks for step in block.one_by_one()]
        assert same(
            found,
            [
                None
                if step.grad_max is None
                else headroom(step.grad_max, scale if step.loss_scale is None else step.loss_scale)
                for step in steps
            ],
        )


@given(st.lists(st.none() | st.floats()))
def test_a_column_is_finite_if_all_of_it_is(column: list[float | None]) -> None:
    if are_finite(column):
        assert all(value is not None and math.isfinite(value) for value in column)
