from collections.abc import Callable
from dataclasses import replace

import pytest

from amptui.records.control import PauseRequest, PrecisionRequest, Request, StopRequest, record_of
from amptui.records.run import PhaseChanged, RunFinished
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.panels import header
from amptui.tui.panels.loss import LossPanel
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style
from tests.tui import views
from tests.tui.panels.drawing import SCREEN, draw_alone, style_of


def line(view: SessionView, width: int = 160, screen: ScreenState = SCREEN) -> str:
    return draw_alone(header.draw, view, width, screen=screen).lines()[0]


def test_a_wide_line_has_everything() -> None:
    words = " ".join(line(views.compared(), 130).split())
    assert words == (
        "amptui mnist-deep H200 MNIST ▲ AMP fp16 running epoch 6/10 ━───────── step 1,204/2,350 ETA 0:02"
    )


def test_before_the_first_record_starting_stands_there_once() -> None:
    assert line(EMPTY_VIEW).split() == ["amptui", "starting"]
    panel = draw_alone(LossPanel().draw, EMPTY_VIEW, 60, 12)
    assert "".join(panel.lines()).strip() == "waiting for the first step"


def test_the_precision_has_its_own_ink() -> None:
    assert style_of(draw_alone(header.draw, views.compared(), 120), "▲ AMP fp16") == Style.FP16 | BOLD
    assert style_of(draw_alone(header.draw, views.fp32_only(), 120), "■ FP32") == Style.FP32 | BOLD


def with_requests(*requests: Request) -> SessionView:
    pending = tuple(record_of(request, number) for number, request in enumerate(requests))
    return replace(views.compared(), pending=pending)


def test_a_request_is_a_switching_until_it_is_confirmed() -> None:
    assert "▲ AMP fp16 → FP32 switching" in line(with_requests(PrecisionRequest("fp32")))
    assert "▲ AMP fp16 → TF32 switching" in line(
        with_requests(PrecisionRequest("fp32"), PrecisionRequest("tf32"))
    )
    assert "switching" not in line(with_requests(PrecisionRequest("fp16")))
    assert "switching" not in line(views.compared())
    assert "switching" not in line(
        with_requests(PrecisionRequest("fp32")), screen=ScreenState(lost="it was killed")
    )


def test_a_pause_and_an_end_are_on_their_way_wherever_they_were_asked_for() -> None:
    assert "pausing" in line(with_requests(PauseRequest(True)))
    assert "running" in line(with_requests(PauseRequest(True), PauseRequest(False)))
    assert "resuming" in line(replace(with_requests(PauseRequest(False)), state="paused"))
    assert "stopping" in line(with_requests(StopRequest("SIGTERM"), PauseRequest(True)))


def test_a_switch_under_way_moves_nothing_to_its_right() -> None:
    before = line(views.compared())
    during = line(with_requests(PrecisionRequest("fp32")))
    assert before.index("running") == during.index("running")


def test_a_narrow_line_keeps_precision_state_and_synthetic_data() -> None:
    text = line(views.synthetic(), 44)
    assert text.split() == ["⚠", "synthetic", "data", "▲", "AMP", "fp16", "running"]


@pytest.mark.parametrize("width", range(40, 200, 7))
def test_the_line_never_touches_the_edges(width: int) -> None:
    for build in views.ALL.values():
        text = line(build(), width)
        assert text[0] == " "
        assert text[-1] == " "


def test_from_step_to_step_nothing_moves() -> None:
    view = views.compared()
    early = replace(view, step=9, epoch=1, epoch_step=9)
    for word in ("epoch", "step", "ETA", "running", "▲"):
        assert line(early).index(word) == line(view).index(word)


def test_a_run_without_a_known_length_has_no_bar_and_no_total() -> None:
    run = views.run_started(steps_per_epoch=None, total_steps=None)
    text = line(replace(views.compared(), run=run, eta_seconds=None))
    assert "━" not in text
    assert "1,204 " in text
    assert "ETA   n/a" in text


