"""What is said of the loss scaler: calm about what is normal, plain about what is not."""

import math
from dataclasses import replace

import pytest

from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.loss_scale import (
    idle_words,
    last_change,
    outlook,
    pause_causes,
    resume_words,
    scaler_rule,
    scaler_sentence,
)
from amptui.records.findings import ModuleRange
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import Record
from amptui.telemetry.events import Event
from amptui.telemetry.scaling import ScalerFacts, judge_scaler
from amptui.telemetry.session import Session
from amptui.telemetry.view import GrowthOutlook, NumericsView, ScalerView, SessionView
from tests.telemetry.record_samples import backoff, growth, module, skip, skip_row, traced

FALLING = ScalerFacts(steps=5, skips_in_a_row=5, newest_skip=skip(5))

BEYOND_SCALING = "the forward pass overflowed: scaling cannot help; use bf16 or FP32"

# -------------------------------------------------------------------------------------- the scaler


@pytest.mark.parametrize(
    ("facts", "sentence", "rule"),
    [
        (
            ScalerFacts(steps=3),
            "the scaler does not notice underflow",
            "no skip in the last 100 steps: 3 without one",
        ),
        (
            ScalerFacts(steps=5000, skips=1, steps_since_skip=1200),
            "the scaler does not notice underflow",
            "no skip in the last 100 steps: 1,200 without one",
        ),
        (
            ScalerFacts(steps=9, skips=4, recent_skips=4),
            "normal: the scale starts high on purpose and halves until the gradients fit",
            "at most 4 skips before the first growth: 4 so far",
        ),
        (
            ScalerFacts(steps=500, skips=9, recent_skips=1),
            "normal: the scaler finds its limit by occasional overflows",
            "a skip in the last 100 steps: 1",
        ),
        (
            ScalerFacts(steps=500, skips=9, recent_skips=6),
            "too many steps skipped by overflow: lower the learning rate, or use bf16",
            "5 skips in the last 100 steps: 6",
        ),
        (
            ScalerFacts(steps=9, skips=6, recent_skips=6, skips_in_a_row=6, newest_skip=skip(9)),
            "the scale keeps falling: switch to bf16 or FP32; check features.13.conv",
            "5 skips in a row: 6 so far",
        ),
        (
            ScalerFacts(steps=200, scale=0.5),
            "the scale has collapsed: switch to bf16 or FP32",
            "scale below 1: 0.500",
        ),
        (
            ScalerFacts(steps=700, skips=1, recent_skips=1, forward_overflow_step=611),
            BEYOND_SCALING,
            "a skip with a non-finite loss in the last 100 steps: step 611",
        ),
        (ScalerFacts(), "", ""),
    ],
)
def test_each_state_has_its_sentence_and_its_rule(facts: ScalerFacts, sentence: str, rule: str) -> None:
    verdict = judge_scaler(facts)
    assert (scaler_sentence(verdict), scaler_rule(verdict)) == (sentence, rule)


@pytest.mark.parametrize(
    ("facts", "began", "ends"),
    [
        (
            ScalerFacts(steps=1, forward_overflow_step=1),
            module(),
            "; it started in features.12.conv (Conv2d, float16)",
        ),
        (ScalerFacts(steps=1, forward_overflow_step=1), module(way="backward"), "use bf16 or FP32"),
        (
            ScalerFacts(steps=5, skips_in_a_row=5, newest_skip=skip(5)),
            module("b"),
            "check b (Conv2d, float16)",
        ),
        (ScalerFacts(steps=5, skips_in_a_row=5, newest_skip=skip(5, names=())), None, "bf16 or FP32"),
    ],
)
def test_where_to_look_is_what_a_trace_found_rather_than_a_parameter(
    facts: ScalerFacts, began: ModuleRange | None, ends: str
) -> None:
    assert scaler_sentence(judge_scaler(facts, began)).endswith(ends)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            GrowthOutlook(steps=760, headroom_now=3.1, headroom_then=2.1),
            "the scale doubles in 760 steps, headroom then 2.1",
        ),
        (
            GrowthOutlook(steps=1, headroom_now=1.0, headroom_then=0.0),
            "the scale doubles in 1 step, headroom then 0.0",
        ),
        (
            GrowthOutlook(steps=760, headroom_now=0.6, headroom_then=-0.4),
            "the scale doubles in 760 steps and will probably overflow: smallest headroom 0.6",
        ),
        (
            GrowthOutlook(steps=1999, overflow_step=1, overflow_scale=65536.0),
            "the scale doubles in 1,999 steps and will probably overflow: 65,536 overflowed at step 1",
        ),
        (None, ""),
    ],
)
def test_the_next_growth_is_foretold(found: GrowthOutlook | None, words: str) -> None:
    assert outlook(found) == words


