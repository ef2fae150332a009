"""What holds for every histogram, of any size."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import Float16Window
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.float16_histogram import LEGEND_LINES, MARGIN, draw_exponents
from amptui.tui.renderables.step_window import GUTTER
from tests.telemetry.record_samples import window


def exponents(counts: dict[int, int], **changes: int) -> Float16Window:
    """Elements by exponent, in a window from 2^-60 to 2^41; ``changes`` are its exact counts."""
    total = sum(counts.values()) + changes.get("zeros", 0) + changes.get("nonfinite", 0)
    shown = tuple(counts.get(exponent, 0) for exponent in range(-60, 41))
    return window(1, **{"first_exponent": -60, "counts": shown, "elements": total, "zeros": 0, **changes})


def drawn(shown: Float16Window, width: int = 76, height: int = 11, *, ascii_only: bool = False) -> Canvas:
    canvas = Canvas(width, height, ascii_only=ascii_only)
    draw_exponents(canvas, shown)
    return canvas


def bars(canvas: Canvas) -> list[int]:
    """The height of each column of bars, in eighths of a cell."""
    rows = canvas.chars[: canvas.height - LEGEND_LINES, GUTTER : canvas.width - MARGIN]
    eighths = np.where((rows >= ord("▁")) & (rows <= ord("█")), rows - ord("▁") + 1, 0)
    return [int(height) for height in eighths.sum(axis=0)]


any_counts = st.dictionaries(st.integers(-60, 40), st.integers(1, 10**9), max_size=40)
any_window = st.builds(
    exponents,
    any_counts,
    zeros=st.integers(0, 10**9),
    flushed=st.integers(0, 10**6),
    overflowing=st.integers(0, 10**6),
    nonfinite=st.integers(0, 10**9),
)


@given(any_window, st.integers(1, 30))
def test_one_element_is_never_drawn_as_none_and_none_never_as_one(shown: Float16Window, rows: int) -> None:
    heights = bars(drawn(shown, height=rows + LEGEND_LINES))
    exponents = {min(17, max(-42, i - 60)) for i, count in enumerate(shown.counts) if count}
    assert {column - 42 for column, height in enumerate(heights) if height} == exponents


@given(any_window, st.integers(0, 200), st.integers(0, 40), st.booleans())
def test_every_size_is_drawn(shown: Float16Window, width: int, height: int, ascii_only: bool) -> None:
    canvas = drawn(shown, width, height, ascii_only=ascii_only)
    assert all(len(line) == width for line in canvas.lines())
    assert not ascii_only or "".join(canvas.lines()).isascii()