@pytest.mark.parametrize(
    ("view", "state", "style"),
    [
        (views.starting(), "starting", Style.DIM),
        (views.compared(), "running", Style.GOOD),
        (views.paused(), "paused", Style.WARNING),
        (replace(views.paused(), pause_reason="the loss scale collapsed"), "paused", Style.ERROR),
        (views.finished(), "finished", Style.GOOD),
        (views.failed(), "failed", Style.ERROR),
    ],
)
def test_each_state_has_its_word_and_ink(view: SessionView, state: str, style: Style) -> None:
    assert style_of(draw_alone(header.draw, view, 120), state) == style


def test_a_stop_that_was_asked_for_is_told_until_it_is_over() -> None:
    assert "stopping" in line(views.compared(), screen=ScreenState(stopping=True))
    assert "stopping" not in line(views.finished(), screen=ScreenState(stopping=True))


def test_a_stop_that_the_run_tells_of_is_shown_whoever_asked() -> None:
    phase = PhaseChanged(time=views.NOW, phase="stopping", detail="writing the checkpoint")
    canvas = draw_alone(header.draw, replace(views.compared(), phase=phase), 120)
    assert style_of(canvas, "stopping") == Style.WARNING
    assert "writing the checkpoint" in canvas.lines()[0]
    assert "stopping" not in line(replace(views.finished(), phase=phase))


@pytest.mark.parametrize("build", [views.starting, views.compared, views.paused])
def test_a_run_that_went_without_a_word_is_lost(build: Callable[[], SessionView]) -> None:
    canvas = draw_alone(header.draw, build(), 120, screen=ScreenState(lost="gone"))
    assert style_of(canvas, "lost") == Style.ERROR
    assert not any(word in canvas.lines()[0] for word in ("running", "paused", "starting", "ETA"))


@pytest.mark.parametrize(("viewers", "width", "shown"), [(2, 140, True), (1, 140, False), (2, 80, False)])
def test_other_screens_are_counted_where_there_is_room(viewers: int, width: int, *, shown: bool) -> None:
    canvas = draw_alone(header.draw, replace(views.compared(), viewers=viewers), width)
    assert ("2 screens" in canvas.lines()[0]) is shown
    if shown:
        assert style_of(canvas, "2 screens") == Style.DIM


@pytest.mark.parametrize("width", range(110, 150))
def test_the_count_of_screens_is_the_first_to_go(width: int) -> None:
    alone = " ".join(line(views.compared(), width).split())
    beside = " ".join(line(replace(views.compared(), viewers=2), width).split())
    assert beside.replace("2 screens ", "") == alone


def test_a_run_that_was_stopped_is_not_called_finished() -> None:
    outcome = RunFinished(time=views.NOW, steps=1204, seconds=41.0, reason="stopped")
    stopped = replace(views.finished(), outcome=outcome)
    assert "stopped" in line(stopped)
    assert "finished" not in line(stopped)


def test_a_run_that_is_over_says_how_long_it_took() -> None:
    assert "in  0:41" in line(views.finished())
    assert "ETA" not in line(views.finished())


def test_trouble_is_counted() -> None:
    canvas = draw_alone(header.draw, views.nan_losses(), 120)
    assert style_of(canvas, "✖ 1") == Style.ERROR
    assert style_of(canvas, "⚠ 3") == Style.WARNING
    assert "✖" not in line(views.compared())


def test_a_long_name_is_cut() -> None:
    view = replace(views.compared(), run=views.run_started(model="a" * 60))
    assert "a" * 23 + "…" in line(view, 160)


def test_at_eighty_columns_the_model_is_named_beside_everything_that_must_be_said() -> None:
    text = line(replace(views.synthetic(), warnings=1), 80)
    assert all(
        word in text for word in ("mnist-deep", "synthetic data", "⚠ 1", "AMP fp16", "running", "step")
    )
