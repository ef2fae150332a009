"""The event list: one line for each thing that happened, and no flood whatever happens."""

import json
import math
from dataclasses import replace
from typing import Any, Literal

import pytest

from amptui.records.findings import ModelCompiled
from amptui.records.keeping import KeepingChanged
from amptui.records.ranks import RankLost, RanksAwaited, RanksDisagree, RanksOverflowed, StacksTaken
from amptui.records.run import (
    EpochFinished,
    Note,
    PauseChanged,
    PrecisionChanged,
    Printed,
    Record,
    RunFailed,
    RunFinished,
    Validated,
    Validation,
)
from amptui.telemetry.eventlog import OTHERS, PRINTS
from amptui.telemetry.events import Event, SkipRow, Storm
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from tests.telemetry.record_samples import (
    backoff,
    compared,
    growth,
    module,
    nonfinite,
    run,
    skip,
    skip_row,
    step,
    traced,
    xray,
)


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


def validated() -> Validated:
    return Validated(time=1.0, step=9, epoch=3, validation=Validation(loss=0.5, accuracy=None, samples=1))


def compilation(**changes: Any) -> ModelCompiled:
    record = ModelCompiled(time=1.0, step=9, precision="bf16", training=True, seconds=9.5, what="first")
    return replace(record, **changes)


def awaited(seconds: float, *, over: bool = False) -> RanksAwaited:
    return RanksAwaited(time=1.0, step=7, ranks=(3,), count=1, phase="after_step", seconds=seconds, over=over)


def disagreement(count: int) -> RanksDisagree:
    return RanksDisagree(time=1.0, step=7, what="weights", count=count, most=1.0, others=())


@pytest.mark.parametrize(
    ("record", "kind", "severity"),
    [
        (run(), "note", "info"),
        (PrecisionChanged(time=1.0, step=600, previous="fp32", current="fp16"), "switch", "info"),
        (compilation(), "note", "info"),
        (growth(2000, 65536.0), "growth", "info"),
        (backoff(7, 65536.0), "skip", "info"),
        (backoff(7, 1.0), "skip", "error"),
        (epoch(), "epoch", "info"),
        (validated(), "epoch", "info"),
        (PauseChanged(time=1.0, step=1204, paused=True), "pause", "info"),
        (PauseChanged(time=1.0, step=1204, paused=True, reason="the scale fell"), "pause", "error"),
        (Note(time=1.0, severity="warning", text="look here"), "note", "warning"),
        (Printed(time=1.0, stream="stdout", text="hello\n"), "print", "info"),
        (KeepingChanged(time=1.0, what="journal", trouble="the disk is full"), "note", "error"),
        (KeepingChanged(time=1.0, what="journal", trouble=""), "note", "info"),
        (RunFinished(time=1.0, steps=2340, seconds=41.0, reason="done"), "finished", "info"),
        (RunFailed(time=1.0, step=7, error="out of memory", traceback="Traceback ..."), "failed", "error"),
        (traced(), "note", "info"),
        (traced(first=module(largest=math.inf)), "nonfinite", "warning"),
        (xray(), "note", "info"),
        (skip(612), "skip", "info"),
        (nonfinite(612), "nonfinite", "error"),
        (compared(), "compared", "info"),
        (disagreement(1), "note", "error"),
        (disagreement(0), "note", "info"),
        (RankLost(time=1.0, step=7, rank=3, host="node-1", cause="hung"), "note", "error"),
        (awaited(10.0), "note", "warning"),
        (awaited(34.0, over=True), "note", "info"),
        (StacksTaken(time=1.0, step=7, stacks=(), silent=(3,)), "note", "info"),
    ],
)
def test_each_record_has_its_kind_and_its_severity(record: Record, kind: str, severity: str) -> None:
    event = the_event(record)
    assert (event.kind, event.severity, event.times) == (kind, severity, 1)


def test_a_wait_is_told_when_it_begins_and_when_it_is_over() -> None:
    view = view_of(awaited(10.0), awaited(15.0), awaited(34.0))
    assert view.ranks is None or view.ranks.awaited == awaited(34.0)
    assert [event.about for event in view.events] == [awaited(10.0)]
    view = view_of(awaited(10.0), awaited(15.0), awaited(34.0, over=True))
    assert [event.about for event in view.events] == [awaited(34.0, over=True), awaited(10.0)]


def row_of(event: Event) -> SkipRow:
    assert isinstance(event.about, SkipRow)
    return event.about


def storm_of(event: Event) -> Storm:
    assert isinstance(event.about, Storm)
    return event.about


def test_a_skip_and_its_backoff_are_one_line() -> None:
    event, _ = view_of(growth(600, 65536.0), skip(612), backoff(612, 131072.0)).events
    assert (event.step, event.kind, event.severity) == (612, "skip", "info")
    row = row_of(event)
    assert (row.count, row.scale_after, row.meaning) == (1, 65536.0, "normal")


def test_the_scale_after_a_skip_is_unknown_until_its_backoff_comes() -> None:
    row = row_of(the_event(*skip_row(1, 2, 65536.0), skip(3, loss_scale=16384.0)))
    assert (row.count, row.newest.loss_scale, row.scale_after) == (3, 16384.0, None)


def test_the_first_skips_of_a_run_are_one_calm_line() -> None:
    event = the_event(*skip_row(1, 3, 65536.0, names=()))
    assert (event.severity, row_of(event).count, row_of(event).meaning) == ("info", 3, "calibration")


