"""The event list: one plain line for each thing that happened, and no flood whatever happens."""

import math
from dataclasses import replace
from typing import Any

import pytest

from amptui.findings import ModelCompiled
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
from amptui.telemetry.session import Session
from amptui.telemetry.view import Event, SessionView
from tests.telemetry.record_samples import backoff, growth, nonfinite, run, skip, skip_row, step


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


def compilation(**changes: Any) -> ModelCompiled:
    record = ModelCompiled(time=1.0, step=9, precision="bf16", training=True, seconds=9.5, what="first")
    return replace(record, **changes)


@pytest.mark.parametrize(
    ("record", "kind", "text"),
    [
        (run(), "note", "run started: mnist-deep on NVIDIA H200, MNIST, FP32"),
        (
            run(data=DataInfo(name="MNIST", real=False, samples=None)),
            "note",
            "run started: mnist-deep on NVIDIA H200, MNIST (synthetic), FP32",
        ),
        (PrecisionChanged(time=1.0, step=600, previous="fp32", current="fp16"), "switch", "FP32 → AMP fp16"),
        (compilation(), "note", "compiled for AMP bf16 in 9.50 s"),
        (
            compilation(what="again", training=False, reason="expected 8, actual 4"),
            "note",
            "recompiled for AMP bf16 validation in 9.50 s: expected 8, actual 4",
        ),
        (compilation(what="graphs"), "note", "recorded CUDA graphs for AMP bf16 in 9.50 s"),
        (growth(2000, 65536.0), "growth", "loss scale 65,536 → 131,072"),
        (backoff(7, 65536.0), "skip", "overflow: loss scale 65,536 → 32,768"),
        (epoch(), "epoch", "epoch 3: loss 0.0312, validation 0.0351 99.1% in 2.30 s"),
        (epoch(seconds=83.2, validation=None), "epoch", "epoch 3: loss 0.0312 in 1:23"),
        (epoch(seconds=None, validation=None, mean_loss=None), "epoch", "epoch 3: loss n/a"),
        (
            epoch(validation=Validation(loss=math.nan, accuracy=None, samples=1)),
            "epoch",
            "epoch 3: loss 0.0312, validation nan in 2.30 s",
        ),
        (PauseChanged(time=1.0, step=1204, paused=True), "pause", "paused after step 1,204"),
        (PauseChanged(time=1.0, step=1204, paused=False), "pause", "resumed after step 1,204"),
        (Note(time=1.0, severity="info", text="look here"), "note", "look here"),
        (Printed(time=1.0, stream="stdout", text="hello\n"), "print", "hello"),
        (
            RunFinished(time=1.0, steps=2340, seconds=41.0, reason="done"),
            "finished",
            "done: 2,340 steps in 41.0 s",
        ),
    ],
)
def test_each_record_has_its_line(record: Record, kind: str, text: str) -> None:
    event = the_event(record)
    assert (event.kind, event.severity, event.text) == (kind, "info", text)


def test_a_failure_keeps_its_traceback_for_who_opens_it() -> None:
    event = the_event(RunFailed(time=1.0, step=7, error="out of memory\nreally", traceback="Traceback ..."))
    assert (event.kind, event.severity, event.text) == ("failed", "error", "failed: out of memory")
    assert event.detail == "really\nTraceback ..."


def test_growth_tells_after_how_many_clean_steps() -> None:
    newest, _ = view_of(run(), growth(2000, 65536.0)).events
    assert newest.text == "loss scale 65,536 → 131,072 after 2,000 clean steps"


def test_a_skip_and_its_backoff_are_one_line() -> None:
    event, _ = view_of(growth(600, 65536.0), skip(612), backoff(612, 131072.0)).events
    assert (event.step, event.kind, event.severity) == (612, "skip", "info")
    assert event.text == (
        "overflow: step skipped, scale 131,072 → 65,536, "
        "non-finite gradient in features.13.conv.weight (+2); normal"
    )


def test_a_skip_whose_backoff_has_not_come_tells_the_scale_it_had() -> None:
    event = the_event(skip(612, names=()))
    assert event.text == "overflow: step skipped, scale 131,072; calibration, normal"


def test_the_first_skips_of_a_run_are_one_calm_line() -> None:
    event = the_event(*skip_row(1, 3, 65536.0, names=()))
    assert event.severity == "info"
    assert event.text == (
        "overflow: 3 steps in a row skipped (1–3), scale 65,536 → 8,192; calibration, normal"
    )


def test_a_collapsing_scale_grows_from_calm_to_error_in_one_line() -> None:
    session = Session()
    seen = []
    for record in skip_row(1000, 24, 65536.0):
        session.fold([record])
        view = session.view()
        (event,) = view.events
        seen.append(event.severity)
        assert (view.warnings, view.errors) == (event.severity == "warning", event.severity == "error")
    # The fifth in a row is the alarm; 2^16 falls below 1 at the 17th halving.
    assert seen == ["info"] * 8 + ["error"] * 40
    assert event.text.startswith("overflow: 24 steps in a row skipped (1,000–1,023), scale 65,536 → 0.00391")
    assert event.text.endswith("the scale has collapsed: switch to bf16 or FP32; check features.13.conv")


