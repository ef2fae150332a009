"""What each line of the event list says."""

import math
from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.event_words import event_details, event_text
from amptui.records import (
    DataInfo,
    EpochFinished,
    Note,
    PauseChanged,
    PrecisionChanged,
    Printed,
    Record,
    RunFailed,
    RunFinished,
    Validation,
)
from amptui.telemetry.events import Event
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from tests.telemetry.record_samples import backoff, growth, nonfinite, run, skip, skip_row


def view_of(*records: Record) -> SessionView:
    session = Session()
    session.fold(records)
    return session.view()


def the_event(*records: Record) -> Event:
    (event,) = view_of(*records).events
    return event


def epoch(**changes: Any) -> EpochFinished:
    record = EpochFinished(
        time=1.0,
        step=702,
        epoch=3,
        seconds=2.3,
        mean_loss=0.0312,
        validation=Validation(loss=0.0351, accuracy=0.991, samples=10_000),
    )
    return replace(record, **changes)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (run(), "run started: mnist-deep on NVIDIA H200, MNIST, FP32"),
        (
            run(data=DataInfo(name="MNIST", real=False, samples=None)),
            "run started: mnist-deep on NVIDIA H200, MNIST (synthetic data), FP32",
        ),
        (PrecisionChanged(time=1.0, step=600, previous="fp32", current="fp16"), "FP32 → AMP fp16"),
        (growth(2000, 65536.0), "loss scale 65,536 → 131,072"),
        (backoff(7, 65536.0), "overflow: loss scale 65,536 → 32,768"),
        (epoch(), "epoch 3: loss 0.0312, validation 0.0351 99.1% in 2.30 s"),
        (epoch(seconds=83.2, validation=None), "epoch 3: loss 0.0312 in 1:23"),
        (epoch(seconds=None, validation=None, mean_loss=None), "epoch 3: loss n/a"),
        (
            epoch(validation=Validation(loss=math.nan, accuracy=None, samples=1)),
            "epoch 3: loss 0.0312, validation nan in 2.30 s",
        ),
        (PauseChanged(time=1.0, step=1204, paused=True), "paused after step 1,204"),
        (PauseChanged(time=1.0, step=1204, paused=False), "resumed after step 1,204"),
        (Note(time=1.0, severity="info", text="look here"), "look here"),
        (Printed(time=1.0, stream="stdout", text="hello\n"), "hello"),
        (
            RunFinished(time=1.0, steps=2340, seconds=41.0, reason="done"),
            "done after 2,340 steps in 0:41",
        ),
    ],
)
def test_each_record_has_its_line(record: Record, text: str) -> None:
    assert event_text(the_event(record)) == text


def test_a_failure_keeps_its_traceback_for_who_opens_it() -> None:
    event = the_event(RunFailed(time=1.0, step=7, error="out of memory\nreally", traceback="Traceback ..."))
    assert event_text(event) == "failed: out of memory"
    assert event_details(event) == ["really", "Traceback ..."]


def test_growth_tells_after_how_many_clean_steps() -> None:
    newest, _ = view_of(run(), growth(2000, 65536.0)).events
    assert event_text(newest) == "loss scale 65,536 → 131,072 after 2,000 clean steps"


def test_a_skip_and_its_backoff_are_one_line() -> None:
    event, _ = view_of(growth(600, 65536.0), skip(612), backoff(612, 131072.0)).events
    assert event_text(event) == (
        "overflow: step skipped, scale 131,072 → 65,536, "
        "non-finite gradient in features.13.conv.weight (+2); normal"
    )


def test_a_skip_whose_backoff_has_not_come_tells_the_scale_it_had() -> None:
    event = the_event(skip(612, names=()))
    assert event_text(event) == "overflow: step skipped, scale 131,072; calibration, normal"


def test_the_first_skips_of_a_run_are_one_calm_line() -> None:
    event = the_event(*skip_row(1, 3, 65536.0, names=()))
    assert event_text(event) == (
        "overflow: 3 steps in a row skipped (1–3), scale 65,536 → 8,192; calibration, normal"
    )


def test_a_long_row_of_skips_tells_its_steps_and_how_far_the_scale_fell() -> None:
    text = event_text(the_event(*skip_row(1000, 24, 65536.0)))
    assert text.startswith("overflow: 24 steps in a row skipped (1,000–1,023), scale 65,536 → 0.00391")
    assert text.endswith("the scale has collapsed: switch to bf16 or FP32; check features.13.conv")


def test_a_storm_tells_how_often_and_where() -> None:
    event = the_event(*(nonfinite(number) for number in range(612, 1612)))
    assert event_text(event).startswith("the loss is NaN, 1,000 times (612–1,611); ")


def test_the_same_again_and_again_is_counted() -> None:
    printed = [Printed(time=float(n), stream="stdout", text="tick") for n in range(1, 1001)]
    assert event_text(the_event(*printed)) == "tick (×1,000)"
