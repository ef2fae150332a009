"""Strict JSON within bounds: parses text, converts values to plain JSON types, and checks what is read.

Input may be damaged or forged: values beyond the bounds below are refused. The bounds are wide enough for
everything that a run writes, and narrow enough that code which uses records need not check them again.
Non-finite numbers are the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Mapping, Sized
from types import NoneType
from typing import Any, NoReturn

MAX_LINE_BYTES = 2**24
"""Including the line break. A step has about 400, an X-ray of a model with 50,000 modules 10 million."""

MAX_TEXT_CHARACTERS = 2**18
"""Longer text is truncated when it is written."""

MAX_ITEMS = 2**17
"""In one array or object."""

MAX_DEPTH = 32
"""Nested arrays and objects in a value of any type, such as a config's."""

MAX_COUNT = 2**53
"""Of steps, bytes, elements: float64 is exact up to here, and sums of many counts still fit into int64."""

MAX_SECONDS = 32_503_680_000.0
"""The year 3000 in Unix seconds, which every calendar can show; also the longest duration."""

MAX_READING = 1e15
"""Of watts, joules, percent and other units of instruments, whose values are finite."""

_UNITS = frozenset({"watts", "joules", "percent", "c", "mhz"})

MAX_EXPONENT = 1100
"""The exponents of float64 are -1074 to 1023."""

_MAX_INTEGER = 2**1023
"""Larger integers in a value of any type are no float64 and are written as text."""

_MAX_SUM = 2**63 - 1
"""The largest int64, for sums of counts."""

_MAX_DIGITS = 400
"""Of an integer in a line: Python takes quadratic time to read more."""


class JsonError(ValueError):
    """Not strict JSON, a missing field, or a value of the wrong type or out of bounds."""


Reader = Callable[[Any], Any]
"""Converts and checks a JSON value. Raises ``JsonError``."""


def parse(text: str, *, max_bytes: int | None = None) -> Any:
    """The value of ``text``, strict JSON of at most ``max_bytes`` (None: a record's); or ``JsonError``."""
    limit = max_bytes or MAX_LINE_BYTES
    if len(text) > limit:
        raise JsonError(f"longer than {limit:,} bytes")
    try:
        # Only long text may hold an integer with too many digits; most lines need no check for them.
        return (_PARSER if len(text) <= _MAX_DIGITS * 8 else _CHECKING_PARSER).decode(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"not strict JSON: {error}") from error


def plain(value: object) -> Any:
    """``value`` in JSON's own types: non-finite numbers as strings, unknown objects as their ``str()``."""
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
    """``value``, or its hexadecimal text if it is too large for a float."""
    return value if -_MAX_INTEGER < value < _MAX_INTEGER else hex(value)


def read_anything(value: Any, depth: int = 0) -> Any:
    """Read any JSON value that is not too large."""
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
    """Read a number, or one of the strings for non-finite ones."""
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
    """Reads values of one type unchanged."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise JsonError(f"expected {kind.__name__}, not {shown(value)}")
        return value

    return read


def integers(name: str) -> Reader:
    """Reads the integers of a record's field called ``name``: counts, or exponents."""
    low, high = (-MAX_EXPONENT, MAX_EXPONENT) if name == "first_exponent" else (0, MAX_COUNT)
    return _within(exactly(int), low, high)


def floats(name: str) -> Reader:
    """Reads the floats of a record's field called ``name``; most are unbounded, such as a diverging loss."""
    if name == "time":
        return read_time
    if "seconds" in name.split("_"):
        return _within(read_float, -MAX_SECONDS, MAX_SECONDS)  # negative if a clock was set back
    if name.rpartition("_")[2] in _UNITS:
        return _within(read_float, -MAX_READING, MAX_READING)
    return _within(read_float, -1.0, 1.0, or_nan=True) if name == "cosine" else read_float


def _within(reader: Reader, low: float, high: float, *, or_nan: bool = False) -> Reader:
    def read(value: Any) -> Any:
        number = reader(value)
        if low <= number <= high or (or_nan and math.isnan(number)):
            return number
        raise JsonError(f"expected a number from {low:g} to {high:g}")

    return read


def read_text(value: Any) -> str:
    """Read a string that is not too long."""
    if type(value) is not str:
        raise JsonError(f"expected str, not {shown(value)}")
    if len(value) > MAX_TEXT_CHARACTERS:
        raise JsonError(f"a text of {len(value):,} characters")
    return value


def check_length(value: Sized, min_items: int = 0) -> None:
    """Raise ``JsonError`` for too many or too few items."""
    if not min_items <= len(value) <= MAX_ITEMS:
        raise JsonError(f"{len(value):,} items")


def one_of(choices: tuple[Any, ...]) -> Reader:
    """Reads one of a few values."""

    def read(value: Any) -> Any:
        if value not in choices:
            raise JsonError(f"expected one of {', '.join(choices)}, not {shown(value)}")
        return value

    return read


def shown(value: object) -> str:
    """``value`` for an error message, shortened; for types that may be long, only the type."""
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
_CHECKING_PARSER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_read_digits)


read_sum = _within(exactly(int), -_MAX_SUM, _MAX_SUM)
"""Reads a 64-bit integer."""

read_time = _within(read_float, 0.0, MAX_SECONDS)
"""Reads Unix seconds up to the year 3000."""
