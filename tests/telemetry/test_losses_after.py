"""Losses of both precisions after as many steps as both had."""

import math
from itertools import chain

import pytest

from amptui.records.steps import StepRecord
from amptui.telemetry.comparison import MIN_STEPS_AFTER, LossesAfter, losses_after
from tests.builders import assert_holds, view_of
from tests.telemetry.record_samples import step, steps


def compared(*batches: list[StepRecord]) -> LossesAfter | None:
    view = view_of(*chain(*batches))
    return losses_after(view, view.comparison)


def falling(first: int, last: int, precision: str, begin: float) -> list[StepRecord]:
    """A loss that falls by a thousandth a step from ``begin`` on."""
    return [
        step(n, precision=precision, loss=begin - (n - first) / 1000, step_seconds=0.004)
        for n in range(first, last + 1)
    ]


def test_both_losses_are_of_the_same_number_of_steps_of_the_longest_stretch_of_either() -> None:
    longest = falling(1, 300, "fp32", 2.0), falling(301, 420, "fp16", 1.0)
    for others in ((), (falling(421, 450, "fp32", 5.0), falling(451, 480, "fp16", 7.0))):
        # The mean of the last 20 of 120 steps, the 110th on average.
        expected = {"steps": 120, "baseline": 2.0 - 0.1095, "low": 1.0 - 0.1095}
        assert_holds(compared(*longest, *others), expected)


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [steps(1, 300)],
        [steps(1, 300), steps(301, 300 + MIN_STEPS_AFTER - 1, precision="fp16")],
    ],
    ids=["nothing", "one side", "too few"],
)
def test_too_little_is_not_compared(batches: list[list[StepRecord]]) -> None:
    assert compared(*batches) is None


@pytest.mark.parametrize(("loss", "told"), [(math.nan, math.nan), (math.inf, math.nan), (None, None)])
@pytest.mark.parametrize("later_steps", [0, 6000])
def test_what_was_not_finite_and_what_was_not_measured_are_told_apart(
    loss: float | None, told: float | None, later_steps: int
) -> None:
    amp = steps(1001, 1504, precision="fp16", loss=loss)
    losses = compared(steps(1, 1000), amp, steps(1505, 1505 + later_steps))
    assert losses is not None
    assert losses.steps == 504
    assert losses.low == (None if told is None else pytest.approx(told, nan_ok=True))
