"""What the options of the command line take as values; each function raises ArgumentTypeError."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

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


def positive_int(text: str) -> int:
    """A count."""
    return int(_number(text, int, "a whole number above 0", lambda value: value >= 1, _MAX_INT))


def positive_ints(text: str) -> tuple[int, ...]:
    """Without duplicates, in the order given."""
    return tuple(dict.fromkeys(positive_int(part.strip()) for part in text.split(",")))


def rounds(text: str) -> int:
    """Rounds of a benchmark or an A/B test."""
    return int(_number(text, int, "a whole number above 0", lambda value: value >= 1, MAX_ROUNDS))


def precisions(text: str) -> tuple[str, ...]:
    """Their names, without duplicates."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in PRECISIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PRECISIONS)}")
    return names


def webhook_url(text: str) -> str:
    """A URL, which is a secret: no message repeats it."""
    try:
        parse_webhook(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def workers(text: str) -> int:
    """Each worker is a process."""
    return int(_number(text, int, "a whole number, 0 or more", lambda value: value >= 0, _MAX_WORKERS))


def restarts(text: str) -> int:
    """How often to start again."""
    return count_or_none(text)


def count_or_none(text: str) -> int:
    """A count; 0 is none at all."""
    return int(_number(text, int, "a whole number, 0 or more", lambda value: value >= 0, _MAX_INT))


def seed(text: str) -> int:
    """Of 64 bits, as `torch.manual_seed` takes."""
    return int(_number(text, int, "a whole number from 0 to 2^64 - 1", lambda value: 0 <= value < 2**64))


def positive_float(text: str) -> float:
    """A number above 0."""
    return _number(text, float, "a number above 0", lambda value: 0 < value < math.inf)


def seconds_or_never(text: str) -> float:
    """A time; 0 is for ever."""
    return _number(text, float, "a number of seconds, or 0", lambda value: 0 <= value < math.inf)


def frames_per_second(text: str) -> float:
    """A rate at which a person can see something happen, and a terminal keep up."""
    low, high = FRAMES_PER_SECOND_RANGE
    return _number(text, float, f"a number from {low:g} to {high:,g}", lambda value: low <= value <= high)


def finite_float(text: str) -> float:
    """Any number."""
    return _number(text, float, "a finite number", math.isfinite)


def _number(
    text: str,
    kind: type[int] | type[float],
    description: str,
    allowed: Callable[[float], bool],
    most: float = math.inf,
) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {description}")
    if value > most:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {most:,}")
    return value


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
