"""Formats bytes, rates, durations, energy, percentages and counts; ``n/a`` for what was not measured."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal

NOT_AVAILABLE = "n/a"
"""Shown instead of a number that was not measured."""

NOT_MEASURED = "not measured"
"""The same in the row of something that ran."""

EMPTY = ("", NOT_AVAILABLE, NOT_MEASURED, "–")
"""What stands in a cell without a number: a column of nothing else is left out."""

SEVERITY_SIGNS: Mapping[str, str] = {"info": "✔", "warning": "⚠", "error": "✖"}
"""Shown before a verdict or an event: colour is never the only sign."""

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_ZEROS = re.compile(r"\.(\d*?)0+(?!\d)")
_DECIMAL = ("", "k", "M", "G", "T")


def number_of_bytes(value: float | None) -> str:
    """Bytes with a binary unit and three significant digits: ``1.24 GiB``."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    value, power = _scaled(value, 1024, len(BYTE_UNITS))
    return f"{_three_digits(value) if power else int(value)} {BYTE_UNITS[power]}"


def bytes_of(part: float | None, whole: float | None) -> str:
    """Part of a whole, both in the unit of the whole: ``3.10 / 139 GiB``."""
    if whole is None or not math.isfinite(whole):
        return number_of_bytes(part)
    text = number_of_bytes(whole)
    if part is None or not math.isfinite(part):
        return f"{NOT_AVAILABLE} / {text}"
    return f"{_three_digits(part / 1024 ** BYTE_UNITS.index(text.split()[1]))} / {text}"


def rate(per_second: float | None, unit: str = "") -> str:
    """A rate with a decimal prefix: ``127 k/s``; with ``unit="samples"``, ``127 k samples/s``."""
    if per_second is None or not math.isfinite(per_second):
        return NOT_AVAILABLE
    return f"{short_count(per_second)}{' ' if unit else ''}{unit}/s"


def short_count(value: float | None) -> str:
    """A count with a decimal prefix and three significant digits: ``131 k``; a tiny one as ``3.0e-08``."""
    if value is None:
        return NOT_AVAILABLE
    if not math.isfinite(value):
        return non_finite(value)
    if 0 < abs(value) < 1e-4:
        return f"{value:.1e}"
    value, power = _scaled(value, 1000, len(_DECIMAL))
    return f"{_three_digits(value)} {_DECIMAL[power]}".rstrip()


def milliseconds(seconds: float | None) -> str:
    """The duration of a step: ``2.02 ms``; from a second on, ``1.31 s``."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    if abs(seconds) >= 0.9995:
        return f"{_three_digits(seconds)} s"
    return f"{_three_digits(seconds * 1000)} ms"


def megahertz(value: float | None) -> str:
    """A clock: ``1,410 MHz``."""
    return NOT_AVAILABLE if value is None else f"{count(round(value))} MHz"


def joules(value: float | None, per: str = "") -> str:
    """Energy with three significant digits: ``412 J``, ``98.5 mJ``; with ``per="1k"``, ``1.23 kJ/1k``."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    value, power = _scaled(value * 1000, 1000, 1 + len(_DECIMAL)) if value else (value, 1)
    return f"{_three_digits(value)} {('m', *_DECIMAL)[power]}J{'/' if per else ''}{per}"


