"""What is no session's state: it is refused whole, in words, and whatever it is."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.strictjson import JsonError
from amptui.records.codec import Codec
from amptui.telemetry.session import STATE_VERSION, Session
from tests.telemetry.record_samples import run, steps
from tests.telemetry.whole_runs import ENDS, EVERYTHING, restored_from, session_of


@pytest.mark.parametrize("state", [None, [], "state", 1, {}, {"session": []}, {"fingerprint": "x"}])
def test_what_was_never_a_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="not the state of a run"):
        Session().restore(state)


OTHER_VERSION = "^the run was started by another version of amptui; attach with that version"


@pytest.mark.parametrize(
    "version", [STATE_VERSION - 1, STATE_VERSION + 1, str(STATE_VERSION), None, [STATE_VERSION]]
)
def test_a_state_of_another_version_is_refused_in_words(version: Any) -> None:
    with pytest.raises(ValueError, match=f"{OTHER_VERSION}$"):
        Session().restore(json.loads(Session().state()) | {"version": version})


FRONT: dict[str, Any] = {"name": "", "_longest_gap": {}, "_others": {}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"_keeping": None}, r"\(Session\._keeping: Keeping: expected an object, not None\)$"),
        (
            {"_keeping": {"viewers": 0}},
            r"\(Session\._keeping: Keeping: missing checkpoint, not_kept, weights",
        ),
        (
            {"_optimizers": {"is_left_out": False, "_by_name": {}, "_front": FRONT}},
            r"\(Session\._optimizers: Optimizers: without its first optimizer",
        ),
        ({"_speed": 1.0}, r"\(Session: unknown fields\)$"),
        ({"_state": "standing"}, r"\(Session\._state: expected one of starting, running"),
    ],
)
def test_a_version_that_declares_other_fields_is_refused_in_one_line(
    change: dict[str, Any], told: str
) -> None:
    state = json.loads(Session().state())
    state["session"] |= change
    session = session_of([run(), *steps(1, 5)])
    before = session.state()
    with pytest.raises(JsonError, match=OTHER_VERSION + ".*" + told) as refused:
        session.restore(state)
    assert "\n" not in str(refused.value)
    assert session.state() == before


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["", "nan", "fp16", "AAAAAAAA8D8=", "AAAA\u00e9", "A"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)

CODEC: Codec[Session] = Codec(Session, exact=True)

TEXT = session_of([*EVERYTHING, ENDS[1]]).state()


def mutated(data: st.DataObject, value: Any) -> Any:
    """``value`` with one thing in it replaced, left out, doubled, or moved."""
    if not isinstance(value, list | dict) or not value or data.draw(st.integers(0, 9)) == 0:
        if isinstance(value, int) and data.draw(st.booleans()):
            return value + data.draw(st.integers(-3, 3))
        return data.draw(JSON)
    if isinstance(value, dict):
        key = data.draw(st.sampled_from([*value]))
        change = data.draw(st.sampled_from(["deeper"] * 8 + ["drop", "rename"]))
        others = {element: item for element, item in value.items() if element != key}
        return {
            "deeper": lambda: {**value, key: mutated(data, value[key])},
            "drop": lambda: others,
            "rename": lambda: {**others, data.draw(st.sampled_from([*value, "type", ""])): value[key]},
        }[change]()
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
    state["session"] = mutated(data, state["session"])
    with suppress(JsonError):
        CODEC.read(state["session"])
    session = session_of([run(), *steps(1, 5)])
    before = session.state()
    try:
        session.restore(state)
    except JsonError:
        assert session.state() == before
    else:
        restored_from(session.state())
    session.view()


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("_count", 10**9, "buckets of an invalid size"),
        ("_bucket_steps", 3, "buckets of an invalid size"),
        ("_sum", "", "arrays of different sizes"),
        ("_ring_nonfinite", "AA==", "arrays of different sizes"),
        ("_ring_count", 106, "more recent values"),
        ("_sum", [0.0], "expected base64"),
        ("_sum", "A", "not an array"),
    ],
)
def test_a_track_that_could_hang_or_mislead_is_refused(attribute: str, value: Any, words: str) -> None:
    state = json.loads(TEXT)
    state["session"]["_optimizers"]["_by_name"][""]["tracks"]["_loss"][attribute] = value
    with pytest.raises(JsonError, match=f"Tracks._loss: .*{words}"):
        Session().restore(state)
