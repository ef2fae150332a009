"""The pace of now keeps its hiccups; the forecast leaves them out."""

import pytest

from amptui.telemetry.pace import Pace
from amptui.telemetry.stretch import stretches
from tests.telemetry.record_samples import steps


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
