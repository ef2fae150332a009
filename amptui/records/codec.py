"""Converts dataclasses to strict JSON and back: records, requests and the state of a session.

A record is one line with one object: ``type``, ``time``, then the other fields; ``null`` for what was not
measured. A block of steps writes a column that is the same in all steps as one value.

Only annotations decide which classes are made: JSON can only choose among the classes of a union.
"""

import dataclasses
import math
from array import array
from binascii import a2b_base64, b2a_base64
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from amptui.base import strictjson
from amptui.base.strictjson import JsonError, plain, plain_float, plain_integer, plain_text, shown
from amptui.records.own_loop import LossForm
from amptui.records.run import FORM, Record
from amptui.records.steps import COLUMNS, Column, Steps

MAX_STEPS = 2**16
"""In one line. A dozen blocks a second have that many where a step takes a microsecond."""

MAX_SECONDS = 32_503_680_000.0
"""The year 3000 in Unix seconds: every calendar can show it."""

_Reader = Callable[[Any], Any]
"""Converts and checks a JSON value. Raises ``JsonError``."""

_T = TypeVar("_T")


class OtherFormError(JsonError):
    """The journal was written in another form than this amptui reads."""


def dumps(record: Record) -> str:
    """``record`` as one line of strict ASCII JSON, without the line break."""
    return _RECORDS.dumps(record)


def line_of(record: Record) -> bytes:
    """The same with the line break: what a journal holds, and a screen is sent."""
    return f"{_RECORDS.dumps(record)}\n".encode()


def loads(line: str | bytes) -> Record:
    """The record in ``line``.

    Unknown fields are ignored, missing ones get their defaults. Raises ``JsonError``, of the start of a run
    in another form ``OtherFormError``.
    """
    value = strictjson.parse(line)
    if isinstance(value, dict) and value.get("type") == "RunStarted" and value.get("form", 1) != FORM:
        form = str(value.get("form", 1))[:20]
        raise OtherFormError(f"it has form {form}, and this amptui reads form {FORM}")
    return _RECORDS.read(value)


