"""The pace of now keeps its hiccups; the forecast leaves them out."""

import pytest

from amptui.telemetry.pace import Pace
from tests.telemetry.record_samples import step, steps, stretches


def test_now_is_a_mean_and_the_forecast_a_median() -> None:
    pace = Pace()
    for stretch in stretches([*steps(1, 9, step_seconds=0.1), *steps(10, 10, step_seconds=1.1)]):
        pace.add(stretch)
    assert pace.step_seconds == pytest.approx(0.2)
    assert pace.samples_per_second == pytest.approx(steps(1, 1)[0].samples / 0.2)
    assert pace.eta_seconds(10) == pytest.approx(1.0)


def test_nothing_timed_is_no_pace() -> None:
    assert Pace().step_seconds is None
    assert Pace().samples_per_second is None
    assert Pace().eta_seconds(10) is None


def test_skipped_steps_are_no_pace() -> None:
    pace = Pace()
    skipped = [step(n, precision="fp16", skipped=True, step_seconds=0.001) for n in range(3, 53)]
    for stretch in stretches([*steps(1, 2, precision="fp16", step_seconds=0.1), *skipped[:-1]]):
        pace.add(stretch)
    assert pace.step_seconds == pytest.approx(0.1)
    for stretch in stretches(skipped[-1:]):
        pace.add(stretch)
    assert (pace.step_seconds, pace.samples_per_second) == (None, None)
    for stretch in stretches(steps(53, 54, precision="fp16", step_seconds=0.2)):
        pace.add(stretch)
    assert pace.step_seconds == pytest.approx(0.2)
