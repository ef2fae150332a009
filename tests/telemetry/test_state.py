"""A session's state: nothing is lost on the way to a viewer."""

import json
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.strictjson import JsonError
from amptui.records.run import Note, Record
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from tests.record_values import RECORDS
from tests.telemetry.record_samples import run, steps
from tests.telemetry.whole_runs import ENDS, EVERYTHING, restored_from, session_of


def same(one: Any, other: Any) -> bool:
    """Whether both are of one type and equal in all that they hold, NaN being equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if callable(one):  # the history of a metric, which is computed when it is read
        return same(one(), other())
    if isinstance(one, Mapping):
        one, other = tuple(one.items()), tuple(other.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - what only NaN is


def assert_same_view(one: SessionView, other: SessionView) -> None:
    assert [f.name for f in fields(one) if not same(getattr(one, f.name), getattr(other, f.name))] == []


# ------------------------------------------------------------------------------ there and back


@pytest.mark.ci
@given(before=st.lists(RECORDS, max_size=40), after=st.lists(RECORDS, max_size=20))
def test_a_restored_session_knows_the_same_and_goes_on_the_same(
    before: list[Record], after: list[Record]
) -> None:
    session = session_of(before)
    text = session.state()
    restored = restored_from(text)
    assert restored.state() == text
    assert_same_view(restored.view(), session.view())
    for entry in (session, restored):
        entry.fold(after)
    assert_same_view(restored.view(), session.view())
    assert restored.state() == session.state()


def refused(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def test_a_state_is_one_line_of_strict_ascii_json() -> None:
    session = session_of([*EVERYTHING, Note(time=1.0, severity="info", text="Ω\x1b\u2028\nx")])
    text = session.state()
    assert text.isascii()
    assert text.isprintable()
    assert isinstance(json.loads(text, parse_constant=refused), dict)
    assert_same_view(restored_from(text).view(), session.view())


def test_what_is_seen_while_another_thread_folds_is_of_one_moment() -> None:
    session, process = Session(), threading.Event()

    def fold() -> None:
        for first in range(1, 200_000, 50):
            session.fold(steps(first, first + 49))
            if process.is_set():
                break

    folding = threading.Thread(target=fold)
    folding.start()
    seen = [([session.view() for _ in range(20)], session.state()) for _ in range(10)]
    process.set()
    folding.join()
    views = [view for early, text in seen for view in (*early, restored_from(text).view())]
    views.append(restored_from(session.state()).view())
    assert all(view.step == view.loss.count and view.step % 50 == 0 for view in views)
    assert [view.step for view in views] == sorted(view.step for view in views)
    assert_same_view(views[-1], session.view())


# -------------------------------------------------------------------------- nothing is forgotten


@pytest.mark.parametrize("end", ENDS)
def test_a_restored_run_is_the_run_and_goes_on_as_it(end: Record) -> None:
    session = session_of([*EVERYTHING, end])
    restored = restored_from(session.state())
    assert restored.state() == session.state()
    assert_same_view(restored.view(), session.view())
    for entry in (session, restored):
        entry.fold([*EVERYTHING, end])
    assert restored.state() == session.state()
    assert_same_view(restored.view(), session.view())


def test_a_session_takes_over_what_another_knows() -> None:
    other, session = session_of([*EVERYTHING, ENDS[1]]), session_of([run(), *steps(1, 5)], run_dir="runs/b")
    state, view = other.state(), other.view()
    session.view()
    session.adopt(other)
    assert session.state() == state
    assert_same_view(session.view(), view)
    session.adopt(Session())
    by_identity = ("loss", "samples_rate", "loss_scale", "skips", "numerics", "metrics")
    curves: Any = {name: getattr(session.view(), name) for name in by_identity}
    assert session.view() == replace(Session("runs/a").view(), **curves)


# --------------------------------------------------------------------------------- what is no state


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (None, "Session: expected an object, not None"),
        ({"_log": None}, r"Session\._log: EventLog: expected an object, not None"),
        ({"_facts": {"state": "standing"}}, r"Session\._facts: .*state: expected one of starting, running"),
    ],
)
def test_what_is_no_state_of_this_version_is_refused_in_one_line(state: Any, told: str) -> None:
    session = session_of([run(), *steps(1, 5)])
    before = session.state()
    with pytest.raises(JsonError, match=f"^this amptui cannot read the run's state: {told}") as refused:
        session.restore(state)
    assert "\n" not in str(refused.value)
    assert session.state() == before
