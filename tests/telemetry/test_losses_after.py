"""Losses of both precisions after as many steps as both had."""

import math

import pytest

from amptui.records.steps import StepRecord
from amptui.telemetry.comparison import MIN_STEPS_AFTER, LossesAfter, losses_after
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from tests.telemetry.record_samples import step, steps


def view_of(*batches: list[StepRecord]) -> SessionView:
    session = Session()
    for batch in batches:
        session.fold(batch)
    return session.view()


def compared(view: SessionView) -> LossesAfter | None:
    return losses_after(view, view.comparison)


def falling(first: int, last: int, precision: str, begin: float) -> list[StepRecord]:
    """A loss that falls by a thousandth a step from ``begin`` on."""
    return [
        step(n, precision=precision, loss=begin - (n - first) / 1000, step_seconds=0.004)
        for n in range(first, last + 1)
    ]


def test_both_losses_are_of_the_same_number_of_steps() -> None:
    losses = compared(view_of(falling(1, 300, "fp32", 2.0), falling(301, 420, "fp16", 1.0)))
    assert losses is not None
    # The mean of the last 20 of 120 steps, the 110th on average.
    assert losses.steps == 120
    assert losses.baseline == pytest.approx(2.0 - 0.1095)
    assert losses.low == pytest.approx(1.0 - 0.1095)


def test_the_longest_stretch_of_either_counts() -> None:
    view = view_of(
        falling(1, 100, "fp32", 2.0),
        falling(101, 200, "fp16", 1.0),
        falling(201, 230, "fp32", 5.0),
        falling(231, 260, "fp16", 7.0),
    )
    losses = compared(view)
    assert losses is not None
    assert losses.steps == 100
    assert losses.baseline == pytest.approx(1.9105)
    assert losses.low == pytest.approx(0.9105)


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
    assert compared(view_of(*batches)) is None


@pytest.mark.parametrize(("loss", "told"), [(math.nan, math.nan), (math.inf, math.nan), (None, None)])
@pytest.mark.parametrize("later_steps", [0, 6000])
def test_what_was_not_finite_and_what_was_not_measured_are_told_apart(
    loss: float | None, told: float | None, later_steps: int
) -> None:
    view = view_of(
        steps(1, 1000),
        steps(1001, 1504, precision="fp16", loss=loss),
        steps(1505, 1505 + later_steps),
    )
    losses = compared(view)
    assert losses is not None
    assert losses.steps == 504
    assert losses.low == (None if told is None else pytest.approx(told, nan_ok=True))
