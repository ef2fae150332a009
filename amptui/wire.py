"""Records as lines of strict JSON and back: the form they have in the journal and in ``--json`` output.

A line is one object: ``type``, then ``time``, then the record's other fields. A number that was not
measured is ``null``; a number that is not finite is one of the strings ``"nan"``, ``"inf"``, ``"-inf"``.
Lines are ASCII, so that whatever user code printed can be kept, and never hold a line break.
"""

import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from amptui.records import Record


class WireError(ValueError):
    """A line is not a record: not strict JSON, a field absent, or a value of the wrong type."""


def dumps(record: Record) -> str:
    """``record`` as one line of strict JSON, without the line break."""
    return _object(record)


def loads(line: str) -> Record | None:
    """The record in ``line``; None when its type is of a later version.

    Unknown fields are ignored and absent ones take their defaults. Raises ``WireError``.
    """
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not strict JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise WireError("not an object with a type")
    plan = _READING.get(value["type"])
    if plan is None:
        return None
    record: Record = plan.read(value)
    return record


def plain(value: object) -> Any:
    """``value`` in JSON's own types, non-finite numbers as strings and unknown objects as their text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Real):
        return _plain_number(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def _plain_number(value: numbers.Real) -> int | float | str:
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)


# Writing. One StepRecord is written for each step beside the training, so the common types are told
# apart by identity and a dataclass's punctuation is laid out once.


def _float(value: float) -> str:
    return repr(value) if value - value == 0.0 else f'"{value!r}"'


def _mapping(value: Mapping[Any, Any]) -> str:
    if not value:
        return "{}"
    return "{" + ",".join([f"{_string(str(key))}:{_text(item)}" for key, item in value.items()]) + "}"


def _array(value: Iterable[Any]) -> str:
    return "[" + ",".join([_text(item) for item in value]) + "]"


_string = encode_basestring_ascii

_WRITERS: Mapping[type, Callable[[Any], str]] = {
    float: _float,
    int: int.__repr__,
    bool: {True: "true", False: "false"}.__getitem__,
    str: _string,
    NoneType: {None: "null"}.__getitem__,
    dict: _mapping,
    tuple: _array,
    list: _array,
}


def _text(value: object) -> str:
    """Any value as JSON text."""
    kind = type(value)
    if kind in _LAYOUTS:
        return _object(value)
    writer = _WRITERS.get(kind)
    return writer(value) if writer else json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def _object(record: object) -> str:
    """A record, or a dataclass within one, as JSON text."""
    layout, values = _LAYOUTS[type(record)]
    # "%s" of an int or a finite float is its JSON text: the short way for most fields of a StepRecord.
    return layout % tuple(
        [
            value
            if (kind := type(value)) is int or (kind is float and value - value == 0.0)
            else _WRITERS.get(kind, _text)(value)
            for value in values(record)
        ]
    )


def _layout(cls: type[Any]) -> tuple[str, Callable[[Any], tuple[Any, ...]]]:
    """The punctuation of ``cls``'s JSON with a gap a field, and what gets the fields' values."""
    names = [field.name for field in dataclasses.fields(cls)]
    head = [f'"type":"{cls.__name__}"'] if cls in _RECORD_TYPES else []
    return "{" + ",".join(head + [f'"{name}":%s' for name in names]) + "}", attrgetter(*names)


# Reading. Each field's annotation becomes a function from the JSON value to the field's value.

_Reader = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """How one dataclass is read: a reader a field, and the fields that a line must have."""

    cls: type[Any]
    readers: Mapping[str, _Reader]
    required: frozenset[str]

    def read(self, value: object) -> Any:
        name = self.cls.__name__
        if not isinstance(value, dict):
            raise WireError(f"{name}: expected an object, not {_shown(value)}")
        if absent := self.required - value.keys():
            raise WireError(f"{name}: no {', '.join(sorted(absent))}")
        fields = {}
        for key, reader in self.readers.items():
            if key in value:
                try:
                    fields[key] = reader(value[key])
                except WireError as error:
                    raise WireError(f"{name}.{key}: {error}") from None
        return self.cls(**fields)


def _plan(cls: type[Any]) -> _Plan:
    hints = get_type_hints(cls)
    fields = dataclasses.fields(cls)
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return _Plan(cls, {field.name: _reader(hints[field.name]) for field in fields}, frozenset(required))


def _reader(hint: Any) -> _Reader:
    """The reader of values that are annotated with ``hint``."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _plan(hint).read
    if hint in _SIMPLE_READERS:
        return _SIMPLE_READERS[hint]
    return _GENERIC_READERS[get_origin(hint)](get_args(hint))


def _as_it_is(value: Any) -> Any:
    return value


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int or value in ("nan", "inf", "-inf"):
        try:
            return float(value)
        except OverflowError as error:
            raise WireError("a number beyond float's range") from error
    raise WireError(f"expected a number, not {_shown(value)}")


def _exactly(kind: type[Any]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise WireError(f"expected {kind.__name__}, not {_shown(value)}")
        return value

    return read


def _one_of(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise WireError(f"expected one of {', '.join(choices)}, not {_shown(value)}")
        return value

    return read


def _optional(arguments: tuple[Any, ...]) -> _Reader:
    (reader,) = (_reader(argument) for argument in arguments if argument is not NoneType)

    def read(value: Any) -> Any:
        return None if value is None else reader(value)

    return read


def _tuple_of(arguments: tuple[Any, ...]) -> _Reader:
    reader = _reader(arguments[0])

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise WireError(f"expected an array, not {_shown(value)}")
        return tuple([reader(item) for item in value])

    return read


def _mapping_of(arguments: tuple[Any, ...]) -> _Reader:
    reader = _reader(arguments[1])

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise WireError(f"expected an object, not {_shown(value)}")
        return {key: reader(item) for key, item in value.items()}

    return read


def _shown(value: object) -> str:
    """A value in an error's text, cut so that it stays one short line."""
    return repr(value)[:40]


def _refuse_constant(name: str) -> NoReturn:
    raise WireError(f"{name} is not JSON")


def _dataclasses_in(hint: Any) -> set[type[Any]]:
    """Every dataclass that ``hint`` names, at any depth."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        inner = (_dataclasses_in(part) for part in get_type_hints(hint).values())
        return {hint}.union(*inner)
    return set().union(*map(_dataclasses_in, get_args(hint)))


_SIMPLE_READERS: Mapping[Any, _Reader] = {
    Any: _as_it_is,
    float: _read_float,
    int: _exactly(int),
    bool: _exactly(bool),
    str: _exactly(str),
}
_GENERIC_READERS: Mapping[Any, Callable[[tuple[Any, ...]], _Reader]] = {
    UnionType: _optional,
    Union: _optional,  # what a Literal or None is
    tuple: _tuple_of,
    Mapping: _mapping_of,
    Literal: _one_of,
}
_RECORD_TYPES: frozenset[type[Any]] = frozenset(get_args(Record))
_LAYOUTS = {cls: _layout(cls) for cls in _dataclasses_in(Record)}
_READING = {cls.__name__: _plan(cls) for cls in _RECORD_TYPES}
