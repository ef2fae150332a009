"""Each trouble of mixed precision, made to happen in a real training, is told in words, with what to do."""

import math
from typing import Any

import pytest

from amptui import Experiment
from amptui.base.errors import ExperimentError
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.words import long_words
from amptui.loops.description import describe_run
from amptui.loops.setup import Prepared
from amptui.models.selective import Selective
from amptui.models.unstable import Unstable
from amptui.monitor.divergence_guard import MIN_LOSS_SCALE
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import LossScaleChanged, PauseChanged, Record
from amptui.telemetry.events import Event
from amptui.telemetry.finding import FindingReported
from amptui.telemetry.health import judge_trace, judge_xray
from amptui.telemetry.view import SessionView
from tests.builders import view_of
from tests.models.on_images import learned, on_images
from tests.tiny import Log, switching, train


def watch(prepared: Prepared) -> SessionView:
    log = started(prepared)
    train(prepared, log)
    return view_of(*log)


def watch_fail(prepared: Prepared) -> SessionView:
    """What is shown after a training whose scale came to its floor, with nobody to ask."""
    log = started(prepared)
    with pytest.raises(ExperimentError, match="loss scale fell") as failed:
        train(prepared, log)
    assert "bf16" in failed.value.hint
    return view_of(*log)


def started(prepared: Prepared) -> Log:
    log = Log()
    log.emit(describe_run("trouble", prepared))
    return log


def unstable(trouble: Any, *, steps: int = 120, precision: str = "fp16") -> Prepared:
    return on_images(Unstable(trouble=trouble), steps=steps, precision=precision)


def events(view: SessionView, kind: str) -> list[Event]:
    return [event for event in view.events if event.kind == kind]


def details(event: Event) -> str:
    return "\n".join(event_details(event))


def test_a_few_skips_at_the_start_are_normal_and_no_alarm() -> None:
    view = watch(unstable("calibration", steps=30))
    (skips,) = events(view, "skip")
    assert skips.severity == "info"
    assert "calibration, normal" in event_text(skips)
    assert (view.warnings, view.errors) == (0, 0)
    assert view.numerics.scaler.state == "calibrating"
    assert view.numerics.scaler.severity == "info"


@pytest.mark.ci
def test_after_the_calibration_the_scaler_is_healthy() -> None:
    # The third skip may come late: one doubling of headroom is left after two. A hundred steps must follow.
    view = watch(unstable("calibration", steps=200))
    assert view.numerics.scaler.state == "none recently"
    assert 0 < (view.numerics.headroom or 0) < 8


@pytest.mark.torch
def test_a_falling_scale_is_an_alarm_that_names_the_layer_where_nan_begins_and_the_way_out() -> None:
    view = watch_fail(unstable("collapse"))
    trace = view.numerics.trace
    assert trace is not None
    assert trace.first is not None
    assert (trace.first.name, trace.first.way, trace.first.dtype) == ("edges.slopes", "backward", "float16")
    assert math.isnan(trace.first.largest)
    (skips,) = events(view, "skip")
    assert skips.severity == "error"
    assert "bf16 or FP32" in event_text(skips)
    assert "edges.slopes" in event_text(skips)
    assert "step 1, scale 65,536" in details(skips)
    assert view.numerics.scaler.state == "collapsed"
    assert view.numerics.scaler.severity == "error"


@pytest.mark.ci
def test_the_same_model_is_no_trouble_in_fp32() -> None:
    view = watch(unstable("collapse", precision="fp32"))
    assert (view.warnings, view.errors) == (0, 0)


@pytest.mark.ci
@pytest.mark.parametrize("choice", ["bf16", "fp32", ""])
def test_at_the_floor_a_person_is_told_why_the_run_pauses_and_goes_on(choice: str) -> None:
    """In another precision, or as before: no weight is lost."""
    control, shown = Control(), list[SessionView]()
    prepared = unstable("collapse", steps=140 if choice else 200)
    log = started(prepared)

    def answer(record: Record) -> None:
        if isinstance(record, PauseChanged) and record.paused:
            shown.append(view_of(*log))
            if choice:
                control.ask(RequestMade("precision", precision=choice))
            control.ask(RequestMade("pause", paused=False))

    log.watch = answer
    assert train(prepared, log, control, interactive=True) == "done"
    (paused,) = shown
    assert (paused.state, paused.pause_cause) == ("paused", "loss scale")
    assert events(paused, "pause")[0].severity == "error"
    view = view_of(*log)
    assert (view.precision, view.pause_reason) == (choice or "fp16", "")
    assert not choice or learned(log) > 0.2
    if not choice:  # at the floor it is held
        assert prepared.scaler.get_scale() == MIN_LOSS_SCALE / 2 == log.of(LossScaleChanged)[-1].current
    assert all(parameter.isfinite().all() for parameter in prepared.model.parameters())


