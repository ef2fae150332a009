"""What the options of the command line take as values; each function raises ArgumentTypeError."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amptui.base.webhook import parse_webhook
from amptui.records.run import PRECISIONS

MAX_ROUNDS = 24
"""Rounds of a benchmark or an A/B test at most."""

FRAMES_PER_SECOND_RANGE = (0.01, 1000.0)
"""From a frame in 100 s to far more than any terminal shows."""

_GPUS = ("cuda", "xpu", "mps")
"""The types of devices with a number: NVIDIA's and AMD's, Intel's, Apple's. Kept here without torch."""

_MAX_INT, _MAX_WORKERS = 2**63 - 1, 1024
"""What counts steps has 64 bits; each worker is a process."""


_Value = Callable[[str], Any]


def _number(
    kind: type[int] | type[float],
    description: str,
    allowed: Callable[[float], bool],
    most: float = math.inf,
) -> _Value:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {description}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {most:,}")
        return value

    return parse


def _several(parse: _Value) -> _Value:
    """Values with commas between them, without duplicates, in the order given."""
    return lambda text: tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PRECISIONS)}")
    return text


_LOW_FPS, _HIGH_FPS = FRAMES_PER_SECOND_RANGE

positive_int = _number(int, "a whole number above 0", lambda value: value >= 1, _MAX_INT)
positive_ints = _several(positive_int)
rounds = _number(int, "a whole number above 0", lambda value: value >= 1, MAX_ROUNDS)
count = _number(int, "a whole number, 0 or more", lambda value: value >= 0, _MAX_INT)
workers = _number(int, "a whole number, 0 or more", lambda value: value >= 0, _MAX_WORKERS)
seed = _number(int, "a whole number from 0 to 2^64 - 1", lambda value: 0 <= value < 2**64)
positive_float = _number(float, "a number above 0", lambda value: 0 < value < math.inf)
seconds_or_never = _number(float, "a number of seconds, or 0", lambda value: 0 <= value < math.inf)
finite_float = _number(float, "a finite number", math.isfinite)
frames_per_second = _number(
    float, f"a number from {_LOW_FPS:g} to {_HIGH_FPS:,g}", lambda value: _LOW_FPS <= value <= _HIGH_FPS
)
precisions = _several(_precision)


def webhook_url(text: str) -> str:
    """A URL, which is a secret: no message repeats it."""
    try:
        parse_webhook(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def path(text: str) -> Path:
    """A path with ``~`` expanded, which a shell leaves alone in ``--option=~/folder``."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text!r}: no such home folder") from None


def absolute_path(text: str) -> str:
    """An absolute path: a resumed run may start in another folder."""
    return str(path(text).absolute())


def device(text: str) -> str:
    """A device as torch names it, or ``auto``."""
    kind, colon, index = text.partition(":")
    if text in ("auto", "cpu", *_GPUS) or (kind in _GPUS and colon and index.isdecimal()):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu, cuda, cuda:N, xpu or mps")
