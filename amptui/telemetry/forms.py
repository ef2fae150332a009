"""How one value of a state is written as JSON and read again: a form for each annotation."""

from binascii import a2b_base64, b2a_base64
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import numpy.typing as npt

from amptui import wire

_LONGEST_DEQUE = 1_000_000

_MAX_INTEGER = 2**63 - 1
"""Sums are larger than what a record may hold; numpy takes no more than this."""

_STORED = {np.dtype(np.float64): "<f8", np.dtype(np.int64): "<i8", np.dtype(np.bool_): "|u1"}
"""Arrays are little-endian on the way."""


class StateError(ValueError):
    """What was given is no state of this version."""


class Writing:
    """What was written so far: objects by identity and texts by value, each with its number."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.texts: dict[str, int] = {}


class Reading:
    """What was read so far: the objects in the order in which they were complete, and all texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.made: list[Any] = []
        self.texts = texts


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of one annotation are read and written."""

    told: str
    """Equal only for equal forms."""
    read: Callable[[Any, Reading], Any]
    """Raises ``StateError`` for what no value was written as."""
    write: Callable[[Any, Writing], Any] | None = None
    """None where JSON takes the value as it is."""


Forms = Callable[[Any], Form]
"""The form of an annotation."""


def refuse(expected: str, value: object) -> NoReturn:
    """Raise ``StateError``: ``value`` is not what was expected."""
    raise StateError(f"expected {expected}, not {repr(value)[:40]}")


# ------------------------------------------------------------------------------ what stands alone


def _exactly(kind: type[Any]) -> Form:
    def read(value: Any, _reading: Reading) -> Any:
        return value if type(value) is kind else refuse(kind.__name__, value)

    return Form(kind.__name__, read)


def _read_int(value: Any, _reading: Reading) -> int:
    if type(value) is int and abs(value) > _MAX_INTEGER:
        raise StateError("an integer of more than 64 bits")
    return value if type(value) is int else refuse("int", value)


def _write_float(value: float, _writing: Writing) -> float | str:
    return value if value - value == 0.0 else float.__repr__(value)


def _read_float(value: Any, _reading: Reading) -> float:
    if type(value) is float:
        return value
    if type(value) is int or value in ("nan", "inf", "-inf"):
        try:
            return float(value)
        except OverflowError:
            pass
    refuse("a number", value)


def _read_time(value: Any, reading: Reading) -> float:
    """A time that every calendar has."""
    found = _read_float(value, reading)
    return found if 0.0 <= found <= wire.MAX_SECONDS else refuse("a time", value)


def _write_text(value: str, writing: Writing) -> int:
    # A name of a user's own, as a part of the loss has, may be no text.
    return writing.texts.setdefault(str(value), len(writing.texts))


def _read_text(value: Any, reading: Reading) -> str:
    if type(value) is not int or not 0 <= value < len(reading.texts):
        refuse("a text's number", value)
    return reading.texts[value]


def _write_anything(value: object, _writing: Writing) -> Any:
    return wire.plain(value)


def _read_anything(value: Any, reading: Reading, depth: int = 0) -> Any:
    if depth > wire.MAX_DEPTH:
        raise StateError("nested too deeply")
    if isinstance(value, dict):
        return {str(key): _read_anything(item, reading, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_anything(item, reading, depth + 1) for item in value]
    return value if value is None or type(value) in (bool, int, float, str) else refuse("JSON", value)


SIMPLE: Mapping[Any, Form] = {
    int: Form("int", _read_int),
    bool: _exactly(bool),
    float: Form("float", _read_float, _write_float),
    str: Form("str", _read_text, _write_text),
    Any: Form("any", _read_anything, _write_anything),
}
"""The forms of annotations without arguments."""


TIME = Form("float", _read_time, _write_float)
"""The form of a record's time, and of an event's."""


def optional(form: Form) -> Form:
    """``form`` or None."""
    read, write = form.read, form.write

    def read_optional(value: Any, reading: Reading) -> Any:
        return None if value is None else read(value, reading)

    if write is None:
        return Form(f"{form.told}?", read_optional)

    def write_optional(value: Any, writing: Writing) -> Any:
        return None if value is None else write(value, writing)

    return Form(f"{form.told}?", read_optional, write_optional)


def _literal(choices: Sequence[str], _forms: Forms) -> Form:
    def read(value: Any, _reading: Reading) -> str:
        return value if type(value) is str and value in choices else refuse(f"one of {choices}", value)

    return Form(f"literal{choices}", read)


# ------------------------------------------------------------------------------ arrays and rows


def _packed(array: npt.NDArray[Any]) -> str:
    """An array's bytes in base64: a twentieth of the time that its numbers would take."""
    return b2a_base64(array.tobytes(), newline=False).decode("ascii")


def _unpacked(value: Any, dtype: str) -> npt.NDArray[Any]:
    if type(value) is not str:
        refuse("base64", value)
    try:
        return np.frombuffer(a2b_base64(value.encode("ascii"), strict_mode=True), dtype)
    except ValueError as error:
        raise StateError(f"no array: {error}") from None


