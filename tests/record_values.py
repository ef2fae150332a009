"""Whatever the fields of records may hold, and the records of a run, in hypothesis's words."""

import dataclasses
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from amptui.records.codec import MAX_SECONDS
from amptui.records.run import FORM, Record
from amptui.records.steps import Steps
from tests.builders import StepRow, in_one, row

RECORD_TYPES = get_args(Record)

IN_COMMON = ("epoch", "precision", "settling", "micro_batches", "optimizer", "loss_form")
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MAX_COUNT = 2**53
INTEGERS = st.integers(-(2**63), 2**63 - 1)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FINITE | st.text(max_size=8),
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

ByName = Mapping[tuple[str, type[Any]], st.SearchStrategy[Any]]

ANY: ByName = {
    ("time", float): SECONDS.map(abs),
    ("form", int): st.just(FORM),
}
"""What a field of a name and a type may hold where its annotation allows more."""


def records_of(cls: type[Any], by_name: ByName = ANY) -> st.SearchStrategy[Any]:
    return blocks(by_name) if cls is Steps else values_of(cls, by_name=by_name)


def values_of(hint: Any, name: str = "", by_name: ByName = ANY) -> st.SearchStrategy[Any]:
    """Values that a field called ``name`` and annotated with ``hint`` may hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = get_type_hints(hint).items()
        return st.builds(hint, **{each: values_of(inner, each, by_name) for each, inner in fields})
    if origin in (UnionType, Union):
        return st.one_of([values_of(argument, name, by_name) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        items = values_of(arguments[0], name, by_name)
        return st.lists(items, min_size=name == "rows", max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=8), values_of(arguments[1], name, by_name), max_size=3)
    by_hint = SIMPLE | {float: SECONDS} if MEASURED.search(name) else SIMPLE
    return by_name.get((name, hint), by_hint[hint])


@st.composite
def blocks(draw: st.DrawFn, by_name: ByName = ANY) -> Steps:
    drawn = draw(st.lists(values_of(StepRow, by_name=by_name), min_size=1, max_size=6))
    first, *later = map(dataclasses.asdict, drawn)
    first["step"] = min(first["step"], MAX_COUNT - 6)
    alike = {name: first[name] for name in IN_COMMON}
    alike |= {"losses": dict.fromkeys(first["losses"], 0.5), "group_lrs": first["group_lrs"]}
    rows = [first, *({**facts, "step": first["step"] + n, **alike} for n, facts in enumerate(later, 1))]
    block = in_one([row(**facts) for facts in rows])
    # A block has one time, and its other steps ended at times that a record may have too.
    ended_well = 0 <= min(block.times()) <= max(block.times()) <= MAX_SECONDS
    return block if ended_well else dataclasses.replace(block, step_seconds=[None] * block.count)


STEP_NUMBERS = st.integers(0, 60)
RANKS = st.integers(0, 9)
PRECISIONS = st.sampled_from(["fp32", "fp16", "fp8", "mixed", "fp16 weights"])
SCALES = st.floats() | st.sampled_from([1.0, 65536.0])

NEAR: ByName = {
    **ANY,
    ("time", float): st.floats(0, MAX_SECONDS),
    **{(name, int): STEP_NUMBERS for name in ("step", "steps", "lost_steps")},
    **{(name, int): RANKS for name in ("rank", "ranks", "silent", "world_size")},
    **{(name, str): PRECISIONS for name in ("precision", "previous", "current", "baseline")},
    **{(name, float): SCALES for name in ("loss_scale", "previous", "current")},
    ("optimizer", str): st.sampled_from(["", "", "", "D", "E"]),
    ("epoch", int): st.integers(0, 3),
    ("samples", int): st.integers(0, 10**6),
    ("growth_tracker", int): st.integers(0, 3000),
    ("micro_batches", int): st.integers(1, 4),
    ("number", int): st.integers(0, 5),
    ("step_seconds", float): st.floats() | st.floats(0, 100),
    ("grad_max", float): st.floats() | st.floats(1e-6, 1e6),
    ("gpu_uuid", str): st.just("GPU-1"),
    ("device_name", str): st.sampled_from(["NVIDIA H200", "CPU"]),
    ("name", str): st.sampled_from(["", "a", "b.weight"]),
    ("text", str): st.text(min_size=1).filter(str.strip),
}
"""Values that meet: the same few steps, names and ranks again and again."""

BLOCKS = records_of(Steps, NEAR)
STEPS = BLOCKS.map(lambda block: block.part(0, 1))
OTHER_RECORDS = st.one_of([records_of(cls, NEAR) for cls in RECORD_TYPES if cls is not Steps])
RECORDS = STEPS | BLOCKS | OTHER_RECORDS
