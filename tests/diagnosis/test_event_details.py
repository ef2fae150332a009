"""What opens under a line of skipped steps, of a trace, of an X-ray: enough to find the layer."""

import math

import pytest

from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.float16_verdicts import distance, layer_line, place_of, trace_verdict, xray_verdict
from amptui.diagnosis.memory_use import saved_for_backward
from amptui.records.run import PauseChanged, Record
from amptui.telemetry.eventlog import KEPT_SKIPS, TRACE_WITHIN_STEPS
from amptui.telemetry.events import Event
from amptui.telemetry.session import Session
from tests.telemetry.record_samples import backoff, module, nonfinite, skip, skip_row, traced, xray


def events_of(*records: Record) -> dict[str, Event]:
    """The newest event of each kind."""
    session = Session()
    session.fold(records)
    return {event.kind: event for event in reversed(session.view().events)}


def post_mortem(*records: Record) -> list[str]:
    """A skip's details without the explanation that opens them."""
    return event_details(events_of(*records)["skip"])[1:]


def test_a_skip_tells_its_scale_its_loss_and_who_held_what() -> None:
    one_skip = skip(612, names=("a.b.weight", "c.bias"), kinds=("nan", "inf"), count=4)
    assert post_mortem(one_skip, backoff(612, 131072.0)) == [
        "step 612, scale 131,072, loss 0.500: NaN in a.b (weight); Inf in c (bias); 2 more"
    ]


def test_a_skip_says_whether_its_loss_was_finite() -> None:
    (line,) = post_mortem(skip(612, loss=math.inf, names=(), count=None))
    assert line == "step 612, scale 131,072, loss inf (not finite)"
    (line,) = post_mortem(skip(612, loss=None, names=(), count=3))
    assert line == "step 612, scale 131,072, loss not measured: NaN or Inf in 3 gradients"


def test_of_a_long_row_the_first_and_the_last_skips_are_kept() -> None:
    lines = post_mortem(*skip_row(100, 400, 2.0**60, names=()))
    assert len(lines) == 2 * KEPT_SKIPS + 1
    assert [line.split(",")[0] for line in lines[:KEPT_SKIPS]] == [f"step {n}" for n in range(100, 105)]
    assert lines[KEPT_SKIPS] == "390 more"
    assert [line.split(",")[0] for line in lines[KEPT_SKIPS + 1 :]] == [f"step {n}" for n in range(495, 500)]


@pytest.mark.parametrize("count", [1, 5, 6, 10])
def test_of_a_short_row_every_skip_is_told_once(count: int) -> None:
    lines = post_mortem(*skip_row(1, count, 65536.0, names=()))
    assert [line.split(",")[0] for line in lines] == [f"step {n}" for n in range(1, count + 1)]


def test_every_skip_line_opens_with_what_it_means_and_what_to_do() -> None:
    calm = event_details(events_of(skip(1, names=()))["skip"])[0]
    assert calm.endswith("Nothing to do.")
    alarm = events_of(*skip_row(1000, 5, 65536.0))["skip"]
    assert alarm.severity == "error"
    assert "bf16 or FP32" in event_details(alarm)[0]


def test_a_trace_that_follows_a_skip_is_told_with_it_and_has_a_line_of_its_own() -> None:
    trace = traced(615, first=module(largest=math.inf))
    events = events_of(skip(612, loss=math.nan), backoff(612, 131072.0), trace)
    assert event_text(events["skip"]).endswith("; it started in features.12.conv (Conv2d, float16)")
    assert event_details(events["skip"])[-1] == (
        "trace of step 615: Inf in the output of features.12.conv (Conv2d, float16)"
    )
    assert event_text(events["nonfinite"]).startswith(
        "automatic trace: first: Inf in the output of features.12"
    )
    assert events["nonfinite"].severity == "warning"


def test_a_trace_that_comes_before_its_own_step_s_skip_is_told_with_it() -> None:
    trace = traced(615, first=module(largest=math.inf))
    assert post_mortem(trace, skip(615))[-1].startswith("trace of step 615")
    assert len(post_mortem(trace, skip(616))) == 1


@pytest.mark.parametrize(
    ("steps_later", "told"), [(0, True), (TRACE_WITHIN_STEPS, True), (TRACE_WITHIN_STEPS + 1, False)]
)
def test_only_a_trace_soon_after_a_skip_tells_of_it(steps_later: int, told: bool) -> None:
    lines = post_mortem(skip(612), traced(612 + steps_later))
    assert (lines[-1] == f"trace of step {612 + steps_later}: nothing overflowed") == told


def test_the_first_trace_that_named_a_module_is_kept() -> None:
    labelled = traced(614, first=module("a", largest=math.inf))
    other = traced(615, first=module("b", largest=math.inf))
    lines = post_mortem(skip(612), traced(613), labelled, other)
    assert [line for line in lines if line.startswith("trace")] == [
        "trace of step 614: Inf in the output of a (Conv2d, float16)"
    ]


def test_a_trace_lists_the_modules_nearest_to_an_overflow() -> None:
    trace = traced(asked=True)
    event = events_of(trace)["note"]
    assert event.severity == "info"
    assert event_text(event) == f"trace: {trace_verdict(trace).text}"
    assert event_details(event) == [f"{place_of(module)}: {distance(module)}" for module in trace.nearest]
    assert len(trace.nearest) == 2


def test_an_xray_has_a_line_with_its_verdict_and_its_layers_in_the_details() -> None:
    one_xray = xray()
    event = events_of(one_xray)["note"]
    assert (event.step, event.severity) == (700, "info")
    assert event_text(event) == f"X-ray: {xray_verdict(one_xray).text}"
    assert saved_for_backward(one_xray) in event_details(event)
    lines = [layer_line(layer) for layer in one_xray.layers]
    assert sorted(line for line in event_details(event) if line in lines) == sorted(lines)


def test_poisoned_buffers_are_explained_and_named_whenever_new_ones_are_found() -> None:
    first = nonfinite(612, what="buffer", names=("bn1.running_mean",), kinds=("nan",))
    names = ("bn1.running_mean", "bn2.running_var")
    second = nonfinite(640, what="buffer", names=names, kinds=("nan", "inf"), count=2)
    event = events_of(first, second)["nonfinite"]
    assert event.severity == "error"
    explanation, *lines = event_details(event)
    assert "go back to a checkpoint" in explanation
    assert lines == [
        "step 612: NaN in bn1 (running_mean)",
        "step 640: NaN in bn1 (running_mean); Inf in bn2 (running_var)",
    ]


def test_a_pause_of_the_trainer_s_own_is_an_error_with_its_reason() -> None:
    reason = "at the floor\nchoose bf16 or FP32"
    event = events_of(PauseChanged(time=1.0, step=1204, paused=True, reason=reason))["pause"]
    assert event.severity == "error"
    assert event_text(event) == "paused after step 1,204: at the floor"
    assert event_details(event) == ["choose bf16 or FP32"]
