"""Numbers as people read them: three right digits, a unit that fits, and n/a for what is not known."""

import math
from collections.abc import Callable

import pytest

from amptui.base import units

Format = Callable[[float | None], str]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.number_of_bytes(0), "0 B"),
        (units.number_of_bytes(999), "999 B"),
        (units.number_of_bytes(1000), "0.977 KiB"),
        (units.number_of_bytes(1024), "1.00 KiB"),
        (units.number_of_bytes(999.7 * 1024), "0.976 MiB"),
        (units.number_of_bytes(1.24 * 2**30), "1.24 GiB"),
        (units.rate(127_004), "127 k/s"),
        (units.rate(999.6), "1.00 k/s"),
        (units.rate(0), "0/s"),
        (units.short_count(131_072), "131 k"),
        (units.short_count(2.98e-8), "3.0e-08"),
        (units.short_count(0.0001), "0.000100"),
        (units.milliseconds(0.002021), "2.02 ms"),
        (units.milliseconds(0.9996), "1.00 s"),
        (units.milliseconds(1.309), "1.31 s"),
        (units.joules(412), "412 J"),
        (units.joules(1234.5), "1.23 kJ"),
        (units.joules(0.9996), "1.00 J"),
        (units.joules(0), "0 J"),
        (units.duration(59.6), "1:00"),
        (units.duration(3723), "1:02:03"),
        (units.duration(2 * 86400 + 3 * 3600 + 245), "2d 03:04:05"),
        (units.duration(-3), "0:00"),
        (units.percent(0.38), "38%"),
        (units.percent(-0.001), "0%"),
        (units.count(65_536), "65,536"),
        (units.count(0.125), "0.125"),
        (units.count(-0.0), "0"),
        (units.count(2.0**-40), "9.1e-13"),
        (units.count(2.0**100), "1.3e+30"),
        (units.loss(0.03123), "0.0312"),
        (units.loss(4.1e-7), "4.1e-07"),
        (units.loss(99_960.0), "1.0e+05"),
        (units.loss(0.0), "0"),
        (units.ratio(1.944), "1.94×"),
        (units.headroom(3.0), "8.0×"),
        (units.headroom(-0.04), "0.97×"),
        (units.below_overflow(3.0), "8.0× below overflow"),
        (units.below_overflow(-2.0), "4.0× above overflow"),
        (units.below_overflow(math.nan), "NaN or Inf"),
        (units.below_overflow(None), "n/a"),
        (units.rate(127_004, "samples"), "127 k samples/s"),
        (units.rate(12, "samples"), "12.0 samples/s"),
        (units.percent(0.991, digits=1), "99.1%"),
        (units.joules(412, per="1k"), "412 J/1k"),
        (units.joules(None, per="1k"), "n/a"),
        (units.bytes_of(3.1 * 2**30, 139 * 2**30), "3.10 / 139 GiB"),
        (units.bytes_of(None, 139 * 2**30), "n/a / 139 GiB"),
        (units.bytes_of(3.1 * 2**30, None), "3.10 GiB"),
        # A share is nothing only at none and everything only at all.
        (units.share(0, 1000), "0%"),
        (units.share(1, 1000), "0.10%"),
        (units.share(1, 99_999), "0.001%"),
        (units.share(1, 200_000), "<0.001%"),
        (units.share(994, 100_000), "0.99%"),
        (units.share(995, 100_000), "1.0%"),
        (units.share(999, 1000), "99.9%"),
        (units.share(9991, 10_000), ">99.9%"),
        (units.share(1000, 1000), "100%"),
        (units.share(0.00058, 32 * 0.00202), "0.90%"),
        (units.share(0, 0), "n/a"),
        (units.share(1, None), "n/a"),
        (units.share(math.nan, 10), "n/a"),
        (units.share(1, math.inf), "n/a"),
    ],
)
def test_numbers_read_as_people_write_them(shown: str, text: str) -> None:
    assert shown == text


ALL: list[Format] = [
    units.number_of_bytes,
    units.rate,
    units.short_count,
    units.milliseconds,
    units.joules,
    units.duration,
    units.percent,
    units.count,
    units.loss,
    units.ratio,
    units.headroom,
]


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_measured_or_not_finite_is_a_word(function: Format, value: float | None) -> None:
    shows_it = value is not None and function in (units.loss, units.count, units.short_count, units.headroom)
    assert function(value) == (str(value) if shows_it else units.NOT_AVAILABLE)
