"""Numbers as people read them: three right digits, a unit that fits, and n/a for what is not known."""

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base import units

Format = Callable[[float | None], str]

BINARY = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5}


def number_in(text: str) -> float:
    """The number that ``text`` begins with."""
    match = re.match(r"-?[\d,]+(\.\d+)?(e[-+]\d+)?", text)
    assert match, text
    return float(match[0].replace(",", ""))


def digits_in(text: str) -> int:
    """How many digits the number that ``text`` begins with has, leading zeros aside."""
    return len(re.sub(r"\D", "", text.split(maxsplit=1)[0]).lstrip("0"))


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (units.number_of_bytes, 0, "0 B"),
        (units.number_of_bytes, 999, "999 B"),
        (units.number_of_bytes, 1000, "0.977 KiB"),
        (units.number_of_bytes, 1024, "1.00 KiB"),
        (units.number_of_bytes, 999.7 * 1024, "0.976 MiB"),
        (units.number_of_bytes, 1.24 * 2**30, "1.24 GiB"),
        (units.rate, 127_004, "127 k/s"),
        (units.rate, 999.6, "1.00 k/s"),
        (units.rate, 0, "0/s"),
        (units.short_count, 131_072, "131 k"),
        (units.short_count, 2.98e-8, "3.0e-08"),
        (units.short_count, 0.0001, "0.000100"),
        (units.milliseconds, 0.002021, "2.02 ms"),
        (units.milliseconds, 0.9996, "1.00 s"),
        (units.milliseconds, 1.309, "1.31 s"),
        (units.joules, 412, "412 J"),
        (units.joules, 1234.5, "1.23 kJ"),
        (units.joules, 0.9996, "1.00 J"),
        (units.joules, 0, "0 J"),
        (units.duration, 59.6, "1:00"),
        (units.duration, 3723, "1:02:03"),
        (units.duration, 2 * 86400 + 3 * 3600 + 245, "2d 03:04:05"),
        (units.duration, -3, "0:00"),
        (units.percent, 0.38, "38%"),
        (units.percent, -0.001, "0%"),
        (units.count, 65_536, "65,536"),
        (units.count, 0.125, "0.125"),
        (units.count, -0.0, "0"),
        (units.count, 2.0**-40, "9.1e-13"),
        (units.count, 2.0**100, "1.3e+30"),
        (units.loss, 0.03123, "0.0312"),
        (units.loss, 4.1e-7, "4.1e-07"),
        (units.loss, 99_960.0, "1.0e+05"),
        (units.loss, 0.0, "0"),
        (units.ratio, 1.944, "1.94×"),
        (units.doublings, 3.24, "3.2"),
        (units.doublings, -0.04, "0.0"),
    ],
)
def test_numbers_read_as_people_write_them(function: Format, value: float, text: str) -> None:
    assert function(value) == text


def test_a_unit_follows_the_prefix() -> None:
    assert units.rate(127_004, "samples") == "127 k samples/s"
    assert units.rate(12, "samples") == "12.0 samples/s"
    assert units.percent(0.991, digits=1) == "99.1%"
    assert units.joules(412, per="1k") == "412 J/1k"
    assert units.joules(None, per="1k") == "n/a"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 1000, "0%"),
        (1, 1000, "0.10%"),
        (1, 99_999, "0.001%"),
        (1, 200_000, "<0.001%"),
        (994, 100_000, "0.99%"),
        (995, 100_000, "1.0%"),
        (999, 1000, "99.9%"),
        (9991, 10_000, ">99.9%"),
        (1000, 1000, "100%"),
        (0.00058, 32 * 0.00202, "0.90%"),
        (0, 0, "n/a"),
        (1, None, "n/a"),
        (math.nan, 10, "n/a"),
        (1, math.inf, "n/a"),
    ],
)
def test_a_share_is_nothing_only_at_none_and_everything_only_at_all(
    part: float | None, whole: float | None, text: str
) -> None:
    assert units.share(part, whole) == text


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_shares_fit_in_seven_cells_and_have_the_right_size(part: int, whole: int) -> None:
    text = units.share(part, whole)
    assert len(text) <= 7
    assert (text == "0%") == (part == 0)
    assert (text == "100%") == (part >= whole)
    if text[0] not in "<>" and 0 < part < whole:
        assert float(text[:-1]) == pytest.approx(100 * part / whole, abs=0.05, rel=0.5)


def test_part_and_whole_share_the_whole_s_unit() -> None:
    assert units.bytes_of(3.1 * 2**30, 139 * 2**30) == "3.10 / 139 GiB"
    assert units.bytes_of(None, 139 * 2**30) == "n/a / 139 GiB"
    assert units.bytes_of(3.1 * 2**30, None) == "3.10 GiB"
    assert units.bytes_of(None, None) == "n/a"


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
    units.doublings,
]


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_measured_or_not_finite_is_a_word(function: Format, value: float | None) -> None:
    shows_it = value is not None and function in (units.loss, units.count, units.short_count, units.doublings)
    assert function(value) == (str(value) if shows_it else units.NOT_AVAILABLE)


@given(value=st.integers(0, 999 * 1024**5))
def test_bytes_have_three_digits_and_the_right_size(value: int) -> None:
    text = units.number_of_bytes(value)
    number, unit = text.split()
    assert digits_in(number) <= 3
    assert float(number) * 1024 ** BINARY[unit] == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("function", "unit", "smallest", "largest", "sizes"),
    [
        (units.rate, "/s", 1e-3, 9.9e14, {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}),
        (units.milliseconds, "s", 1e-5, 999.0, {"m": 1e-3, "": 1.0}),
        (units.joules, "J", 1e-6, 9.9e14, {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}),
    ],
    ids=["rates", "step times", "energies"],
)
@given(data=st.data())
def test_numbers_have_three_digits_and_the_right_size(
    function: Format, unit: str, smallest: float, largest: float, sizes: dict[str, float], data: st.DataObject
) -> None:
    value = data.draw(st.floats(smallest, largest))
    match = re.fullmatch(rf"([\d.]+) ?([mkMGT]?){unit}", function(value))
    assert match, function(value)
    assert digits_in(match[1]) == 3
    assert float(match[1]) * sizes[match[2]] == pytest.approx(value, rel=0.0051)


@given(value=st.integers(0, 10**9))
def test_a_duration_read_back_is_the_same_second(value: int) -> None:
    match = re.fullmatch(r"(?:(\d+)d )?(?:(\d+):)?(\d+):(\d\d)", units.duration(value))
    assert match
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    assert ((days * 24 + hours) * 60 + minutes) * 60 + seconds == value


@given(value=st.floats(-1e300, 1e300))
def test_a_loss_of_any_size_is_right_and_short(value: float) -> None:
    text = units.loss(value)
    assert len(text) <= 9
    assert number_in(text) == pytest.approx(value, rel=0.051 if "e" in text else 0.0051)


@given(value=st.integers(-(10**14), 10**14))
def test_whole_numbers_are_exact(value: int) -> None:
    assert int(units.count(value).replace(",", "")) == value
    assert units.count(float(value)) == units.count(value)