class Codec(Generic[_T]):
    """Writes and reads values of the type ``hint``: a dataclass, or a union of several.

    An object is written as the arguments of its constructor; fields with ``init=False``, such as a cache or a
    lock, are created again. Objects of a union begin with their ``type``.

    Unknown fields are ignored, missing ones get their defaults.
    """

    def __init__(self, hint: Any) -> None:
        self._objects: dict[type[Any], _Reader] = {}
        self._of_unions: set[type[Any]] = set()
        self._writers: dict[type[Any], Callable[[Any], Any]] = {
            int: plain_integer,
            float: plain_float,
            str: plain_text,
            **dict.fromkeys((tuple, list), self._plain_items),
            dict: self._plain_mapping,
            deque: self._plain_deque,
            Steps: _plain_steps,
        }
        self._read = self._reader(hint)
        self._writers |= {cls: self._writer(cls) for cls in self._objects}

    def dumps(self, value: _T) -> str:
        """``value`` as one line of strict ASCII JSON, without the line break."""
        return strictjson.dumps(self.plain(value))

    def read(self, value: object) -> _T:
        """The value that :meth:`dumps` wrote, from parsed JSON. Raises ``JsonError``."""
        decoded: _T = self._read(value)
        return decoded

    # Writing depends on the value's own type, which may be numpy's.

    def plain(self, value: Any) -> Any:
        """``value`` in JSON's own types."""
        writer = self._writers.get(type(value))
        return plain(value) if writer is None else writer(value)

    def _plain_items(self, value: Iterable[Any]) -> list[Any]:
        return [self.plain(item) for item in value]

    def _plain_mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        return {plain_text(str(key)): self.plain(item) for key, item in value.items()}

    def _plain_deque(self, value: deque[Any]) -> list[Any]:
        """Its maximum length and its items, packed if all are floats."""
        packs = set(map(type, value)) == {float}
        return [value.maxlen, _packed(array("d", value)) if packs else self._plain_items(value)]

    def _writer(self, cls: type[Any]) -> Callable[[Any], dict[str, Any]]:
        head = {"type": cls.__name__} if cls in self._of_unions else {}
        names = [field.name for field in dataclasses.fields(cls) if field.init]
        names.sort(key=lambda name: name != "time")  # before those of a base class
        writers = self._writers

        def write(value: Any) -> dict[str, Any]:
            fields: dict[str, Any] = dict(head)
            for name in names:
                item = getattr(value, name)
                writer: Callable[[Any], Any] = writers.get(type(item), plain)
                fields[name] = item if item is None else writer(item)
            return fields

        return write

    # Reading depends on annotations: each becomes a function that converts and checks a JSON value.

    def _reader(self, hint: Any, name: str = "") -> _Reader:
        """The reader of values of the type ``hint``, in a field called ``name``."""
        origin, arguments = get_origin(hint), get_args(hint)
        if hasattr(origin, "__value__"):
            # An alias by a `type` statement: numpy 2.5 has one for NDArray from Python 3.12 on.
            return self._reader(origin.__value__[arguments])
        if origin in self._GENERIC:
            reader: _Reader = self._GENERIC[origin](self, *arguments)
            return reader
        if getattr(origin, "__name__", "") == "ndarray":
            return self._ndarray(*arguments)
        if name == "time" and hint is float:
            return _time
        return _SIMPLE_READERS.get(hint) or self._object(hint)

    def _union(self, *arguments: Any) -> _Reader:
        hints = [hint for hint in arguments if hint is not NoneType]
        if len(hints) == 1:
            reader = self._reader(hints[0])
        else:
            self._of_unions.update(hints)
            readers = {cls.__name__: self._object(cls) for cls in hints}
            which = _one_of(tuple(readers))

            def reader(value: Any) -> Any:
                return readers[which(value.get("type") if isinstance(value, dict) else None)](value)

        if len(hints) == len(arguments):
            return reader
        return lambda value: None if value is None else reader(value)

    def _object(self, cls: type[Any]) -> _Reader:
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"no JSON for {cls}")
        if cls is Steps:
            return _read_steps
        if cls not in self._objects:
            fields = [field for field in dataclasses.fields(cls) if field.init]
            hints, missing = get_type_hints(cls), dataclasses.MISSING
            readers = {field.name: self._reader(hints[field.name], field.name) for field in fields}
            required = {f.name for f in fields if f.default is f.default_factory is missing}
            self._objects[cls] = _object_reader(cls, readers, required)
        return self._objects[cls]

    def _literal(self, *choices: Any) -> _Reader:
        return _one_of(choices)

    def _tuple(self, *arguments: Any) -> _Reader:
        if arguments[-1] is not Ellipsis:
            return _row([self._reader(argument) for argument in arguments])
        items = self._list(arguments[0])
        return lambda value: tuple(items(value))

    def _list(self, hint: Any) -> _Reader:
        reader = self._reader(hint)

        def read(value: Any) -> list[Any]:
            if not isinstance(value, list):
                raise JsonError(f"expected an array, not {shown(value)}")
            return [reader(item) for item in value]

        return read

    def _deque(self, hint: Any) -> _Reader:
        items = self._list(hint)

        def read(value: Any) -> deque[Any]:
            if not isinstance(value, list) or len(value) != 2:
                raise JsonError(f"expected a bound and items, not {shown(value)}")
            bound, content = value
            if bound is not None and not (type(bound) is int and bound >= 0):
                raise JsonError("a deque with an invalid bound")
            packs = hint is float and isinstance(content, str)
            return deque(_unpacked(content, partial(array, "d")) if packs else items(content), bound)

        return read

    def _mapping(self, key: Any, item: Any) -> _Reader:
        read_key, read_item = self._reader(key), self._reader(item)

        def read(value: Any) -> dict[Any, Any]:
            if not isinstance(value, dict):
                raise JsonError(f"expected an object, not {shown(value)}")
            return {read_key(key): read_item(item) for key, item in value.items()}

        return read

    def _ndarray(self, _shape: Any, dtype_hint: Any) -> _Reader:
        """Reads one-dimensional arrays."""
        import numpy as np  # who annotates arrays has imported it

        self._writers[np.ndarray] = _packed
        dtype = np.dtype(get_args(dtype_hint)[0])
        stored = np.uint8 if dtype == np.bool_ else dtype
        return lambda value: _unpacked(value, lambda packed: np.frombuffer(packed, stored).astype(dtype))

    _GENERIC: Mapping[Any, Any] = {
        UnionType: _union,
        Union: _union,  # what a Literal or None is
        Literal: _literal,
        tuple: _tuple,
        list: _list,
        deque: _deque,
        dict: _mapping,
        Mapping: _mapping,
    }