def _array(arguments: Sequence[Any], _forms: Forms) -> Form:
    """Arrays of one dimension."""
    dtype = np.dtype(get_args(arguments[1])[0])
    stored = _STORED[dtype]

    def write(value: npt.NDArray[Any], _writing: Writing) -> str:
        assert value.ndim == 1
        return _packed(value.astype(stored, copy=False))

    def read(value: Any, _reading: Reading) -> npt.NDArray[Any]:
        return _unpacked(value, stored).astype(dtype)

    return Form(f"array[{dtype.name}]", read, write)


def _numbers(kind: type[Any], dtype: str) -> Form:
    """Many numbers in a row: packed, but for integers that are too large for that."""
    read_one = SIMPLE[kind].read

    def write(values: Sequence[Any], _writing: Writing) -> Any:
        try:
            return _packed(np.fromiter(values, dtype, len(values)))
        except OverflowError:
            return list(values)

    def read(value: Any, reading: Reading) -> Any:
        if isinstance(value, list):
            return [read_one(item, reading) for item in value]
        return _unpacked(value, dtype).tolist()

    return Form(f"[{kind.__name__}]", read, write)


def _items(form: Form) -> Form:
    """Items in a row, one by one."""
    read, write = form.read, form.write

    def write_items(values: Iterable[Any], writing: Writing) -> list[Any]:
        return list(values) if write is None else [write(value, writing) for value in values]

    def read_items(value: Any, reading: Reading) -> list[Any]:
        if not isinstance(value, list):
            refuse("an array", value)
        return [read(item, reading) for item in value]

    return Form(f"[{form.told}]", read_items, write_items)


def _many(item: Any, forms: Forms) -> Form:
    packed = {float: "<f8", int: "<i8"}.get(item)
    return _numbers(item, packed) if packed else _items(forms(item))


def _list(arguments: Sequence[Any], forms: Forms) -> Form:
    many = _many(arguments[0], forms)
    return Form(f"list{many.told}", many.read, many.write)


def _tuple(arguments: Sequence[Any], forms: Forms) -> Form:
    if arguments[-1] is not Ellipsis:
        return row([forms(each) for each in arguments])
    many = _many(arguments[0], forms)
    return Form(f"tuple{many.told}", lambda value, reading: tuple(many.read(value, reading)), many.write)


def _deque(arguments: Sequence[Any], forms: Forms) -> Form:
    """A deque with the length that it is bounded to."""
    many = _many(arguments[0], forms)
    read_many, write_many = many.read, many.write
    assert write_many is not None, "rows are never as they are"

    def write(values: deque[Any], writing: Writing) -> list[Any]:
        return [values.maxlen, write_many(values, writing)]

    def read(value: Any, reading: Reading) -> deque[Any]:
        if not isinstance(value, list) or len(value) != 2:
            refuse("a length and items", value)
        longest, items = value
        if longest is not None and not (type(longest) is int and 0 <= longest <= _LONGEST_DEQUE):
            refuse("a length", longest)
        return deque(read_many(items, reading), longest)

    return Form(f"deque{many.told}", read, write)


def row(forms: Sequence[Form]) -> Form:
    """A tuple with a place for each of ``forms``."""
    reads, writes = [form.read for form in forms], [form.write for form in forms]

    def write(values: Iterable[Any], writing: Writing) -> list[Any]:
        pairs = zip(values, writes, strict=True)
        return [each if write_one is None else write_one(each, writing) for each, write_one in pairs]

    def read(values: Any, reading: Reading) -> tuple[Any, ...]:
        if not isinstance(values, list) or len(values) != len(reads):
            refuse(f"{len(reads)} items", values)
        return tuple([read_one(each, reading) for each, read_one in zip(values, reads, strict=True)])

    return Form(f"({','.join(form.told for form in forms)})", read, write)


def _mapping(kind: type[Any], key: Form, item: Form) -> Form:
    """Keys and what they stand for, in their order."""
    pairs = _items(row((key, item)))
    write_pairs = pairs.write
    assert write_pairs is not None, "rows are never as they are"

    def write(value: Mapping[Any, Any], writing: Writing) -> Any:
        return write_pairs(value.items(), writing)

    def read(value: Any, reading: Reading) -> Any:
        return kind(dict(pairs.read(value, reading)))

    return Form(f"{kind.__name__}{pairs.told}", read, write)


def _dict(arguments: Sequence[Any], forms: Forms) -> Form:
    return _mapping(dict, forms(arguments[0]), forms(arguments[1]))


def _counter(arguments: Sequence[Any], forms: Forms) -> Form:
    return _mapping(Counter, forms(arguments[0]), SIMPLE[int])


GENERIC: Mapping[Any, Callable[[Sequence[Any], Forms], Form]] = {
    Literal: _literal,
    np.ndarray: _array,
    list: _list,
    tuple: _tuple,
    deque: _deque,
    dict: _dict,
    Mapping: _dict,
    Counter: _counter,
}
"""The forms of annotations with arguments, by what the arguments belong to."""
