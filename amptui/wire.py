"""Records as lines of strict JSON and back: the form they have in the journal and in ``--json`` output.

A line is one object: ``type``, then ``time``, then the record's other fields. A number that was not
measured is ``null``; a number that is not finite is one of the strings ``"nan"``, ``"inf"``, ``"-inf"``.
Lines are ASCII, so that whatever user code printed can be kept, and never hold a line break.

A journal may be damaged, or forged: what is beyond the bounds below is no record. They are wide enough for
all that a run writes, and narrow enough that nothing which folds, draws or exports records has to doubt one.
"""

import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sized
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from amptui.records import Record

MAX_LINE_BYTES = 2**24
"""With its end. A step has some 400; an X-ray of a model with 50,000 modules has 10 million."""

MAX_TEXT_CHARACTERS = 2**18
"""A longer text is cut when it is written."""

MAX_ITEMS = 2**17
"""In one array or object."""

MAX_DEPTH = 32
"""How deep arrays and objects nest in a value that may be anything, a config's."""

MAX_COUNT = 2**53
"""Of steps, bytes, elements: float64 counts no further, and sums of many are still far from int64's end."""

MAX_SECONDS = 32_503_680_000.0
"""The year 3000 in Unix seconds, which every calendar has; no duration is longer either."""

MAX_READING = 1e15
"""Of watts, joules, percent and what else instruments tell: they tell no infinity."""

_UNITS = frozenset({"watts", "joules", "percent", "c", "mhz"})

MAX_EXPONENT = 1100
"""Float64 has exponents from -1074 to 1023."""

_MAX_INTEGER = 2**1023
"""Where an integer may be anything: larger ones are no float64, and are written as text."""

_MAX_DIGITS = 400
"""Of an integer in a line. Python reads thousands in time that grows with their square."""


class WireError(ValueError):
    """A line is not a record: not strict JSON, a field absent, a value of the wrong type or out of bounds."""


def dumps(record: Record) -> str:
    """``record`` as one line of strict JSON, without the line break."""
    return _object(record)


def loads(line: str) -> Record | None:
    """The record in ``line``; None when its type is of a later version.

    Unknown fields are ignored and absent ones take their defaults. Raises ``WireError``.
    """
    value = parse(line)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise WireError("not an object with a type")
    plan = _READING.get(value["type"])
    if plan is None:
        return None
    record: Record = plan.read(value)
    return record


def parse(text: str, *, max_bytes: int | None = None) -> Any:
    """The value of ``text``, strict JSON of at most so many bytes, or a record's. Raises ``WireError``."""
    if len(text) > (max_bytes or MAX_LINE_BYTES):
        raise WireError(f"longer than {max_bytes or MAX_LINE_BYTES:,} bytes")
    try:
        # Only a text of some length holds an integer that is long: most need no second look at each.
        return (_PARSER if len(text) <= _MAX_DIGITS * 8 else _WARY_PARSER).decode(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not strict JSON: {error}") from error


def reader_of(cls: type[Any]) -> Callable[[object], Any]:
    """What makes an object of the dataclass ``cls`` from parsed JSON, as strictly as records are read."""
    return _plan(cls).read


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
        return _bounded_integer(int(value))
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _bounded_integer(value: int) -> int | str:
    return value if -_MAX_INTEGER < value < _MAX_INTEGER else hex(value)


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


def _string(text: str) -> str:
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[: MAX_TEXT_CHARACTERS - 1]}…"
    return encode_basestring_ascii(text)


def _integer(value: int) -> str:
    bounded = _bounded_integer(value)
    return repr(bounded) if bounded is value else f'"{bounded}"'


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    float: _float,
    int: _integer,
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
    readers = {field.name: _reader(hints[field.name], field.name) for field in fields}
    return _Plan(cls, readers, frozenset(required))


