"""Converts dataclasses to strict JSON and back: records, requests and the state of a session.

A record is one line with one object: ``type``, ``time``, then the other fields; ``null`` for what was not
measured. Lines are ASCII without line breaks, whatever user code printed.

Only annotations decide which classes are made: JSON can only choose among the classes of a union.
"""

import dataclasses
import json
from array import array
from binascii import a2b_base64, b2a_base64
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial, reduce
from json.encoder import encode_basestring_ascii
from operator import attrgetter, or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from amptui.base import strictjson
from amptui.base.strictjson import JsonError, Reader
from amptui.records import single_lines, step_lines
from amptui.records.run import Record
from amptui.records.steps import StepRecord, Steps

_Writer = Callable[[Any], str]

_T = TypeVar("_T")


def dumps(record: Record) -> str:
    """``record`` as one line of strict JSON, without the line break."""
    return step_lines.dumps(record) if type(record) is Steps else _RECORD_WRITERS[type(record)](record)


def loads(line: str) -> Record | None:
    """The record in ``line``; None if its type is from a later version. A single step is a block of one.

    Unknown fields are ignored, missing ones get their defaults. Raises ``JsonError``.
    """
    if line.startswith(step_lines.LINE_BEGINS):
        return step_lines.loads(line)
    if (single := single_lines.loads(line)) is not None:
        return single
    value = strictjson.parse(line)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise JsonError("not an object with a type")
    if value["type"] == "Steps":
        return step_lines.read(value)
    if value["type"] not in _RECORD_NAMES:
        return None
    record = _RECORDS.read(value)
    return Steps.of(record) if type(record) is StepRecord else record