def duration(seconds: float | None) -> str:
    """A duration as on a clock: ``0:41``, ``1:02:03``, ``2d 03:04:05``."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def span(seconds: float | None) -> str:
    """Seconds with three digits below a minute, otherwise as a clock shows them."""
    return milliseconds(seconds) if seconds is None or seconds < 60 else duration(seconds)


_ONE_UNIT = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"))
"""Limit in seconds, seconds of the unit, and its name; anything longer is in days."""


def in_one_unit(seconds: float) -> str:
    """``41 s``, ``3 min``, ``26 h``, ``3 d``; rounded down."""
    whole = max(0, int(seconds))
    for limit, one, unit in _ONE_UNIT:
        if whole < limit:
            return f"{whole // one} {unit}"
    return f"{count(whole // 86_400)} d"


NOW_SECONDS = 5
"""What was written less long ago was written ``now``: a live run writes every second."""


def percent(fraction: float | None, digits: int = 0) -> str:
    """A fraction as percent: ``0.991`` with one digit is ``99.1%``."""
    if fraction is None or not math.isfinite(fraction):
        return NOT_AVAILABLE
    return f"{fraction * 100:z.{digits}f}%"


def share(part: float | None, whole: float | None) -> str:
    """Part of a whole as percent, in at most seven cells: ``95.7%``, ``3.1%``, ``0.024%``.

    ``0%`` means nothing and ``100%`` everything; almost nothing is ``<0.001%``, almost everything ``>99.9%``.
    """
    if part is None or not whole or not math.isfinite(part) or not math.isfinite(whole):
        return NOT_AVAILABLE
    hundredths = 100 * part / whole
    if hundredths <= 0 or hundredths >= 100:
        return "0%" if hundredths <= 0 else "100%"
    if hundredths < 0.001 or hundredths > 99.9:
        return "<0.001%" if hundredths < 0.001 else ">99.9%"
    return f"{hundredths:.{1 if hundredths >= 0.995 else 2 if hundredths >= 0.0995 else 3}f}%"


def headroom(doublings: float | None) -> str:
    """How many times larger a value may become: ``8.0×`` for three doublings."""
    if doublings is None:
        return NOT_AVAILABLE
    if not math.isfinite(doublings):
        return non_finite(doublings)
    factor = 2.0 ** min(doublings, 1023)
    if factor >= 1e6:
        return f"{factor:.1e}×".replace("e+0", "e").replace("e+", "e")
    return f"{count(float(f'{factor:.2g}'))}×" if factor >= 1000 else about_ratio(factor)


def below_overflow(doublings: float | None) -> str:
    """The same in words: ``8.0× below overflow``, ``4.0× above overflow``."""
    if doublings is None or not math.isfinite(doublings):
        return NOT_AVAILABLE if doublings is None else "NaN or Inf"
    return f"{headroom(abs(doublings))} {'below' if doublings >= 0 else 'above'} overflow"


def count(value: float | None) -> str:
    """A number with thousands separators: ``65,536``; a fraction with three digits: ``0.125``.

    Very small and very large ones, such as a collapsed loss scale, have an exponent: ``9.1e-13``.
    """
    if value is None:
        return NOT_AVAILABLE
    if not math.isfinite(value):
        return non_finite(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.1e}"
    return f"{value:z,.0f}" if float(value).is_integer() else _three_digits(value)


def counted(number: int, noun: str) -> str:
    """``1 skip``, ``1,200 skips``."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def loss(value: float | None) -> str:
    """A loss with three significant digits, two with an exponent: ``0.0312``, ``4.1e-07``, ``nan``."""
    if value is None:
        return NOT_AVAILABLE
    if not math.isfinite(value):
        return non_finite(value)
    size = abs(value)
    if size != 0 and not 1e-4 <= size < 99_950:
        return f"{value:.1e}"
    return _three_digits(value)


def ratio(value: float | None) -> str:
    """A ratio: ``1.94×``; a small one has two digits: ``0.028×``."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    return f"{value:.2f}×" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}×"


def about_ratio(value: float | None) -> str:
    """A ratio without an interval, in two digits: ``1.9×``, ``0.87×``, ``12×``."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    digits = 2 if 0.0995 <= abs(value) < 0.995 else 1 if 0.995 <= abs(value) < 9.95 else None
    return f"{float(f'{value:.2g}'):g}×" if digits is None else f"{value:.{digits}f}×"


def tick(words: str) -> str:
    """A round number at an axis, without closing zeros: ``2.00`` is ``2``, ``20.0 k`` is ``20 k``."""
    return _ZEROS.sub(lambda match: f".{match[1]}" if match[1] else "", words)


def non_finite(value: float) -> str:
    """The word for a value that is not finite: ``nan``, ``inf`` or ``-inf``."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _scaled(value: float, base: int, prefixes: int) -> tuple[float, int]:
    """``value`` below 1,000 in three digits, and the power of ``base`` that it was divided by."""
    power = 0
    while abs(value) >= 999.5 and power < prefixes - 1:
        value /= base
        power += 1
    return value, power


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent: ``127``, ``12.7``, ``1.27``, ``0.0127``."""
    return f"{Decimal(f'{value:.2e}'):,f}" if value else "0"