@pytest.mark.ci
@pytest.mark.parametrize(
    ("experiment", "module"),
    [(Unstable(trouble="forward"), "amplifier"), (Selective(island=False, batch_size=32), "distance")],
    ids=["unstable", "selective"],
)
def test_a_forward_overflow_is_no_matter_of_the_scale_and_names_its_first_module(
    experiment: Experiment, module: str
) -> None:
    view = watch_fail(on_images(experiment, steps=120, precision="fp16"))
    (skips,) = events(view, "skip")
    assert "the forward pass overflowed: " in event_text(skips)
    assert f"in the output of {module} (" in event_text(skips)
    assert view.numerics.scaler.state == "overflowed"
    assert view.numerics.trace is not None
    assert all(math.isfinite(near.largest) for near in view.numerics.trace.nearest)
    words = long_words(judge_trace(view.numerics.trace))
    assert f"the output of {module} (" in words
    assert "FP32" in words
    assert "bf16" in words


@pytest.mark.ci
def test_a_trace_in_fp32_tells_beforehand_who_would_overflow() -> None:
    control, prepared = Control(), unstable("forward", precision="fp32")
    log = started(prepared)
    log.watch = switching(control, {90: RequestMade("trace")})
    train(prepared, log, control)
    view = view_of(*log)
    assert view.errors == 0
    assert view.numerics.trace is not None
    finding = judge_trace(view.numerics.trace)
    assert (finding.grade, finding.state) == ("warning", "would overflow")
    assert "the output of amplifier" in long_words(finding)


@pytest.mark.ci
def test_poisoned_buffers_are_named_and_said_to_stay_in_every_precision() -> None:
    view = watch(unstable("buffers"))
    poisoned = [event for event in view.events if "buffer" in event_text(event)]
    assert [event.severity for event in poisoned] == ["error"]
    assert "norm.running_" in event_text(poisoned[0])
    assert "stays NaN or Inf in every precision" in event_text(poisoned[0])
    assert "running_mean" in details(poisoned[0])
    assert "running_var" in details(poisoned[0])
    assert view.validated is not None
    assert view.validated.validation is not None
    assert math.isnan(view.validated.validation.loss or 0)


def test_gradients_that_would_vanish_in_float16_are_told_while_in_fp32() -> None:
    answer = amp_answer(watch(unstable("underflow", precision="fp32", steps=30)), "fp16")
    small = answer.of("float16")
    assert (small.grade, small.happened) == ("warning", False)
    assert "use bf16" in long_words(small)


def test_gradients_that_vanish_in_float16_are_an_alarm_told_once() -> None:
    view = watch(unstable("underflow", steps=40))
    answer = amp_answer(view)
    assert answer.cause is not None
    assert (answer.safety, answer.cause.subject, answer.cause.state) == ("warning", "float16", "underflows")
    assert (answer.cause.numbers["share"] or 0) > 0.9
    (alarm,) = [event for event in view.events if isinstance(event.about, FindingReported)]
    assert alarm.severity == "warning"
    assert view.numerics.scaler.numbers["skips"] == 0  # the scaler notices nothing


@pytest.mark.torch
@pytest.mark.parametrize(
    ("trouble", "severity", "said"),
    [("underflow", "error", "gradients disagree"), ("none", "info", "gradients agree")],
)
def test_the_x_ray_tells_gradients_that_vanished_from_sound_ones(
    trouble: str, severity: str, said: str
) -> None:
    prepared = unstable(trouble, steps=10)
    log, control = started(prepared), Control()
    control.ask(RequestMade("x-ray"))
    train(prepared, log, control)
    xray = view_of(*log).numerics.xray
    assert xray is not None
    verdict = judge_xray(xray)
    assert verdict.severity == severity
    assert long_words(verdict).startswith(f"{said} in ")