def test_a_collapsing_scale_grows_from_calm_to_error_in_one_line() -> None:
    session = Session()
    history = []
    for record in skip_row(1000, 24, 65536.0):
        session.fold([record])
        view = session.view()
        (event,) = view.events
        history.append(event.severity)
        assert (view.warnings, view.errors) == (event.severity == "warning", event.severity == "error")
    # The fifth in a row is the alarm; 2^16 falls below 1 at the 17th halving.
    assert history == ["info"] * 8 + ["error"] * 40
    assert (row_of(event).count, row_of(event).meaning) == (24, "collapsed")


def test_the_ranks_of_a_skip_come_later_and_stay_with_it() -> None:
    session = Session()
    session.fold(skip_row(100, 20, 65536.0))
    for number in (103, 110, 118, 119, 200):
        session.fold([RanksOverflowed(time=1.0, step=number, ranks=(number % 7,), count=1)])
    (event,) = session.view().events
    assert isinstance(event.about, SkipRow)
    remaining = {item.step: item.ranks for item in (*event.about.first, *event.about.last)}
    assert {at: ranks for at, ranks in remaining.items() if ranks} == {103: (5,), 118: (6,), 119: (0,)}
    session.fold([nonfinite(300), nonfinite(301), RanksOverflowed(time=1.0, step=300, ranks=(2,), count=1)])
    storm = session.view().events[0].about
    assert isinstance(storm, Storm)
    assert (storm.first.ranks, storm.last.ranks, storm.times) == ((2,), (), 2)


def test_skips_apart_are_lines_apart() -> None:
    view = view_of(skip(10), backoff(10, 131072.0), skip(12), backoff(12, 65536.0))
    assert [event.step for event in view.events] == [12, 10]


@pytest.mark.ci
def test_a_storm_of_nan_is_one_line_with_its_count_and_its_steps() -> None:
    view = view_of(*(nonfinite(number) for number in range(612, 100_612)))
    (event,) = view.events
    storm = storm_of(event)
    assert (storm.first.step, storm.last.step, storm.times) == (612, 100_611, 100_000)
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
    assert all((storm_of(e).times if e.kind == "nonfinite" else row_of(e).count) == 2000 for e in others)


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
    assert the_event(*printed).times == 1000
    other = Printed(time=2000.0, stream="stdout", text="tock")
    assert [event.times for event in view_of(*printed, other, *printed[:2]).events] == [2, 1, 1000]


def bar(time: float, text: str, stream: Literal["stdout", "stderr"] = "stdout") -> Printed:
    return Printed(time=time, stream=stream, text=text, live=True)


def test_a_progress_bar_is_one_line_that_changes_until_its_stream_prints_the_next() -> None:
    warning = Note(time=1.0, severity="warning", text="mind this")
    session, printed = Session(), Printed(time=9.0, stream="stdout", text="100%")
    session.fold([warning, *(bar(float(n), f"{n}%") for n in range(2, 99)), bar(99.0, "other", "stderr")])
    other, ours, _ = session.view().events
    assert (ours.about, ours.number) == (bar(98.0, "98%"), 2)
    session.fold([bar(100.0, "99%")])
    assert [event.about for event in session.view().events] == [bar(100.0, "99%"), other.about, warning]
    assert session.view().events[0].number == 2
    restored = Session()
    restored.restore(json.loads(session.state()))
    for item in (session, restored):
        item.fold([printed, printed])
        events = item.view().events
        assert [event.about for event in events] == [printed, other.about, warning]
        assert events[0].times == 2
        item.fold([bar(101.0, "", "stderr"), bar(102.0, "")])
        assert [event.about for event in item.view().events] == [printed, warning]


def test_a_progress_bar_that_was_pushed_out_comes_back_with_its_next_state() -> None:
    others = [Printed(time=2.0, stream="stderr", text=f"line {n}") for n in range(PRINTS + 100)]
    view = view_of(bar(1.0, "1%"), *others, bar(3.0, "2%"))
    assert view.events[0].about == bar(3.0, "2%")
    assert len(view.events) == PRINTS


def test_prints_never_push_out_a_warning() -> None:
    warning = Note(time=1.0, severity="warning", text="mind this")
    printed = [Printed(time=2.0, stream="stdout", text=f"line {n}") for n in range(5000)]
    view = view_of(warning, *printed)
    assert len(view.events) == PRINTS + 1
    assert view.events[-1].about == warning
    assert view.events[0].about == printed[-1]
    assert view.warnings == 1


def test_the_list_is_bounded_and_the_counts_are_not() -> None:
    notes = [Note(time=float(n), severity="error", text=f"note {n}") for n in range(3000)]
    printed = [Printed(time=2.0, stream="stdout", text=f"line {n}") for n in range(3000)]
    view = view_of(*notes, *printed)
    assert len(view.events) == PRINTS + OTHERS
    assert (view.warnings, view.errors) == (0, 3000)


def test_newest_lines_come_first_whatever_their_kind() -> None:
    records: list[Record] = [
        Note(time=1.0, severity="info", text="1"),
        Printed(time=2.0, stream="stdout", text="2"),
        Note(time=3.0, severity="info", text="3"),
        Printed(time=4.0, stream="stdout", text="4"),
    ]
    assert [event.about for event in view_of(*records).events] == records[::-1]


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


@pytest.mark.parametrize("what", ["loss", "gradient", "activation", "buffer"])
def test_what_the_scaler_guards_is_a_warning_and_an_error_elsewhere(what: str) -> None:
    def severity(precision: str) -> str:
        return view_of(run(precision=precision), nonfinite(1, what=what)).events[0].severity

    assert severity("fp16") == ("error" if what == "buffer" else "warning")
    assert {severity(precision) for precision in ("fp32", "ieee", "tf32", "bf16")} == {"error"}
