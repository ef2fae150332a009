"""The event list: one line for each thing that happened, and no flood whatever happens."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from amptui.records.ranks import RanksOverflowed
from amptui.records.run import Note, Printed, Record
from amptui.telemetry.events import OTHERS, PRINTS, Event
from tests.builders import fold, make_step, view_of
from tests.telemetry.record_samples import backoff, growth, nonfinite, skip, skip_row

WARNING = Note(time=1.0, severity="warning", text="mind this")


def printed(time: float, text: str) -> Printed:
    return Printed(time=time, text=text)


def about(event: Event) -> Any:
    """A row of skips or a storm, which tell different things."""
    return event.about


# --------------------------------------------------------------------------------------------- skips


GROWN = growth(9, 65536.0)


@pytest.mark.parametrize(
    ("records", "rows"),
    [
        ([GROWN, skip(612), backoff(612, 131072.0)], [(1, 65536.0, "occasional", "info")]),
        (skip_row(1, 4, 65536.0), [(4, 4096.0, "calibrating", "info")]),
        ([GROWN, *skip_row(10, 4, 65536.0)], [(4, 4096.0, "occasional", "info")]),
        ([GROWN, *skip_row(10, 5, 65536.0)], [(5, 2048.0, "collapsing", "error")]),
        (
            [GROWN, *(skip(number) for number in (10, 110, 150, 151, 252))],
            [(1, None, "occasional", "info"), (4, None, "occasional", "info")],
        ),
        # What was trouble is not calmed by a later skip that is none.
        (
            [*skip_row(10, 5, 65536.0), skip(30), GROWN, skip(31)],
            [(2, None, "occasional", "info"), (5, 2048.0, "collapsing", "error")],
        ),
        ([GROWN, *skip_row(10, 1, 2.0)], [(1, 1.0, "occasional", "info")]),
        (skip_row(10, 5, 65536.0, loss=math.inf), [(5, 2048.0, "loss not finite", "error")]),
    ],
)
def test_skips_near_each_other_and_their_backoffs_are_one_line_that_is_calm_about_what_is_normal(
    records: Sequence[Record], rows: list[tuple[int, float | None, str, str]]
) -> None:
    found = [event for event in view_of(*records).events if event.kind == "skip"]
    facts = [(about(event).count, about(event).scale_after, about(event).finding.state) for event in found]
    assert [(*fact, event.severity) for fact, event in zip(facts, found, strict=True)] == rows


def test_a_collapsing_scale_grows_from_calm_to_error_in_one_line() -> None:
    session, severities = fold([]), []
    for record in skip_row(1000, 24, 65536.0):
        session.fold([record])
        view = session.view()
        (event,) = view.events
        severities.append(event.severity)
        assert (view.warnings, view.errors) == (event.severity == "warning", event.severity == "error")
    # The fifth in a row is the alarm; 2^16 falls below 1 at the 17th halving.
    assert severities == ["info"] * 8 + ["error"] * 40
    assert (about(event).count, about(event).finding.state) == (24, "collapsed")


def test_the_ranks_of_a_skip_come_later_and_stay_with_it() -> None:
    session = fold(skip_row(100, 20, 65536.0))
    for number in (100, 110, 119, 200):
        session.fold([RanksOverflowed(time=1.0, step=number, ranks=(number % 7,), count=1)])
    (event,) = session.view().events
    assert (about(event).first.ranks, about(event).last.ranks) == ((2,), (0,))
    session.fold([nonfinite(300), nonfinite(301), RanksOverflowed(time=1.0, step=300, ranks=(2,), count=1)])
    storm = about(session.view().events[0])
    assert (storm.first.ranks, storm.last.ranks, storm.count) == ((2,), (), 2)


# --------------------------------------------------------------------------------------- NaN and Inf


def test_storms_of_several_kinds_at_once_are_a_line_each_with_count_and_steps() -> None:
    session, steps = fold([]), 500
    for number in range(1, steps + 1):
        session.fold(
            [
                make_step(number, loss=math.nan, precision="fp16", skipped=True),
                nonfinite(number),
                nonfinite(number, what="buffer", kind="inf", names=("a",)),
                *skip_row(number, 1, 65536.0, loss=math.nan),
                printed(1.0, f"loss nan at {number}"),
            ]
        )
    others = session.view().events
    assert sorted(event.kind for event in others) == ["nonfinite", "nonfinite", "skip"]
    for event in others:
        row = about(event)
        assert (row.first.step, row.last.step, row.count) == (1, steps, steps)


# -------------------------------------------------------------------------------------------- prints


def test_the_list_is_bounded_the_counts_are_not_and_what_is_printed_is_no_event() -> None:
    lines = [printed(2.0, f"line {n}") for n in range(3000)]
    view = view_of(WARNING, *lines)
    assert [event.about for event in view.printed] == lines[-PRINTS:]
    assert [event.about for event in view.events] == [WARNING]
    assert view.warnings == 1
    notes = [Note(time=float(n), severity="error", text=f"note {n}") for n in range(3000)]
    view = view_of(*notes, *lines)
    assert (len(view.events), len(view.printed)) == (OTHERS, PRINTS)
    assert (view.warnings, view.errors) == (0, 3000)