def _reader(hint: Any, name: str) -> _Reader:
    """The reader of values that are annotated with ``hint``, in a field called ``name``."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _plan(hint).read
    if hint is float:
        return _floats(name)
    if hint is int:
        return _integers(name)
    if hint in _SIMPLE_READERS:
        return _SIMPLE_READERS[hint]
    return _GENERIC_READERS[get_origin(hint)](get_args(hint), name)


def _read_anything(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise WireError("nested too deeply")
        _check_length(value)
        for item in value.values() if isinstance(value, dict) else value:
            _read_anything(item, depth + 1)
    elif isinstance(value, str):
        _read_text(value)
    elif type(value) in (int, float):
        _read_float(value)
    return value


def _read_float(value: Any) -> float:
    if type(value) is float and value - value == 0.0:
        return value
    if type(value) is int or value in ("nan", "inf", "-inf"):
        try:
            return float(value)
        except OverflowError as error:
            raise WireError("a number beyond float's range") from error
    if type(value) is float:
        raise WireError("a number beyond float's range")
    raise WireError(f"expected a number, not {_shown(value)}")


def _floats(name: str) -> _Reader:
    """The reader of a float called ``name``: most may be anything, a loss is 1e30 on its way to NaN."""
    if name == "time":
        return _within(_read_float, 0.0, MAX_SECONDS)
    if "seconds" in name.split("_"):
        return _within(_read_float, -MAX_SECONDS, MAX_SECONDS)  # below zero: a clock was set back meanwhile
    if name.rpartition("_")[2] in _UNITS:
        return _within(_read_float, -MAX_READING, MAX_READING)
    return _within(_read_float, -1.0, 1.0, or_nan=True) if name == "cosine" else _read_float


def _integers(name: str) -> _Reader:
    least, most = (-MAX_EXPONENT, MAX_EXPONENT) if name == "first_exponent" else (0, MAX_COUNT)
    return _within(_exactly(int), least, most)


def _within(reader: _Reader, least: float, most: float, *, or_nan: bool = False) -> _Reader:
    def read(value: Any) -> Any:
        number = reader(value)
        if least <= number <= most or (or_nan and math.isnan(number)):
            return number
        raise WireError(f"expected a number from {least:g} to {most:g}")

    return read


def _exactly(kind: type[Any]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise WireError(f"expected {kind.__name__}, not {_shown(value)}")
        return value

    return read


def _read_text(value: Any) -> str:
    if type(value) is not str:
        raise WireError(f"expected str, not {_shown(value)}")
    if len(value) > MAX_TEXT_CHARACTERS:
        raise WireError(f"a text of {len(value):,} characters")
    return value


def _check_length(value: Sized, least_items: int = 0) -> None:
    if not least_items <= len(value) <= MAX_ITEMS:
        raise WireError(f"{len(value):,} items")


def _one_of(choices: tuple[Any, ...], _name: str) -> _Reader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise WireError(f"expected one of {', '.join(choices)}, not {_shown(value)}")
        return value

    return read


def _optional(arguments: tuple[Any, ...], name: str) -> _Reader:
    (reader,) = (_reader(argument, name) for argument in arguments if argument is not NoneType)

    def read(value: Any) -> Any:
        return None if value is None else reader(value)

    return read


def _tuple_of(arguments: tuple[Any, ...], name: str) -> _Reader:
    reader = _reader(arguments[0], name)
    least_items = 1 if name == "rows" else 0  # a comparison has its baseline at least

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise WireError(f"expected an array, not {_shown(value)}")
        _check_length(value, least_items)
        return tuple([reader(item) for item in value])

    return read


def _mapping_of(arguments: tuple[Any, ...], name: str) -> _Reader:
    reader = _reader(arguments[1], name)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise WireError(f"expected an object, not {_shown(value)}")
        _check_length(value)
        return {_read_text(key): reader(item) for key, item in value.items()}

    return read


def _shown(value: object) -> str:
    """A value in an error's text, cut so that it stays one short line; of what may be long, its kind."""
    if isinstance(value, str):
        return repr(value[:40])[:40]
    return repr(value) if isinstance(value, float | bool | NoneType) else type(value).__name__


def _read_digits(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise WireError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise WireError(f"{name} is not JSON")


def _dataclasses_in(hint: Any) -> set[type[Any]]:
    """Every dataclass that ``hint`` names, at any depth."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        inner = (_dataclasses_in(part) for part in get_type_hints(hint).values())
        return {hint}.union(*inner)
    return set().union(*map(_dataclasses_in, get_args(hint)))


_PARSER = json.JSONDecoder(parse_constant=_refuse_constant)
_WARY_PARSER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_read_digits)

_SIMPLE_READERS: Mapping[Any, _Reader] = {Any: _read_anything, bool: _exactly(bool), str: _read_text}
_GENERIC_READERS: Mapping[Any, Callable[[tuple[Any, ...], str], _Reader]] = {
    UnionType: _optional,
    Union: _optional,  # what a Literal or None is
    tuple: _tuple_of,
    Mapping: _mapping_of,
    Literal: _one_of,
}
_RECORD_TYPES: frozenset[type[Any]] = frozenset(get_args(Record))
_LAYOUTS = {cls: _layout(cls) for cls in _dataclasses_in(Record)}
_READING = {cls.__name__: _plan(cls) for cls in _RECORD_TYPES}