def test_skips_apart_are_lines_apart() -> None:
    view = view_of(skip(10), backoff(10, 131072.0), skip(12), backoff(12, 65536.0))
    assert [event.step for event in view.events] == [12, 10]


def test_a_storm_of_nan_is_one_line_with_its_count_and_its_steps() -> None:
    view = view_of(*(nonfinite(number) for number in range(612, 100_612)))
    (event,) = view.events
    assert event.text.startswith("the loss is NaN, 100,000 times (612–100,611); ")
    assert (event.step, event.severity) == (100_611, "error")
    assert (view.warnings, view.errors) == (0, 1)


def test_storms_of_several_kinds_at_once_do_not_break_each_other() -> None:
    session = Session()
    for number in range(1, 2001):
        session.fold(
            [
                step(number, loss=math.nan, precision="fp16", skipped=True),
                nonfinite(number),
                nonfinite(number, what="activation", kind="inf", names=("a",)),
                *skip_row(number, 1, 65536.0, loss=math.nan),
                Printed(time=1.0, stream="stderr", text=f"loss nan at {number}"),
            ]
        )
    others = [event for event in session.view().events if event.kind != "print"]
    assert sorted(event.kind for event in others) == ["nonfinite", "nonfinite", "skip"]
    assert all("2,000" in event.text for event in others)


def test_nan_that_comes_back_much_later_is_a_new_line() -> None:
    view = view_of(nonfinite(1), nonfinite(101), nonfinite(202))
    assert [event.step for event in view.events] == [202, 101]


def test_trouble_that_goes_on_stays_on_top_of_what_happens_meanwhile() -> None:
    view = view_of(
        nonfinite(612), epoch(epoch=3, step=640), nonfinite(650), epoch(epoch=4, step=660), nonfinite(670)
    )
    assert [event.kind for event in view.events] == ["nonfinite", "epoch", "epoch"]
    assert view.events[0].step == 670
    # Numbers tell who began first: a log that was told of a line is not told again.
    assert [event.number for event in view.events] == [1, 3, 2]


def test_the_same_print_again_and_again_is_one_line() -> None:
    printed = [Printed(time=float(n), stream="stdout", text="tick") for n in range(1, 1001)]
    assert the_event(*printed).text == "tick (×1,000)"
    other = Printed(time=2000.0, stream="stdout", text="tock")
    texts = [event.text for event in view_of(*printed, other, *printed[:2]).events]
    assert texts == ["tick (×2)", "tock", "tick (×1,000)"]


def test_prints_never_push_out_a_warning() -> None:
    warning = Note(time=1.0, severity="warning", text="mind this")
    printed = [Printed(time=2.0, stream="stdout", text=f"line {n}") for n in range(5000)]
    view = view_of(warning, *printed)
    assert len(view.events) == 201
    assert view.events[-1].text == "mind this"
    assert view.events[0].text == "line 4999"
    assert view.warnings == 1


def test_the_list_is_bounded_and_the_counts_are_not() -> None:
    notes = [Note(time=float(n), severity="error", text=f"note {n}") for n in range(3000)]
    printed = [Printed(time=2.0, stream="stdout", text=f"line {n}") for n in range(3000)]
    view = view_of(*notes, *printed)
    assert len(view.events) == 1000
    assert (view.warnings, view.errors) == (0, 3000)


def test_newest_lines_come_first_whatever_their_kind() -> None:
    records: list[Record] = [
        Note(time=1.0, severity="info", text="1"),
        Printed(time=2.0, stream="stdout", text="2"),
        Note(time=3.0, severity="info", text="3"),
        Printed(time=4.0, stream="stdout", text="4"),
    ]
    assert [event.text for event in view_of(*records).events] == ["4", "3", "2", "1"]


def test_nan_is_judged_by_the_steps_around_it_where_nothing_else_tells_the_precision() -> None:
    records: list[Record] = [step(590, precision="fp16"), nonfinite(590)]
    assert view_of(*records).events[0].severity == "warning"
    session = Session()
    for record in records:
        session.fold([record])
    assert session.view().events[0].severity == "warning"


def test_nan_is_judged_by_the_precision_that_its_step_ran_in() -> None:
    switch = PrecisionChanged(time=1.0, step=600, previous="fp16", current="fp32")
    started = run(precision="fp16")
    late = view_of(started, step(590, precision="fp16"), switch, nonfinite(599)).events[0]
    assert late.severity == "warning"
    after = view_of(started, step(590, precision="fp16"), switch, nonfinite(600)).events[0]
    assert after.severity == "error"