class Codec(Generic[_T]):
    """Writes and reads values of the type ``hint``: a dataclass, or a union of several.

    An object is written as the arguments of its constructor; fields with ``init=False``, such as a cache or a
    lock, are created again. Objects of a union begin with their ``type``.

    Unknown fields are ignored, missing ones get their defaults. An ``exact`` codec, for two processes of the
    same version, refuses both, and allows sums beyond the bounds of a record. ``writers`` has a function for
    each type.
    """

    def __init__(self, hint: Any, *, exact: bool = False) -> None:
        self._exact = exact
        self._objects: dict[type[Any], Reader] = {}
        self._of_unions: set[type[Any]] = set()
        self.writers: dict[type[Any], _Writer] = {
            **_SIMPLE_WRITERS,
            dict: self._mapping,
            tuple: self._array,
            list: self._array,
        }
        self._read = self._reader(hint, "")
        self.writers |= {cls: self._object_writer(cls) for cls in self._objects}

    @property
    def classes(self) -> frozenset[type[Any]]:
        """All dataclasses that can be read."""
        return frozenset(self._objects)

    def dumps(self, value: _T) -> str:
        """``value`` as one line of strict ASCII JSON, without the line break."""
        return self.writers[type(value)](value)

    def read(self, value: object) -> _T:
        """The value that :meth:`dumps` wrote, from parsed JSON. Raises ``JsonError``."""
        decoded: _T = self._read(value)
        return decoded

    # Writing depends on the value's own type, which may be numpy's. Records are written beside the training:
    # so common types are compared by identity, and punctuation is formatted once.

    def _text(self, value: object) -> str:
        """Any value as JSON text."""
        writer = self.writers.get(type(value))
        if writer is not None:
            return writer(value)
        return json.dumps(strictjson.plain(value), allow_nan=False, separators=(",", ":"))

    def _mapping(self, value: Mapping[Any, Any]) -> str:
        return (
            "{" + ",".join([f"{_string(str(key))}:{self._text(item)}" for key, item in value.items()]) + "}"
        )

    def _array(self, value: Iterable[Any]) -> str:
        return "[" + ",".join([self._text(item) for item in value]) + "]"

    def _deque(self, value: deque[Any]) -> str:
        """Its maximum length and its items, packed if all are floats."""
        packs = set(map(type, value)) == {float}
        return f"[{self._text(value.maxlen)},{_packed(array('d', value)) if packs else self._array(value)}]"

    def _object_writer(self, cls: type[Any]) -> _Writer:
        names = [field.name for field in _fields_of(cls)]
        head = [f'"type":"{cls.__name__}"'] if cls in self._of_unions else []
        layout = "{" + ",".join([*head, *(f'"{name}":%s' for name in names)]) + "}"
        # With a single name attrgetter returns no tuple.
        values = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, n) for n in names]
        writers, text = self.writers, self._text

        def write(value: Any) -> str:
            # "%s" of an int or a finite float is its JSON text: the fast path for most fields.
            return layout % tuple(
                [
                    item
                    if (kind := type(item)) is int or (kind is float and item - item == 0.0)
                    else ("null" if item is None else writers.get(kind, text)(item))
                    for item in values(value)
                ]
            )

        return write

    # Reading depends on annotations: each becomes a function that converts and checks a JSON value.

    def _reader(self, hint: Any, name: str) -> Reader:
        """The reader of values of the type ``hint``, in a field called ``name``."""
        origin, arguments = get_origin(hint), get_args(hint)
        if hasattr(origin, "__value__"):
            # An alias by a `type` statement: numpy 2.5 has one for NDArray from Python 3.12 on.
            return self._reader(origin.__value__[arguments], name)
        if origin in self._GENERIC:
            return self._GENERIC[origin](self, arguments, name)
        if getattr(origin, "__name__", "") == "ndarray":
            return self._ndarray_of(arguments)
        if hint is int:
            return strictjson.read_sum if self._exact else strictjson.integers(name)
        if hint is float and (name == "time" or not self._exact):
            return strictjson.floats(name)
        return _SIMPLE_READERS.get(hint) or self._object_of(hint)

    def _object_of(self, cls: type[Any]) -> Reader:
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"no JSON for {cls}")
        if cls not in self._objects:
            hints, missing = get_type_hints(cls), dataclasses.MISSING
            readers = {field.name: self._reader(hints[field.name], field.name) for field in _fields_of(cls)}
            required: Set[str] = {
                field.name for field in _fields_of(cls) if field.default is field.default_factory is missing
            }
            known_names = None
            if self._exact:
                required, known_names = readers.keys(), {*readers, "type"}
            self._objects[cls] = _object_reader(cls, readers, required, known_names)
        return self._objects[cls]

    def _union_of(self, arguments: tuple[Any, ...], name: str) -> Reader:
        hints = [hint for hint in arguments if hint is not NoneType]
        reader = self._reader(hints[0], name) if len(hints) == 1 else self._any_object_of(hints)
        if len(hints) == len(arguments):
            return reader
        return lambda value: None if value is None else reader(value)

    def _any_object_of(self, classes: Iterable[type[Any]]) -> Reader:
        self._of_unions.update(classes)
        readers = {cls.__name__: self._object_of(cls) for cls in classes}
        which = strictjson.one_of(tuple(readers))
        return lambda value: readers[which(value.get("type") if isinstance(value, dict) else None)](value)

    def _tuple_of(self, arguments: tuple[Any, ...], name: str) -> Reader:
        if arguments[-1] is not Ellipsis:
            return _row_of([self._reader(argument, name) for argument in arguments])
        items = self._items_of(arguments, name, min_items=1 if name == "rows" else 0)
        return lambda value: tuple(items(value))

    def _items_of(self, arguments: tuple[Any, ...], name: str, min_items: int = 0) -> Reader:
        reader = self._reader(arguments[0], name)

        def read(value: Any) -> list[Any]:
            if not isinstance(value, list):
                raise JsonError(f"expected an array, not {strictjson.shown(value)}")
            strictjson.check_length(value, min_items)
            return [reader(item) for item in value]

        return read

    def _deque_of(self, arguments: tuple[Any, ...], name: str) -> Reader:
        self.writers[deque] = self._deque
        items = self._items_of(arguments, name)

        def read(value: Any) -> deque[Any]:
            if not isinstance(value, list) or len(value) != 2:
                raise JsonError(f"expected a bound and items, not {strictjson.shown(value)}")
            bound, content = value
            if bound is not None and not (type(bound) is int and 0 <= bound <= strictjson.MAX_ITEMS):
                raise JsonError("a deque with an invalid bound")
            packs = arguments == (float,) and isinstance(content, str)
            return deque(_unpacked(content, partial(array, "d")) if packs else items(content), bound)

        return read

    def _mapping_of(self, arguments: tuple[Any, ...], name: str) -> Reader:
        read_key, read_item = self._reader(arguments[0], ""), self._reader(arguments[1], name)

        def read(value: Any) -> dict[Any, Any]:
            if not isinstance(value, dict):
                raise JsonError(f"expected an object, not {strictjson.shown(value)}")
            strictjson.check_length(value)
            return {read_key(key): read_item(item) for key, item in value.items()}

        return read

    def _counter_of(self, arguments: tuple[Any, ...], name: str) -> Reader:
        self.writers[Counter] = self._mapping
        mapping = self._mapping_of((*arguments, int), name)
        return lambda value: Counter(mapping(value))

    def _ndarray_of(self, arguments: tuple[Any, ...]) -> Reader:
        """Reads one-dimensional arrays."""
        import numpy as np  # who annotates arrays has imported it

        self.writers[np.ndarray] = _packed
        dtype = np.dtype(get_args(arguments[1])[0])
        stored = np.uint8 if dtype == np.bool_ else dtype
        return lambda value: _unpacked(value, lambda packed: np.frombuffer(packed, stored).astype(dtype))

    _GENERIC: Mapping[Any, Callable[["Codec[Any]", tuple[Any, ...], str], Reader]] = {
        UnionType: _union_of,
        Union: _union_of,  # what a Literal or None is
        Literal: lambda _codec, choices, _name: strictjson.one_of(choices),
        tuple: _tuple_of,
        list: _items_of,
        deque: _deque_of,
        dict: _mapping_of,
        Mapping: _mapping_of,
        Counter: _counter_of,
    }


