"""Reads the line of a single step, as earlier versions wrote them, in a third of the codec's time."""

from functools import lru_cache
from operator import itemgetter
from types import NoneType
from typing import Any, get_args

import orjson

from amptui.base import strictjson
from amptui.records.own_loop import LossForm
from amptui.records.steps import COLUMNS, INTEGER_COLUMNS, SAME, Steps

_BEGINS = '{"type":"StepRecord",'

_MAX_CHARACTERS = 3000
"""Of a line with so few no number has too many digits for the codec."""

_NAMES = ("time", "step", *SAME, *COLUMNS)

_OF_STEP = itemgetter(*_NAMES)

_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("optimizer", "loss_form"), ""),
    "grad_max": None,
    "micro_batches": 1,
    "losses": {},
    "group_lrs": [],
}

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("precision", "optimizer", "loss_form"), (str,)),
    **dict.fromkeys(("step", "epoch", "micro_batches"), (int,)),
    **dict.fromkeys(("skipped", "settling"), (bool,)),
    **dict.fromkeys(COLUMNS, (float, NoneType)),
    **dict.fromkeys(INTEGER_COLUMNS, (int, NoneType)),
    "time": (float,),
    "samples": (int,),
}

_COUNTS = ("step", "epoch", "micro_batches", *sorted(INTEGER_COLUMNS))

_SECONDS = ("step_seconds", "data_seconds")

_FORMS = frozenset(get_args(LossForm))


def loads(line: str) -> Steps | None:
    """The block in ``line``; None if it is no single step, or if anything in it is unusual.

    What is unusual, such as a number that is not finite, is left to the codec, which also says what is wrong.
    """
    if not line.startswith(_BEGINS) or len(line) > _MAX_CHARACTERS:
        return None
    try:
        value = {**_DEFAULTS, **orjson.loads(line)}
        kinds = tuple(map(type, _OF_STEP(value)))
    except (ValueError, KeyError):
        return None
    has_columns = value["losses"] != {} or value["group_lrs"] != []
    if has_columns or not _are_usual(kinds) or not _is_in_bounds(value):
        return None
    same = {name: value[name] for name in SAME}
    columns: dict[str, Any] = {name: (value[name],) for name in COLUMNS}
    return Steps(time=value["time"], first_step=value["step"], count=1, **same, **columns)


@lru_cache(maxsize=256)
def _are_usual(kinds: tuple[type, ...]) -> bool:
    """Whether the values of a step are of the types that they have in a record; a text is no number."""
    return all(kind in _TYPES[name] for name, kind in zip(_NAMES, kinds, strict=True))


def _is_in_bounds(value: dict[str, Any]) -> bool:
    counts = [value[name] or 0 for name in _COUNTS]
    seconds = [abs(value[name] or 0.0) for name in _SECONDS]
    return (
        min(counts) >= 0
        and max(counts) <= strictjson.MAX_COUNT
        and max(seconds) <= strictjson.MAX_SECONDS
        and 0.0 <= value["time"] <= strictjson.MAX_SECONDS
        and value["loss_form"] in _FORMS
    )