def _object_reader(cls: type[Any], readers: Mapping[str, _Reader], required: Set[str]) -> _Reader:
    """Reads an object of ``cls`` with ``readers`` for its fields."""
    name = cls.__name__

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise JsonError(f"{name}: expected an object, not {shown(value)}")
        if absent := required - value.keys():
            raise JsonError(f"{name}: missing {', '.join(sorted(absent))}")
        fields = {}
        for key, reader in readers.items():
            if key in value:
                try:
                    fields[key] = reader(value[key])
                except JsonError as error:
                    raise JsonError(f"{name}.{key}: {error}") from None
        try:
            return cls(**fields)
        except Exception as error:  # a constructor may check its arguments, or fail with them
            raise JsonError(f"{name}: {error}") from error

    return read


def _exactly(kind: type[Any]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise JsonError(f"expected {kind.__name__}, not {shown(value)}")
        return value

    return read


def _one_of(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise JsonError(f"expected one of {', '.join(choices)}, not {shown(value)}")
        return value

    return read


def _float(value: Any) -> float:
    """A number, or one of the strings for non-finite ones."""
    if type(value) is float:
        return value
    if type(value) is int or value in ("nan", "inf", "-inf"):
        return float(value)
    raise JsonError(f"expected a number, not {shown(value)}")


def _time(value: Any) -> float:
    time = _float(value)
    if not 0 <= time <= MAX_SECONDS:
        raise JsonError("not a time")
    return time


def _row(readers: list[_Reader]) -> _Reader:
    """Tuples with one item for each of ``readers``."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise JsonError(f"expected {len(readers)} items, not {shown(value)}")
        return tuple([reader(item) for reader, item in zip(readers, value, strict=True)])

    return read


def _packed(numbers: Any) -> str:
    """The bytes of an array in base64, 20 times faster than its numbers as text.

    In this machine's byte order: both processes run on it.
    """
    return b2a_base64(numbers, newline=False).decode()


def _unpacked(value: Any, make: Callable[[bytes], _T]) -> _T:
    """The array that ``make`` returns for its bytes."""
    if type(value) is not str:
        raise JsonError(f"expected base64, not {shown(value)}")
    try:
        return make(a2b_base64(value, strict_mode=True))
    except ValueError as error:
        raise JsonError(f"not an array: {error}") from error


_integer = _exactly(int)

_SIMPLE_READERS: Mapping[Any, _Reader] = {
    Any: plain,
    bool: _exactly(bool),
    int: _integer,
    float: _float,
    str: _exactly(str),
    Path: lambda value: Path(_exactly(str)(value)),
}

# Steps are most of what is written, and are columns: they are handled as a whole.

_STEPS_FIELDS = tuple(field.name for field in dataclasses.fields(Steps))
_STEPS_NAMES = frozenset(_STEPS_FIELDS)

_STEPS_DEFAULTS: Mapping[str, Any] = {
    "micro_batches": 1,
    "optimizer": "",
    "loss_form": "",
    "losses": {},
    "group_lrs": (),
}
"""What a line leaves out."""

_COLUMN_KINDS: Mapping[str, type[Any]] = {
    "skipped": bool,
    **dict.fromkeys(("samples", "growth_tracker", "nonfinite_gradients"), int),
}
"""Of the columns that are not floats."""

_STEPS_READERS: Mapping[str, _Reader] = {
    "time": _time,
    **dict.fromkeys(("first_step", "count", "epoch", "micro_batches"), _integer),
    **dict.fromkeys(("precision", "optimizer"), _exactly(str)),
    "settling": _exactly(bool),
    "loss_form": _one_of(get_args(LossForm)),
}


def _plain_steps(steps: Steps) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "Steps"}
    for name in _STEPS_FIELDS:
        value = getattr(steps, name)
        if name in COLUMNS:
            fields[name] = _plain_column(value)
        elif name in _STEPS_DEFAULTS and value == _STEPS_DEFAULTS[name]:
            continue
        elif name == "losses":
            fields[name] = {plain_text(str(part)): _plain_column(column) for part, column in value.items()}
        elif name == "group_lrs":
            fields[name] = [_plain_column(column) for column in value]
        else:
            fields[name] = plain(value)
    return fields


def _plain_column(column: Column) -> Any:
    """The whole column; its first value alone if all are the same."""
    if column.count(column[0]) == len(column):
        return plain(column[0])
    values = list(column)
    # The quick way of most columns: orjson writes them as they are.
    if set(map(type, values)) <= {float, int, bool, NoneType} and math.isfinite(sum(filter(None, values))):
        return values
    return [plain(value) for value in values]


def _read_steps(value: Any) -> Steps:
    if not isinstance(value, dict):
        raise JsonError(f"Steps: expected an object, not {shown(value)}")
    value = {**_STEPS_DEFAULTS, **value}
    if absent := _STEPS_NAMES - value.keys():
        raise JsonError(f"Steps: missing {', '.join(sorted(absent))}")
    try:
        fields = {name: reader(value[name]) for name, reader in _STEPS_READERS.items()}
        count, losses, group_lrs = fields["count"], value["losses"], value["group_lrs"]
        if not 1 <= count <= MAX_STEPS:
            raise JsonError(f"{count:,} steps")
        if not isinstance(losses, dict) or not isinstance(group_lrs, list | tuple):
            raise JsonError("expected columns")
        fields |= {name: _column(value[name], count, name) for name in COLUMNS}
        fields["losses"] = {name: _column(column, count, "losses") for name, column in losses.items()}
        fields["group_lrs"] = tuple([_column(column, count, "group_lrs") for column in group_lrs])
        for name in ("samples", "skipped"):
            if None in fields[name]:
                raise JsonError(f"{name}: not measured")
    except JsonError as error:
        raise JsonError(f"Steps: {error}") from None
    return Steps(**fields)


def _column(value: Any, count: int, name: str) -> list[Any]:
    """``count`` values of the column ``name``: numbers or None."""
    kind, is_constant = _COLUMN_KINDS.get(name, float), type(value) is not list
    if is_constant and (value is None or type(value) is kind):
        return [value] * count  # most columns of a small block
    values = [value] if is_constant else value
    if not set(map(type, values)) <= {kind, NoneType}:
        if kind is not float:
            raise JsonError(f"{name}: expected {kind.__name__}")
        try:
            values = [None if item is None else _float(item) for item in values]
        except JsonError as error:
            raise JsonError(f"{name}: {error}") from None
    if is_constant:
        return values * count
    if len(values) != count:
        raise JsonError(f"{name}: {len(values):,} values for {count:,} steps")
    return values


_RECORDS: Codec[Record] = Codec(Record)
