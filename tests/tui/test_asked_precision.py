"""A precision that was asked for: shown until it runs, and not for ever."""

from dataclasses import replace

import pytest

from amptui.telemetry.view import PrecisionSwitch, SessionView
from amptui.tui.switching import Switching

FP32 = (PrecisionSwitch(1, "fp32"),)
RUNNING = SessionView(state="running", precision="fp32", step=100, switches=FP32)


def asked() -> Switching:
    switching = Switching()
    switching.ask("bf16", RUNNING, 1000.0)
    return switching


def test_nothing_is_wanted_before_it_was_asked_for() -> None:
    assert Switching().wanted(RUNNING, 0.0) is None


def test_it_is_wanted_until_it_runs_and_no_longer() -> None:
    switching = asked()
    assert switching.wanted(replace(RUNNING, step=103), 1001.0) == "bf16"
    switched = replace(RUNNING, precision="bf16", switches=(*FP32, PrecisionSwitch(104, "bf16")))
    assert switching.wanted(switched, 1002.0) is None
    assert switching.wanted(RUNNING, 1003.0) is None


def test_the_last_request_counts() -> None:
    switching = asked()
    switching.ask("fp16", RUNNING, 1001.0)
    assert switching.wanted(RUNNING, 1001.0) == "fp16"
    switching.ask("fp32", RUNNING, 1002.0)
    assert switching.wanted(RUNNING, 1002.0) is None


def test_a_switch_to_something_else_is_another_screen_s() -> None:
    other = replace(RUNNING, precision="tf32", switches=(*FP32, PrecisionSwitch(101, "tf32")))
    assert asked().wanted(other, 1001.0) is None


@pytest.mark.parametrize(
    ("seconds", "steps", "wanted"),
    [(60.0, 0, "bf16"), (60.0, 7, "bf16"), (4.0, 5000, "bf16"), (6.0, 8, None)],
)
def test_a_request_that_steps_went_by_was_overruled(seconds: float, steps: int, wanted: str | None) -> None:
    assert asked().wanted(replace(RUNNING, step=100 + steps), 1000.0 + seconds) == wanted


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_the_end_ends_it(state: str) -> None:
    assert asked().wanted(replace(RUNNING, state=state), 1001.0) is None  # type: ignore[arg-type]
