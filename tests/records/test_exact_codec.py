"""A codec for what two processes of one version tell each other: all that is annotated, and nothing else."""

import json
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.strictjson import JsonError
from amptui.records.codec import Codec

Word = Literal["info", "error"]


@dataclass(slots=True)
class Alone:
    value: float = 0.0


@dataclass(slots=True)
class Nothing:
    pass


@dataclass(slots=True)
class Many:
    """A field of every kind that is taken."""

    floats: deque[float] = field(default_factory=deque)
    rows: deque[tuple[int, float, str]] = field(default_factory=deque)
    counts: deque[int] = field(default_factory=deque)
    array: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    sums: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    flags: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    words: Counter[Word] = field(default_factory=Counter)
    by_word: dict[Word, deque[float]] = field(default_factory=dict)
    mapping: Mapping[str, Alone] = field(default_factory=dict)
    items: list[float | None] = field(default_factory=list)
    many: tuple[Alone, ...] = ()
    one: Alone | Nothing | None = None
    anything: Any = None
    time: float = 0.0
    large: int = 0
    cache: object = field(default=None, init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        if self.large == 13:
            raise ValueError("not this number")


FLOATS = st.lists(st.floats(), max_size=6)
ALONE = st.builds(Alone, st.floats())
INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1)
MANY = st.builds(
    Many,
    floats=FLOATS.map(lambda values: deque(values, 5)) | st.just(deque[float]()),
    rows=st.lists(st.tuples(INTEGERS, st.floats(), st.text(max_size=3)), max_size=3).map(deque),
    counts=st.lists(INTEGERS, max_size=3).map(deque),
    array=FLOATS.map(lambda values: np.array(values, np.float64)),
    sums=st.lists(INTEGERS, max_size=3).map(lambda values: np.array(values, np.int64)),
    flags=st.lists(st.booleans(), max_size=3).map(lambda values: np.array(values, np.bool_)),
    words=st.dictionaries(st.sampled_from(["info", "error"]), INTEGERS).map(Counter),
    by_word=st.dictionaries(st.sampled_from(["info", "error"]), FLOATS.map(lambda each: deque(each, 9))),
    mapping=st.dictionaries(st.text(max_size=3), ALONE, max_size=3),
    items=st.lists(st.none() | st.floats(), max_size=3),
    many=st.lists(ALONE, max_size=3).map(tuple),
    one=st.none() | ALONE | st.builds(Nothing),
    anything=st.none() | st.lists(st.text(max_size=3) | st.booleans(), max_size=3),
    time=st.floats(0, 1e9),
    large=INTEGERS.filter(lambda value: value != 13),
)
CODEC: Codec[Many] = Codec(Many, exact=True)


def shown(value: Many) -> list[str]:
    """Each field's value; arrays to the bit."""
    values = [getattr(value, each.name) for each in fields(value) if each.init]
    return [f"{v.dtype} {v.tobytes()!r}" if isinstance(v, np.ndarray) else repr(v) for v in values]


@given(value=MANY)
def test_a_field_of_every_kind_survives(value: Many) -> None:
    value.cache = "stale"
    text = CODEC.dumps(value)
    assert text.isascii()
    assert text.isprintable()
    read = CODEC.read(json.loads(text))
    assert shown(read) == shown(value)
    assert read.cache is None
    assert read.lock is not value.lock
    assert read.array.flags.writeable
    assert CODEC.dumps(read) == text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"floats": [3, "AAAA"]}, "Many.floats: not an array"),
        ({"floats": [-1, []]}, "Many.floats: a deque with an invalid bound"),
        ({"floats": []}, "Many.floats: expected a bound and items"),
        ({"counts": [3, "AAAAAAAA8D8="]}, "Many.counts: expected an array"),
        ({"rows": [3, [[1, 2.0]]]}, "Many.rows: expected 3 items"),
        ({"array": [0.0]}, "Many.array: expected base64"),
        ({"words": {"shout": 1}}, "Many.words: expected one of info, error"),
        ({"one": {"type": "Many"}}, "Many.one: expected one of Alone, Nothing, not 'Many'"),
        ({"many": [{}]}, "Many.many: Alone: missing value"),
        ({"time": -1.0}, "Many.time: not a time"),
        ({"large": 1.5}, "Many.large: expected int"),
        ({"large": 13}, "Many: not this number"),
        ({"lock": None}, "Many: unknown fields"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(change: dict[str, Any], told: str) -> None:
    text = CODEC.dumps(Many())
    assert shown(CODEC.read(json.loads(text))) == shown(Many())
    with pytest.raises(JsonError, match=f"^{told}"):
        CODEC.read(json.loads(text) | change)