def test_the_last_change_is_told_with_its_step() -> None:
    assert last_change(backoff(612, 131072.0)) == "backoff at step 612: 131,072 → 65,536"
    assert last_change(None) == ""


# ----------------------------------------------------------------------------------- skipped steps


def skip_event(*records: Record) -> Event:
    session = Session()
    session.fold(records)
    return next(event for event in session.view().events if event.kind == "skip")


def said(*records: Record) -> str:
    """What the event of a skip ends with."""
    return event_text(skip_event(*records)).rpartition("; ")[2]


def test_a_normal_skip_is_told_calmly() -> None:
    first, later = skip_event(skip(612)), skip_event(growth(1, 65536.0), skip(612))
    assert event_text(first).endswith("; calibration, normal")
    assert event_details(first)[0].endswith("Nothing to do.")
    assert event_text(later).endswith("; normal")
    assert event_details(later)[0].endswith("An occasional skip is normal: nothing to do.")


def test_an_alarm_says_what_to_switch_to_and_where_to_look() -> None:
    falling = skip_event(*skip_row(1000, 5, 2.0**60))
    assert "the scale keeps falling: switch to bf16 or FP32; check features.13.conv" in event_text(falling)
    assert "Switch to bf16 or FP32" in event_details(falling)[0]
    collapsed = skip_event(skip(612, loss_scale=0.5))
    assert "the scale has collapsed: switch to bf16 or FP32" in event_text(collapsed)
    assert "every weight into NaN" in event_details(collapsed)[0]
    assert said(*skip_row(1, 5, 65536.0, names=("weight",))) == "check weight"
    assert "check" not in event_text(skip_event(*skip_row(1, 5, 65536.0, names=())))
    trace = traced(1004, first=module("b", largest=math.inf, way="backward"))
    assert said(*skip_row(1000, 5, 65536.0), trace) == "check b (Conv2d, float16)"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_forward_overflow_is_told_alike_of_a_skip_and_of_the_scaler(loss: float) -> None:
    assert event_text(skip_event(skip(612, loss=loss))).endswith(f"; {BEYOND_SCALING}")
    elsewhere = replace(traced(612), first=module(way="backward", largest=math.inf))
    assert event_text(skip_event(skip(612, loss=loss), elsewhere)).endswith(f"; {BEYOND_SCALING}")


@pytest.mark.parametrize(
    ("precision", "scale", "words"),
    [
        ("fp32", 65536.0, "kept while FP32 runs"),
        ("fp16", 65536.0, ""),
        ("fp32", None, ""),
        (None, 65536.0, ""),
    ],
)
def test_a_scale_that_no_step_uses_is_kept(precision: str | None, scale: float | None, words: str) -> None:
    assert idle_words(SessionView(precision=precision, scaler=ScalerView(scale=scale))) == words


def test_a_pause_by_a_falling_scale_has_the_scaler_s_cause_and_the_trace_s() -> None:
    numerics = NumericsView(scaler=judge_scaler(FALLING), trace=traced())
    view = SessionView(pause_cause="loss scale", numerics=numerics, scaler=ScalerView(scale=2.0**-10))
    scaler, trace = pause_causes(view)
    assert scaler == scaler_sentence(numerics.scaler)
    assert trace.startswith("nothing overflowed in 43 modules")
    assert resume_words(view) == "continue with the loss scale held at 0.000977"


def test_a_pause_by_lost_weights_says_how_to_go_back() -> None:
    view = SessionView(pause_cause="weights")
    saved = CheckpointWritten(
        time=1.0, step=8, name="step-8.pt", size_bytes=1, reason="epoch", blocked_seconds=0.0, seconds=0.1
    )
    assert pause_causes(view) == [
        "there is no checkpoint to go back to: quit and restart with a smaller --lr"
    ]
    assert pause_causes(replace(view, checkpoint=saved)) == [
        "to go back to step-8.pt: quit, then amptui train --resume"
    ]
    assert resume_words(view) == "continue, though NaN weights never recover"
