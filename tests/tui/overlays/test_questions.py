"""The questions: whether to stop, and how to go on after the loss scale collapsed or the weights hold NaN."""

from dataclasses import replace

import pytest

from amptui.diagnosis.float16_verdicts import what_overflowed_first
from amptui.diagnosis.loss_scale import scaler_sentence
from amptui.records.keeping import CheckpointWritten
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer
from amptui.tui.overlays.questions import LossScaleQuestion, QuitQuestion
from amptui.tui.style import Style
from tests.tui import numerics_views, views
from tests.tui.overlays.opened import drawn, lines, text
from tests.tui.panels.drawing import style_of


def at_the_floor(**unsupported: str) -> SessionView:
    before = views.with_skips()
    return replace(
        before,
        state="paused",
        run=views.run_started(unsupported=unsupported),
        pause_reason="the scale is at its floor",
        scaler=replace(before.scaler, scale=2.0**-10),
        numerics=numerics_views.collapsing().numerics,
    )


def nan_weights(checkpoint: str = "") -> SessionView:
    """The weights hold NaN; with the checkpoint that was written before."""
    record = CheckpointWritten(
        time=1.0, step=8, name=checkpoint, size_bytes=1, reason="epoch", blocked_seconds=0.0, seconds=0.1
    )
    return replace(
        at_the_floor(),
        pause_reason="all weights are NaN",
        pause_cause="weights",
        checkpoint=record if checkpoint else None,
    )


@pytest.mark.parametrize("checkpoint", ["step-000000008.pt", ""])
def test_nan_weights_offer_no_other_precision(checkpoint: str) -> None:
    view = nan_weights(checkpoint)
    shown = text(LossScaleQuestion(), view, 80, 24)
    assert "All weights are NaN" in shown
    assert (checkpoint or "There is no checkpoint") in shown
    assert ("amptui train --resume" in shown) is bool(checkpoint)
    assert "AMP bf16" not in shown
    assert "held at" not in shown
    answers = [LossScaleQuestion().press(key, view) for key in "bfgdq"]
    assert answers[:2] == [STAY, STAY]
    assert [answer.action for answer in answers[2:]] == ["resume", "detach", "ask_quit"]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_it_shows_the_reason_and_the_choices(size: tuple[int, int]) -> None:
    view = at_the_floor()
    shown = text(LossScaleQuestion(), view, *size)
    assert "✖ The scale is at its floor" in shown
    advice, _, _ = scaler_sentence(view.numerics.scaler).partition(";")
    assert advice.removeprefix("the") in shown
    assert view.numerics.trace is not None
    module, _, _ = what_overflowed_first(view.numerics.trace).partition(" (")
    assert f"First: {module}" in shown
    for choice in ("b  ● AMP bf16", "f  ■ FP32", "g  ▲ AMP fp16", "d    detach", "q    quit"):
        assert choice in shown
    assert "held at 0.000977" in shown
    assert "esc: stay paused" in shown


def test_on_a_small_screen_the_choices_replace_the_causes() -> None:
    shown = text(LossScaleQuestion(), at_the_floor(), 40, 12)
    assert "✖ The scale is at its floor" in shown
    for key in ("b  ●", "f  ■", "g  ▲", "d    detach", "q    quit", "esc: stay paused"):
        assert key in shown


def test_a_long_reason_is_wrapped_between_words() -> None:
    view = replace(at_the_floor(), pause_reason="word " * 30)
    shown = lines(LossScaleQuestion(), view, 60, 24)
    assert sum("word" in line for line in shown) == 3
    assert not any("wor " in line or "wor…" in line for line in shown)


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("b", Answer(close=True, precision="bf16", action="resume")),
        ("f", Answer(close=True, precision="fp32", action="resume")),
        ("g", Answer(close=True, action="resume")),
        ("d", Answer(close=True, action="detach")),
        ("q", Answer(action="ask_quit")),  # asks first and leaves the choice open
        ("escape", CLOSE),
        *((key, STAY) for key in ("enter", "space", "p", "x", "n")),
    ],
)
def test_what_each_key_answers(key: str, answer: Answer) -> None:
    assert LossScaleQuestion().press(key, at_the_floor()) == answer


def test_an_unsupported_precision_shows_the_reason_and_cannot_be_chosen() -> None:
    view = at_the_floor(bf16="no bfloat16 on this GPU")
    canvas = drawn(LossScaleQuestion(), view)
    assert style_of(canvas, "● AMP bf16") == Style.DIM
    assert "no bfloat16 on this GPU" in "\n".join(canvas.lines())
    assert LossScaleQuestion().press("b", view) == STAY
    assert LossScaleQuestion().press("f", view).precision == "fp32"


# ------------------------------------------------------------------------------ quitting


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_question_names_the_step_and_all_answers(size: tuple[int, int], *, attached: bool) -> None:
    shown = text(QuitQuestion(attached=attached), views.compared(), *size)
    for words in ("step 1,204", "Stop it", "checkpoint and journal are kept", "esc  go back"):
        assert words in shown
    assert "detach: close the screen, training continues" in shown


@pytest.mark.parametrize(
    ("attached", "stop"), [(False, "stop after this step"), (True, "stop the run for all screens")]
)
def test_it_says_what_enter_does_and_stresses_no_answer(stop: str, *, attached: bool) -> None:
    canvas = drawn(QuitQuestion(attached=attached), views.compared())
    lines = canvas.lines()
    answers = (f"  y  {stop}", "  d  detach: close the screen", "esc  go back (enter too)")
    (y,) = (y for y, line in enumerate(lines) if answers[0] in line)
    for line, answer in enumerate(answers, y):
        assert answer in lines[line]
        assert canvas.styles[line, lines[line].index(answer) + len("esc  ")] == Style.TEXT


@pytest.mark.parametrize("attached", [False, True])
def test_the_question_during_a_pause_promises_no_training(*, attached: bool) -> None:
    shown = text(QuitQuestion(attached=attached), views.paused())
    assert "the run stays paused" in shown
    assert "training continues" not in shown


@pytest.mark.parametrize(
    ("key", "action"),
    [("y", "stop"), ("d", "detach"), *((key, "") for key in ("enter", "escape", "n", "q", "ctrl+q"))],
)
@pytest.mark.parametrize("attached", [False, True])
def test_only_a_clear_yes_stops(key: str, action: str, *, attached: bool) -> None:
    assert QuitQuestion(attached=attached).press(key, EMPTY_VIEW) == Answer(close=True, action=action)


@pytest.mark.parametrize("key", ["p", "space", "s", "esc"])
def test_another_key_leaves_the_question_open(key: str) -> None:
    assert QuitQuestion(attached=False).press(key, EMPTY_VIEW) == STAY