def _fields_of(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields that are written."""
    return [field for field in dataclasses.fields(cls) if field.init]


def _object_reader(
    cls: type[Any], readers: Mapping[str, Reader], required: Set[str], known_names: Set[str] | None
) -> Reader:
    """Reads an object of ``cls`` with ``readers`` for its fields; with ``known``, other fields are errors."""
    name = cls.__name__

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise JsonError(f"{name}: expected an object, not {strictjson.shown(value)}")
        if absent := required - value.keys():
            raise JsonError(f"{name}: missing {', '.join(sorted(absent))}")
        if known_names is not None and not value.keys() <= known_names:
            raise JsonError(f"{name}: unknown fields")
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


def _row_of(readers: list[Reader]) -> Reader:
    """Reads tuples with one item for each of ``readers``."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise JsonError(f"expected {len(readers)} items, not {strictjson.shown(value)}")
        return tuple([reader(item) for reader, item in zip(readers, value, strict=True)])

    return read


def _float(value: float) -> str:
    return repr(value) if value - value == 0.0 else f'"{value!r}"'


def _integer(value: int) -> str:
    bounded = strictjson.bounded_integer(value)
    return repr(bounded) if bounded is value else f'"{bounded}"'


def _string(text: str) -> str:
    if len(text) > strictjson.MAX_TEXT_CHARACTERS:
        text = f"{text[: strictjson.MAX_TEXT_CHARACTERS - 1]}…"
    return encode_basestring_ascii(text)


def _packed(numbers: Any) -> str:
    """The bytes of an array in base64, 20 times faster than its numbers as text.

    In this machine's byte order: both processes run on it.
    """
    return f'"{b2a_base64(numbers, newline=False).decode()}"'


def _unpacked(value: Any, make: Callable[[bytes], _T]) -> _T:
    """The array that ``make`` returns for its bytes."""
    if type(value) is not str:
        raise JsonError(f"expected base64, not {strictjson.shown(value)}")
    try:
        return make(a2b_base64(value, strict_mode=True))
    except ValueError as error:
        raise JsonError(f"not an array: {error}") from error


_SIMPLE_WRITERS: Mapping[type[Any], _Writer] = {
    float: _float,
    int: _integer,
    bool: {True: "true", False: "false"}.__getitem__,
    str: _string,
    NoneType: {None: "null"}.__getitem__,
}
_SIMPLE_READERS: Mapping[Any, Reader] = {
    Any: strictjson.read_anything,
    bool: strictjson.exactly(bool),
    float: strictjson.read_float,
    str: strictjson.read_text,
    Path: lambda value: Path(strictjson.read_text(value)),
}
_RECORDS: Codec[Any] = Codec(reduce(or_, (cls for cls in get_args(Record) if cls is not Steps)))
_RECORD_WRITERS = _RECORDS.writers
_RECORD_NAMES = frozenset(cls.__name__ for cls in get_args(Record))
