from dataclasses import replace
from typing import Any

import pytest

from amptui.records.run import PhaseChanged
from amptui.telemetry.view import SessionView
from amptui.tui.panels.phase import is_stopping, waiting_fraction, waiting_words
from tests.tui import views
from tests.tui.panels.drawing import SCREEN


def in_phase(phase: Any, **details: Any) -> SessionView:
    return SessionView(phase=PhaseChanged(time=views.NOW, phase=phase, **details))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (SessionView(), "starting"),
        (in_phase("importing"), "importing torch"),
        (in_phase("data"), "loading data"),
        (in_phase("data", detail="drawing", done=512, total=1000, unit="samples"), "drawing 512/1,000"),
        (in_phase("data", detail="downloading", done=2048, unit="bytes"), "downloading 2.00 KiB"),
        (in_phase("model"), "building the model"),
        (in_phase("first step", detail="autotuning kernels"), "first step: autotuning kernels"),
        (in_phase("first step"), "first step"),
        (in_phase("first step", detail="first step"), "first step"),
        (in_phase("validating", done=12, total=40), "validating 12/40"),
        (in_phase("validating", done=12), "validating 12"),
        (in_phase("stopping", detail="writing the checkpoint"), "writing the checkpoint"),
        (in_phase("stopping"), "stopping"),
        (in_phase("training"), ""),
        (views.compared(), ""),
        (replace(in_phase("validating"), state="failed"), ""),
    ],
)
def test_a_phase_is_told_in_words(view: SessionView, words: str) -> None:
    assert waiting_words(view, SCREEN) == words


def test_a_run_that_is_lost_waits_for_nothing() -> None:
    assert waiting_words(in_phase("validating"), replace(SCREEN, lost="gone")) == ""


def test_a_run_is_stopping_when_it_says_so_until_it_has_ended() -> None:
    assert is_stopping(in_phase("stopping"))
    assert not is_stopping(in_phase("validating"))
    assert not is_stopping(SessionView())
    assert not is_stopping(replace(in_phase("stopping"), state="finished"))


def test_progress_is_a_fraction_only_where_the_whole_is_known() -> None:
    assert waiting_fraction(in_phase("data", done=1, total=4)) == 0.25
    assert waiting_fraction(in_phase("data", done=5, total=4)) == 1.0
    assert waiting_fraction(in_phase("data", done=1)) is None
    assert waiting_fraction(in_phase("data", total=4)) is None
    assert waiting_fraction(SessionView()) is None
