"""Whatever the fields of a record may hold, in hypothesis's words; and a line as a test reads it."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from amptui.base.strictjson import MAX_COUNT, MAX_SECONDS
from amptui.records import codec
from amptui.records.run import Record
from amptui.records.steps import COLUMNS, StepRecord, Steps

RECORD_TYPES = get_args(Record)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
SIMPLE = {
    Any: JSON_VALUES,
    int: st.integers(0, MAX_COUNT),
    float: st.floats(),
    bool: st.booleans(),
    str: st.text(max_size=20),
    NoneType: st.none(),
}
SECONDS = st.floats(-MAX_SECONDS, MAX_SECONDS)
MEASURED = re.compile("seconds|_(percent|watts|c|mhz|joules)$")
BY_NAME = {
    "time": SECONDS.map(abs),
    "first_exponent": st.integers(-1074, 1023),
    "cosine": st.none() | st.just(math.nan) | st.floats(-1, 1),
}


def records_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Records of one type."""
    return blocks() if cls is Steps else values_of(cls)


def values_of(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values that a field called ``name`` and annotated with ``hint`` may hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = get_type_hints(hint).items()
        return st.builds(hint, **{each: values_of(inner, each) for each, inner in fields})
    if origin in (UnionType, Union):
        return st.one_of([values_of(argument, name) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values_of(arguments[0], name), min_size=name == "rows", max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=8), values_of(arguments[1], name), max_size=3)
    by_hint = SIMPLE | {float: SECONDS} if MEASURED.search(name) else SIMPLE
    return BY_NAME.get(name, by_hint[hint])


@st.composite
def blocks(draw: st.DrawFn) -> Steps:
    """A block of one to four steps."""
    single = draw(values_of(StepRecord))
    hints, count = get_type_hints(StepRecord), draw(st.integers(1, 4))

    def column(name: str) -> Any:
        return draw(st.lists(values_of(hints[name], name), min_size=count, max_size=count))

    names = draw(st.lists(st.text(max_size=8), max_size=2, unique=True))
    block = dataclasses.replace(
        Steps.of(dataclasses.replace(single, step=draw(st.integers(0, MAX_COUNT - 4)))),
        count=count,
        losses={name: column("loss") for name in names},
        group_lrs=tuple(column("lr") for _ in range(draw(st.integers(0, 2)))),
        **{name: column(name) for name in COLUMNS},
    )
    # A block has one time, and its other steps ended at times that a record may have too.
    ended_well = 0 <= min(block.times()) <= max(block.times()) <= MAX_SECONDS
    return block if ended_well else dataclasses.replace(block, step_seconds=[None] * count)


def loads(line: str) -> Record | None:
    """The record in a line; that of a single step is a block when it is read."""
    record = codec.loads(line)
    is_single = json.loads(line)["type"] == "StepRecord"
    return record.one(0) if is_single and isinstance(record, Steps) else record
