"""What is no session's state: it is refused whole, in words, and whatever it is."""

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.forms import StateError
from amptui.telemetry.pace import Pace
from amptui.telemetry.session import Session
from amptui.telemetry.state import StateFormat, declared
from tests.telemetry.record_samples import (
    run,
    steps,
)
from tests.telemetry.whole_runs import ENDS, EVERYTHING, restored_from, session_of


@pytest.mark.parametrize("state", [None, [], "state", 1, {}, {"root": []}, {"fingerprint": "x"}])
def test_what_was_never_a_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="not the state of a run"):
        Session().restore(state)


def test_another_version_s_state_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    state = json.loads(Session().state())
    for other in ({"version": 0}, {"version": "1"}, {"fingerprint": "0"}, {"fingerprint": None}):
        with pytest.raises(ValueError, match="started by another version of amptui"):
            Session().restore(state | other)
    pace = json.loads(StateFormat(Pace).dumps(Pace()))
    monkeypatch.setitem(Pace.__annotations__, "_steps", int)
    with pytest.raises(StateError, match="another version"):
        StateFormat(Pace).read(pace)
    monkeypatch.setitem(Pace.__annotations__, "_precision", str)
    monkeypatch.delitem(Pace.__annotations__, "_steps")
    with pytest.raises(StateError, match="another version"):
        StateFormat(Pace).read(pace)


def test_a_class_that_is_not_ours_is_in_no_state() -> None:
    with pytest.raises(TypeError, match="no form for"):
        StateFormat(threading.Thread)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["", "nan", "fp16", "AAAAAAAA8D8=", "AAAA\u00e9", "A"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)

TEXT = session_of([*EVERYTHING, ENDS[1]]).state()


def mutated(data: st.DataObject, value: Any) -> Any:
    """``value`` with one thing in it replaced, left out, doubled, or moved."""
    if not isinstance(value, list | dict) or not value or data.draw(st.integers(0, 9)) == 0:
        if isinstance(value, int) and data.draw(st.booleans()):
            return value + data.draw(st.integers(-3, 3))
        return data.draw(JSON)
    if isinstance(value, dict):
        key = data.draw(st.sampled_from([*value]))
        return {**value, key: mutated(data, value[key])}
    place = data.draw(st.integers(0, len(value) - 1))
    change = data.draw(st.sampled_from(["deeper"] * 6 + ["drop", "double", "swap"]))
    head, item, tail = value[:place], value[place], value[place + 1 :]
    if change == "deeper":
        return [*head, mutated(data, item), *tail]
    return {"drop": [*head, *tail], "double": [*head, item, item, *tail], "swap": [*tail, item, *head]}[
        change
    ]


@given(data=st.data())
def test_a_damaged_state_is_refused_whole_or_is_a_state(data: st.DataObject) -> None:
    state = json.loads(TEXT)
    state["root"] = mutated(data, state["root"])
    session = session_of([run(), *steps(1, 5)])
    before = session.state()
    try:
        session.restore(state)
    except ValueError:
        assert session.state() == before
    else:
        restored_from(session.state())
    session.view()


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("_count", 10**9, "buckets of another size"),
        ("_count", -1, "buckets of another size"),
        ("_bucket_steps", 0, "buckets of another size"),
        ("_bucket_steps", 3, "buckets of another size"),
        ("_minimum", "", "arrays of other sizes"),
        ("_sum", "", "arrays of other sizes"),
        ("_ring", "", "arrays of other sizes"),
        ("_ring_nonfinite", "AA==", "arrays of other sizes"),
        ("_ring_count", 103, "more recent values"),
        ("_first_step", 1.0, "expected int"),
        ("_sum", [0.0], "expected base64"),
        ("_sum", "A", "no array"),
        ("_sum", "AAAA", "no array"),
        ("_sum", "é", "no array"),
    ],
)
def test_a_track_that_could_hang_or_mislead_is_refused(attribute: str, value: Any, words: str) -> None:
    state = json.loads(TEXT)
    place = 1 + [*declared(type(session_of(EVERYTHING)._tracks._loss))].index(attribute)
    tracks = state["root"][1 + [*declared(Session)].index("_tracks")]
    track = next(item for item in tracks if isinstance(item, list))
    track[place] = value
    with pytest.raises(StateError, match=f"Tracks._loss: .*{words}"):
        Session().restore(state)


def test_a_config_that_nests_without_end_is_refused() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    state = json.loads(session_of([run(config={"a": ["here"]})]).state())
    state["root"] = replaced(state["root"], ["here"], [deep])
    with pytest.raises(StateError, match=r"RunStarted\.config: nested too deeply"):
        Session().restore(state)


def replaced(value: Any, old: Any, new: Any) -> Any:
    if value == old:
        return new
    return [replaced(item, old, new) for item in value] if isinstance(value, list) else value
