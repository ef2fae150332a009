"""A block of steps as one line of strict JSON: a constant column is one value, others are arrays."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from json.encoder import encode_basestring_ascii
from types import NoneType
from typing import Any, get_args

import orjson

from amptui.base import strictjson
from amptui.base.strictjson import JsonError
from amptui.records.own_loop import LossForm
from amptui.records.steps import COLUMNS, INTEGER_COLUMNS, Column, Steps

LINE_BEGINS = '{"type":"Steps",'

MAX_STEPS = 2**16
"""In one line. A dozen blocks a second have that many where a step takes a microsecond."""

_FLAGS = ("skipped", "settling")
_NAMES = tuple(field.name for field in fields(Steps))
_DEFAULTS: Mapping[str, Any] = {
    "micro_batches": 1,
    "optimizer": "",
    "loss_form": "",
    "losses": {},
    "group_lrs": (),
}
"""What a line leaves out."""
_REQUIRED = frozenset(_NAMES) - _DEFAULTS.keys()

_FLOATS, _MEASURED_OR_NOT, _NUMBERS = {float}, {float, NoneType}, {int, float, str, NoneType}
_INTEGERS = {int, NoneType}

_READ_FLAG = strictjson.exactly(bool)
_READ_FORM = strictjson.one_of(get_args(LossForm))


def dumps(steps: Steps) -> str:
    """``steps`` as one line of ASCII, without the line break."""
    values = ((name, getattr(steps, name)) for name in _NAMES)
    fields = [f'"{name}":{_field(name, value)}' for name, value in values if _DEFAULTS.get(name) != value]
    return f"{LINE_BEGINS}{','.join(fields)}}}"


def loads(line: str) -> Steps:
    """The block in a line that begins with :data:`LINE_BEGINS`. Raises ``JsonError``."""
    if len(line) > strictjson.MAX_LINE_BYTES:
        raise JsonError(f"longer than {strictjson.MAX_LINE_BYTES:,} bytes")
    try:
        value = orjson.loads(line)
    except ValueError:  # a name may hold half of a surrogate pair, which orjson refuses
        value = strictjson.parse(line)
    return read(value)


def read(value: Mapping[str, Any]) -> Steps:
    """The block in an object of parsed JSON. Raises ``JsonError``."""
    if absent := _REQUIRED - value.keys():
        raise JsonError(f"Steps: missing {', '.join(sorted(absent))}")
    try:
        return _steps({**_DEFAULTS, **value})
    except JsonError as error:
        raise JsonError(f"Steps: {error}") from None


def _field(name: str, value: Any) -> str:
    if name in COLUMNS:
        return _column_text(value)
    if name == "losses":
        parts = [f"{_text(part)}:{_column_text(column)}" for part, column in value.items()]
        return f"{{{','.join(parts)}}}"
    if name == "group_lrs":
        return f"[{','.join(map(_column_text, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is str:
        return _text(value)
    return repr(value) if math.isfinite(value) else f'"{value}"'


def _text(text: str) -> str:
    return encode_basestring_ascii(text[: strictjson.MAX_TEXT_CHARACTERS])


def _column_text(column: Column) -> str:
    """The whole column; its first value alone if all are the same."""
    first = column[0]
    if column.count(first) == len(column):
        return _array_text([first])[1:-1]
    return _array_text(list(column))


def _array_text(values: list[float | None]) -> str:
    if not _are_finite(values):  # orjson would write null
        return json.dumps(
            [str(value) if value is not None and not math.isfinite(value) else value for value in values],
            separators=(",", ":"),
        )
    try:
        return orjson.dumps(values).decode()
    except TypeError:  # an integer of more than 64 bits, or a number of another library
        return json.dumps([strictjson.plain(value) for value in values], separators=(",", ":"))


def _are_finite(values: list[float | None]) -> bool:
    try:
        return math.isfinite(sum(values))  # type: ignore[arg-type]  # the usual case; a None raises TypeError
    except TypeError:
        return all(value is None or math.isfinite(value) for value in values)
    except OverflowError:
        return False


def _steps(value: Mapping[str, Any]) -> Steps:
    count = _count(value["count"], 1, MAX_STEPS)
    losses, group_lrs = value["losses"], value["group_lrs"]
    if not isinstance(losses, dict) or not isinstance(group_lrs, list | tuple):
        raise JsonError("expected columns")
    strictjson.check_length(losses)
    strictjson.check_length(group_lrs)
    flags = {name: _READ_FLAG(value[name]) for name in _FLAGS}
    columns: dict[str, Any] = {name: _column(value[name], count, name) for name in COLUMNS}
    if None in columns["samples"]:
        raise JsonError("samples: not measured")
    steps = Steps(
        time=strictjson.read_time(value["time"]),
        first_step=_count(value["first_step"], 0, strictjson.MAX_COUNT - count),
        count=count,
        epoch=_count(value["epoch"], 0, strictjson.MAX_COUNT),
        precision=strictjson.read_text(value["precision"]),
        micro_batches=_count(value["micro_batches"], 0, strictjson.MAX_COUNT),
        optimizer=strictjson.read_text(value["optimizer"]),
        loss_form=_READ_FORM(value["loss_form"]),
        losses={
            strictjson.read_text(name): _column(column, count, "losses") for name, column in losses.items()
        },
        group_lrs=tuple(_column(column, count, "group_lrs") for column in group_lrs),
        **flags,
        **columns,
    )
    _check_times(steps)
    return steps


def _check_times(steps: Steps) -> None:
    """Raise ``JsonError`` if a step ended at no time that a calendar shows."""
    later = [seconds for seconds in steps.step_seconds[1:] if seconds is not None]
    if not later or min(later) >= 0.0:
        strictjson.read_time(steps.time - sum(later))  # the first of them; the last one's was read
        return
    times = steps.times()  # a clock was set back
    strictjson.read_time(min(times))
    strictjson.read_time(max(times))


def _count(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise JsonError(f"expected an integer from {low:,} to {high:,}, not {strictjson.shown(value)}")
    return value


def _column(value: Any, count: int, name: str) -> list[Any]:
    """``count`` values of the column ``name``."""
    read = _READERS.get(name, _floats)
    if type(value) is not list:
        return read([value], name) * count
    if len(value) != count:
        raise JsonError(f"{name}: {len(value):,} values for {count:,} steps")
    return read(value, name)


def _floats(values: list[Any], name: str) -> list[Any]:
    """Floats or None."""
    kinds = set(map(type, values))
    if kinds == _FLOATS or kinds <= _MEASURED_OR_NOT:
        return values
    if not kinds <= _NUMBERS:
        raise JsonError(f"{name}: expected numbers")
    return [None if value is None else strictjson.read_float(value) for value in values]


def _seconds(values: list[Any], name: str) -> list[Any]:
    """Floats or None within the bounds of :mod:`amptui.base.strictjson`."""
    numbers = _floats(values, name)
    _check_bounds(numbers, name, -strictjson.MAX_SECONDS, strictjson.MAX_SECONDS)
    return numbers


def _integers(values: list[Any], name: str) -> list[Any]:
    """Integers or None within the bounds of :mod:`amptui.base.strictjson`."""
    if not set(map(type, values)) <= _INTEGERS:
        raise JsonError(f"{name}: expected numbers")
    _check_bounds(values, name, 0, strictjson.MAX_COUNT)
    return values


def _check_bounds(values: list[Any], name: str, low: float, high: float) -> None:
    """Raise ``JsonError`` unless all values but None are from ``low`` to ``high``."""
    numbers = values if None not in values else [value for value in values if value is not None]
    # A NaN is the least of them only if it is the first.
    if numbers and not (low <= min(numbers) and max(numbers) <= high and sum(numbers) < math.inf):
        raise JsonError(f"{name}: expected numbers from {low:g} to {high:g}")


_READERS: Mapping[str, Callable[[list[Any], str], list[Any]]] = {
    **dict.fromkeys(INTEGER_COLUMNS, _integers),
    **dict.fromkeys((name for name in COLUMNS if name.endswith("_seconds")), _seconds),
}
"""Of the columns that have bounds."""
