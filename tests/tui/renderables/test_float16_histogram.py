"""The histogram of gradient exponents at any size."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import Float16Window
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.float16_histogram import LEGEND_LINES, MARGIN, draw_exponents, width_beside
from amptui.tui.renderables.step_window import GUTTER
from amptui.tui.style import BOLD, Style

BLANK, BOUNDARY = " ", "▏"


def window(counts: dict[int, int], **changes: int) -> Float16Window:
    """Elements by exponent, in a window from 2^-60 to 2^41; ``changes`` are its exact counts."""
    total = sum(counts.values()) + changes.get("zeros", 0) + changes.get("nonfinite", 0)
    exact = {"zeros": 0, "flushed": 0, "subnormal": 0, "overflowing": 0, "nonfinite": 0} | changes
    return Float16Window(
        time=0.0,
        step=1,
        precision="fp32",
        loss_scale=65536.0,
        hypothetical=True,
        first_exponent=-60,
        counts=tuple(counts.get(exponent, 0) for exponent in range(-60, 41)),
        elements=total,
        worst=(),
        seconds=None,
        steps_since=None,
        **exact,
    )


def drawn(shown: Float16Window, width: int = 76, height: int = 11, *, ascii_only: bool = False) -> Canvas:
    canvas = Canvas(width, height, ascii_only=ascii_only)
    draw_exponents(canvas, shown)
    return canvas


def bars(canvas: Canvas) -> list[int]:
    """The height of each column of bars, in eighths of a cell."""
    rows = canvas.chars[: canvas.height - LEGEND_LINES, GUTTER : canvas.width - MARGIN]
    eighths = np.where((rows >= ord("▁")) & (rows <= ord("█")), rows - ord("▁") + 1, 0)
    return [int(height) for height in eighths.sum(axis=0)]


def legend(canvas: Canvas) -> list[list[str]]:
    return [line.split() for line in canvas.lines()[-2:]]


EVERYWHERE = window(
    dict.fromkeys(range(-42, 18), 1000), flushed=17_000, subnormal=11_000, overflowing=2000, zeros=40_000
)

any_counts = st.dictionaries(st.integers(-60, 40), st.integers(1, 10**9), max_size=40)
any_window = st.builds(
    window,
    any_counts,
    zeros=st.integers(0, 10**9),
    flushed=st.integers(0, 10**6),
    overflowing=st.integers(0, 10**6),
    nonfinite=st.integers(0, 10**9),
)


def test_each_zone_has_its_name_and_its_share_in_its_place() -> None:
    canvas = drawn(EVERYWHERE)
    assert legend(canvas) == [
        ["zeros", "flushed", "subnormal", "normal", "overflow", "NaN/Inf"],
        ["40.0%", "17.0%", "11.0%", "30.0%", "2.0%", "0"],
    ]
    names, shares = canvas.lines()[-2:]
    styles = canvas.styles[0 : canvas.height - LEGEND_LINES, :]
    assert styles[-1, names.index("flushed") + 3] == Style.WARNING
    assert styles[-1, names.rindex("normal") + 3] == Style.GOOD
    assert canvas.styles[-1, shares.index("17.0%")] == Style.WARNING | BOLD
    assert canvas.styles[-1, shares.index("2.0%")] == Style.ERROR | BOLD


@pytest.mark.parametrize(
    ("width", "runs"),
    [
        (76, [17, 11, 30, 2]),
        (GUTTER + MARGIN + 50, [7, 11, 30, 2]),
        (GUTTER + MARGIN + 110, [2 * 12, 2 * 11, 2 * 30, 2 * 2]),
        (36, [2, 4, 10, 1]),
        (60, [3, 6, 15, 1]),
    ],
)
def test_bars_of_one_zone_are_adjacent_in_its_style(width: int, runs: list[int]) -> None:
    canvas = drawn(EVERYWHERE, width)
    assert all(height > 0 for height in bars(canvas)[: sum(runs)])
    styles = canvas.styles[canvas.height - LEGEND_LINES - 1, GUTTER : GUTTER + sum(runs)].tolist()
    found = [(style, len(list(cells))) for style, cells in groupby(styles)]
    assert found == list(zip((Style.WARNING, Style.TEXT, Style.GOOD, Style.ERROR), runs, strict=True))


def test_boundaries_are_named_where_the_zones_meet() -> None:
    canvas = drawn(window({0: 1000}))
    axis, empty = canvas.lines()[-3], canvas.lines()[0]
    starts = [x for x, sign in enumerate(empty) if sign == BOUNDARY]
    labels = [axis.index(label) + len(label) // 2 for label in ("2^-25", "2^-14", "65,520")]
    assert starts == labels == [GUTTER + 17, GUTTER + 28, GUTTER + 58]


def test_a_zone_without_elements_is_dim() -> None:
    canvas = drawn(window({0: 1000}))
    zeros, flushed, subnormal, normal, overflow, bad = legend(canvas)[1]
    assert (zeros, flushed, subnormal, normal, overflow, bad) == ("0%", "0%", "0%", "100%", "0%", "0")
    shares = canvas.lines()[-1]
    assert canvas.styles[-1, shares.index("0%", GUTTER)] == Style.DIM
    assert canvas.styles[-1, len(shares.rstrip()) - 1] == Style.DIM


def test_shares_are_the_exact_counts_and_not_the_bars() -> None:
    # 2^-25 itself is flushed, and lies in a bar with subnormal ones.
    shares = legend(drawn(window({-25: 100}, flushed=40, subnormal=60)))[1]
    assert shares[:4] == ["0%", "40.0%", "60.0%", "0%"]


def test_nan_and_inf_are_counted_in_the_style_of_an_error() -> None:
    canvas = drawn(window({0: 1000}, nonfinite=1204))
    assert canvas.lines()[-1].rstrip().endswith("1,204")
    assert canvas.styles[-1, canvas.lines()[-1].index("1,204")] == Style.ERROR | BOLD


def test_what_lies_beyond_the_axis_is_in_its_end_bars_with_an_arrow() -> None:
    inside = drawn(window({-42: 10, 17: 10}))
    beyond = drawn(window({-60: 10, 40: 10}))
    assert bars(inside) == bars(beyond)
    assert not {"←", "→"} & set(inside.lines()[-3])
    axis = beyond.lines()[-3]
    assert axis.index("←") == GUTTER - 1
    assert axis.index("→") == GUTTER + 61


def test_heights_are_logarithms_from_one_element_to_all() -> None:
    canvas = drawn(window({-5: 1, 0: 999_000, 3: 999}), height=16 + LEGEND_LINES)
    heights = bars(canvas)
    one, most, few = (heights[exponent + 42] for exponent in (-5, 0, 3))
    assert one == 1
    assert most == 16 * 8
    assert few == pytest.approx(16 * 8 / 2, abs=1)
    assert [line[: GUTTER - 1].strip() for line in canvas.lines()[:16] if line[:7].strip()] == [
        "100%",
        "0.1%",
        "0.0001%",
    ]


def test_shares_whose_percentage_is_too_long_are_one_in_so_many() -> None:
    canvas = drawn(window({-5: 1, 0: 99_999_999}), height=16 + LEGEND_LINES)
    assert [label for line in canvas.lines()[:16] if (label := line[:7].strip())] == [
        "100%",
        "0.01%",
        "1/10^8",
    ]


@given(any_window, st.integers(1, 30))
def test_one_element_is_never_drawn_as_none_and_none_never_as_one(shown: Float16Window, rows: int) -> None:
    heights = bars(drawn(shown, height=rows + LEGEND_LINES))
    exponents = {min(17, max(-42, i - 60)) for i, count in enumerate(shown.counts) if count}
    assert {column - 42 for column, height in enumerate(heights) if height} == exponents


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 30))
def test_more_elements_never_have_a_lower_bar(one: int, other: int, rows: int) -> None:
    heights = bars(drawn(window({0: one, 5: other}), height=rows + LEGEND_LINES))
    assert (heights[42] >= heights[47]) if one >= other else (heights[42] <= heights[47])
    assert max(heights) <= 8 * rows


@given(any_window, st.integers(0, 200), st.integers(0, 40), st.booleans())
def test_every_size_is_drawn(shown: Float16Window, width: int, height: int, ascii_only: bool) -> None:
    canvas = drawn(shown, width, height, ascii_only=ascii_only)
    assert all(len(line) == width for line in canvas.lines())
    assert not ascii_only or "".join(canvas.lines()).isascii()


def test_a_narrow_panel_combines_exponents_and_lists_the_shares() -> None:
    lines = drawn(EVERYWHERE, 36).lines()
    assert lines[-2].split() == ["flush", "17.0%", "sub", "11.0%", "zero", "40.0%"]
    assert lines[-1].split() == ["normal", "30.0%", "over", "2.0%"]
    bad = drawn(replace(EVERYWHERE, nonfinite=12), 36).lines()
    assert bad[-1].split() == ["NaN/Inf", "12", "over", "2.0%"]


def test_without_gradients_there_are_no_shares() -> None:
    assert legend(drawn(window({})))[1] == ["n/a", "n/a", "n/a", "n/a", "n/a", "0"]


@given(st.integers(104, 250), st.integers(0, 60))
def test_every_exponent_has_a_bar_beside_other_panels(width: int, others: int) -> None:
    wanted = width_beside(width, others)
    assert wanted >= GUTTER + MARGIN + 50
    assert wanted <= max(width - others, GUTTER + MARGIN + 50)
    full = drawn(EVERYWHERE, wanted)
    assert all(height > 0 for height in bars(full))
