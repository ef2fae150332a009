"""Strict JSON with orjson: its one writer and one reader, and any value in JSON's own types.

Non-finite numbers are the strings ``"nan"``, ``"inf"`` and ``"-inf"``. What is written is ASCII without line
breaks, whatever user code printed.
"""

import dataclasses
import json
import math
import numbers
import re
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from types import NoneType
from typing import Any

import orjson

MAX_LINE_BYTES = 2**24
"""Including the line break. A step has about 400, an X-ray of a model with 50,000 modules 10 million."""

MAX_TEXT_CHARACTERS = 2**18
"""Longer text is truncated when it is written."""

MAX_DEPTH = 32
"""Nested arrays and objects in a value of any type, such as a config's; deeper ones are written as text."""

_MAX_INTEGER = 2**63
"""Larger integers are written as text."""

_NOT_PLAIN_ASCII = re.compile(r"[^ -~]+")


class JsonError(ValueError):
    """Not strict JSON, a missing field, or a value of the wrong type."""


def dumps(value: Any) -> str:
    """``value``, which consists of JSON's own types as :func:`plain` returns them, as one line."""
    text = orjson.dumps(value).decode()
    if text.isascii() and text.isprintable():
        return text
    return _NOT_PLAIN_ASCII.sub(lambda match: encode_basestring_ascii(match[0])[1:-1], text)


def line(content: object) -> str:
    """Any ``content`` as a line for a program that reads a command's output, with JSON's usual blanks."""
    return f"{json.dumps(plain(content), allow_nan=False)}\n"


def parse(text: str | bytes, *, max_bytes: int = MAX_LINE_BYTES) -> Any:
    """The value of ``text``, strict JSON. Raises ``JsonError``."""
    if len(text) > max_bytes:
        raise JsonError(f"longer than {max_bytes:,} bytes")
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise JsonError(f"not strict JSON: {error}") from error


def plain(value: object, depth: int = 0) -> Any:
    """``value`` in JSON's own types: non-finite numbers as strings, unknown objects as their ``str()``."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return plain_integer(int(value))
    if isinstance(value, numbers.Real):
        return plain_float(float(value))
    if depth < MAX_DEPTH:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return {plain_text(str(key)): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(item, depth + 1) for item in value]
    return plain_text(str(value))


def plain_integer(value: int) -> int | str:
    """``value``, or its hexadecimal text if it has more than 64 bits."""
    return value if -_MAX_INTEGER <= value < _MAX_INTEGER else hex(value)


def plain_float(value: float) -> float | str:
    """``value``, or its text if it is not finite."""
    return value if math.isfinite(value) else str(value)


def plain_text(text: str) -> str:
    r"""``text``, truncated if it is too long; half of a surrogate pair is written as ``\udcff``."""
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[: MAX_TEXT_CHARACTERS - 1]}…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """``value`` for an error message, shortened; for types that may be long, only the type."""
    if isinstance(value, str):
        return repr(value[:40])[:40]
    return repr(value) if isinstance(value, float | bool | NoneType) else type(value).__name__
