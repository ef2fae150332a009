"""Strict JSON within bounds: its text parsed, any value made plain, and numbers and texts as they are read.

What is read may be damaged, or forged: what is beyond the bounds below is refused. They are wide enough for
all that a run writes, and narrow enough that nothing which folds, draws or exports records has to doubt one.
A number that is not finite is one of the strings ``"nan"``, ``"inf"``, ``"-inf"``.
"""

import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Mapping, Sized
from types import NoneType
from typing import Any, NoReturn

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

_MAX_SUM = 2**63 - 1
"""Sums are larger than what they are of; numpy takes no more than this."""

_MAX_DIGITS = 400
"""Of an integer in a line. Python reads thousands in time that grows with their square."""


class JsonError(ValueError):
    """Not strict JSON, a field absent, a value of the wrong type or out of bounds."""


Reader = Callable[[Any], Any]
"""Makes of a JSON value what it stands for. Raises ``JsonError``."""


def parse(text: str, *, max_bytes: int | None = None) -> Any:
    """The value of ``text``, strict JSON of at most so many bytes, or a record's. Raises ``JsonError``."""
    if len(text) > (max_bytes or MAX_LINE_BYTES):
        raise JsonError(f"longer than {max_bytes or MAX_LINE_BYTES:,} bytes")
    try:
        # Only a text of some length holds an integer that is long: most need no second look at each.
        return (_PARSER if len(text) <= _MAX_DIGITS * 8 else _WARY_PARSER).decode(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"not strict JSON: {error}") from error


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
        return bounded_integer(int(value))
    number = float(value)
    return number if math.isfinite(number) else str(number)


def bounded_integer(value: int) -> int | str:
    """An integer that a float can hold, or its text."""
    return value if -_MAX_INTEGER < value < _MAX_INTEGER else hex(value)


def read_anything(value: Any, depth: int = 0) -> Any:
    """Any JSON value that is not too large."""
    if isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise JsonError("nested too deeply")
        check_length(value)
        for item in value.values() if isinstance(value, dict) else value:
            read_anything(item, depth + 1)
    elif isinstance(value, str):
        read_text(value)
    elif type(value) in (int, float):
        read_float(value)
    return value


def read_float(value: Any) -> float:
    """A number, or one of the words for those that are not finite."""
    if type(value) is float and value - value == 0.0:
        return value
    if type(value) is int or value in ("nan", "inf", "-inf"):
        try:
            return float(value)
        except OverflowError as error:
            raise JsonError("a number out of float's range") from error
    if type(value) is float:
        raise JsonError("a number out of float's range")
    raise JsonError(f"expected a number, not {shown(value)}")


def exactly(kind: type[Any]) -> Reader:
    """Values of one type, as they are."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise JsonError(f"expected {kind.__name__}, not {shown(value)}")
        return value

    return read


def integers(name: str) -> Reader:
    """Integers of a record's field called ``name``: counts, or exponents."""
    least, most = (-MAX_EXPONENT, MAX_EXPONENT) if name == "first_exponent" else (0, MAX_COUNT)
    return _within(exactly(int), least, most)


def floats(name: str) -> Reader:
    """Floats of a record's field called ``name``: most may be anything, a loss is 1e30 on its way to NaN."""
    if name == "time":
        return read_time
    if "seconds" in name.split("_"):
        return _within(read_float, -MAX_SECONDS, MAX_SECONDS)  # below zero: a clock was set back meanwhile
    if name.rpartition("_")[2] in _UNITS:
        return _within(read_float, -MAX_READING, MAX_READING)
    return _within(read_float, -1.0, 1.0, or_nan=True) if name == "cosine" else read_float


def _within(reader: Reader, least: float, most: float, *, or_nan: bool = False) -> Reader:
    def read(value: Any) -> Any:
        number = reader(value)
        if least <= number <= most or (or_nan and math.isnan(number)):
            return number
        raise JsonError(f"expected a number from {least:g} to {most:g}")

    return read


def read_text(value: Any) -> str:
    """A text that is not too long."""
    if type(value) is not str:
        raise JsonError(f"expected str, not {shown(value)}")
    if len(value) > MAX_TEXT_CHARACTERS:
        raise JsonError(f"a text of {len(value):,} characters")
    return value


def check_length(value: Sized, min_items: int = 0) -> None:
    """Raise ``JsonError`` for too many items, or too few."""
    if not min_items <= len(value) <= MAX_ITEMS:
        raise JsonError(f"{len(value):,} items")


def one_of(choices: tuple[Any, ...]) -> Reader:
    """Texts of a few."""

    def read(value: Any) -> Any:
        if value not in choices:
            raise JsonError(f"expected one of {', '.join(choices)}, not {shown(value)}")
        return value

    return read


def shown(value: object) -> str:
    """A value in an error's text, cut so that it stays one short line; of what may be long, its kind."""
    if isinstance(value, str):
        return repr(value[:40])[:40]
    return repr(value) if isinstance(value, float | bool | NoneType) else type(value).__name__


def _read_digits(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise JsonError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not JSON")


_PARSER = json.JSONDecoder(parse_constant=_refuse_constant)
_WARY_PARSER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_read_digits)


read_sum = _within(exactly(int), -_MAX_SUM, _MAX_SUM)
"""Reads an integer of 64 bits."""

read_time = _within(read_float, 0.0, MAX_SECONDS)
"""Reads a time that every calendar has."""
