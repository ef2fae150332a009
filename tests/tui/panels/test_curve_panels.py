from dataclasses import replace
from typing import Any

from amptui.diagnosis.speed import NO_STEPS
from amptui.records.run import PhaseChanged, Validated, Validation
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import SessionView
from amptui.tui.panels import loss, throughput
from amptui.tui.panels.phrases import Word
from amptui.tui.style import Style
from tests.telemetry import record_samples
from tests.tui import views
from tests.tui.panels.drawing import SCREEN, draw_alone, line_text


def test_the_loss_panel_ends_in_ribbon_and_axis() -> None:
    lines = draw_alone(loss.LossPanel().draw, views.with_skips(), 60, 12).lines()
    ribbon, axis = lines[-2:]
    assert "F▔" in ribbon
    assert "A▔" in ribbon
    assert "×" in ribbon
    assert "1,000" in axis


def test_the_loss_headline_has_loss_average_best_and_validation() -> None:
    words = line_text(loss.headline(views.compared(), SCREEN)).split()
    assert words[1:7:2] == ["avg", "best", "val"]
    assert words[6:8] == ["0.0351", "99.1%"]


def test_the_loss_headline_has_each_group_s_learning_rate_and_the_experiment_s_metrics() -> None:
    view = views.compared()
    assert view.last is not None
    validation = Validation(loss=0.5, accuracy=None, samples=1, metrics={"f1": 0.25, "bits": 1.5})
    result = Validated(time=1.0, step=7, epoch=1, validation=validation)
    last = replace(view.last, lr=0.5, group_lrs=(0.5, 0.125))
    words = line_text(loss.headline(replace(view, last=last, validated=result), SCREEN)).split()
    assert words[-7:] == ["lr", "0.500", "0.125", "f1", "0.250", "bits", "1.50"]
    alone = replace(view, last=replace(view.last, lr=0.5))
    assert line_text(loss.headline(alone, SCREEN)).split()[-2:] == ["lr", "0.500"]


def test_headlines_keep_their_width() -> None:
    empty, full = SessionView(), views.compared()
    assert len(line_text(throughput.headline(empty, SCREEN))) == len(
        line_text(throughput.headline(full, SCREEN))
    )
    assert len(line_text([loss.current(empty)])) == len(line_text([loss.current(full)]))


def counted(**changes: Any) -> SessionView:
    view = views.compared()
    result = flops_now(record_samples.flops("fp16", flops=10**12, **changes), 0.0025, record_samples.run())
    return replace(view, precision="fp16", flops=(result,))


def test_what_is_achieved_stands_before_what_keeps_its_place() -> None:
    with_flops, without = (line_text(throughput.headline(v, SCREEN)) for v in (counted(), views.compared()))
    assert with_flops == f"400 TFLOP/s 40% MFU  {without}"
    assert line_text(throughput.headline(counted(uncounted=("mine",)), SCREEN)).startswith(
        "≥400 TFLOP/s ≥40%"
    )
    other = replace(counted(), precision="fp32")
    assert line_text(throughput.headline(other, SCREEN)) == without


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    assert loss.current(views.nan_losses()).words == (Word("    nan", Style.ERROR),)
    assert loss.current(SessionView()).words == (Word("    n/a", Style.STRONG),)


def test_a_validation_without_accuracy_has_none() -> None:
    view = views.compared()
    assert view.validated is not None
    result = Validation(loss=0.5, accuracy=None, samples=10)
    view = replace(view, validated=replace(view.validated, validation=result))
    assert line_text([loss.headline(view, SCREEN)[4]]) == "val   0.500"


def test_before_the_first_step_the_loss_panel_says_what_is_waited_for() -> None:
    text = "".join(draw_alone(loss.LossPanel().draw, views.downloading(), 80, 5).lines())
    assert text.strip() == "waiting for the first step: downloading train-images 3.10 / 9.50 MiB"
    phase = PhaseChanged(time=1.0, phase="first step", detail="loading kernels")
    begun = replace(views.starting(), phase=phase)
    text = "".join(draw_alone(loss.LossPanel().draw, begun, 80, 5).lines())
    assert text.strip() == "first step: loading kernels"
    ended = replace(SessionView(), state="failed")
    assert "".join(draw_alone(loss.LossPanel().draw, ended, 80, 5).lines()).strip() == NO_STEPS


def test_the_throughput_curve_has_the_ink_of_each_precision() -> None:
    canvas = draw_alone(throughput.ThroughputPanel().draw, views.compared(), 60, 8)
    assert {Style.FP32, Style.FP16} <= set(canvas.styles.flat)


def test_limits_are_sticky_from_frame_to_frame() -> None:
    panel, view = loss.LossPanel(), views.fp32_only()
    labels = [line[:8] for line in draw_alone(panel.draw, view, 60, 12).lines()]
    quieter = replace(view, loss=views.series([value * 0.9 for value in views.losses(1204)]))
    assert [line[:8] for line in draw_alone(panel.draw, quieter, 60, 12).lines()] == labels


def test_pinned_metrics_stand_beside_the_loss_where_both_have_room() -> None:
    pinned = replace(SCREEN, pinned=(("validation", "accuracy"), ("part", "never logged"), ("step", "lr")))
    for width, height, shown in (
        *((78, 21, ["validation accuracy", "learning rate"]), (78, 10, ["validation accuracy"])),
        *((73, 21, []), (78, 7, [])),
    ):
        lines = draw_alone(loss.LossPanel().draw, views.logged(), width, height, screen=pinned).lines()
        titles = [title for title in ("validation accuracy", "learning rate") if title in "\n".join(lines)]
        assert titles == shown
        assert "F▔" in lines[-2]
    enlarged = replace(pinned, focus="loss")
    lines = draw_alone(loss.LossPanel().draw, views.logged(), 116, 30, screen=enlarged).lines()
    assert "validation accuracy" not in "\n".join(lines)
