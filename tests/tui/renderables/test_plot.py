"""Curves: what is drawn, marked and labelled."""

from collections.abc import Sequence, Set
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base import units
from amptui.telemetry.axis import Kind
from amptui.telemetry.view import EMPTY_SERIES, PrecisionSwitch, Series
from amptui.tui.canvas import Canvas
from amptui.tui.renderables.columns import Bools
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.step_window import GUTTER, Window, visible_window
from amptui.tui.style import Style
from tests.tui.renderables.tracks import any_series, any_switches, series_of, windows_near

FP32_THEN_AMP = (PrecisionSwitch(1, "fp32"), PrecisionSwitch(51, "fp16"))
LINE_STYLES = {Style.TEXT, Style.FP32, Style.IEEE, Style.TF32, Style.FP16, Style.BF16}
nan, inf = float("nan"), float("inf")


def plotted(
    values: Sequence[float | None] | Series,
    width: int = 58,
    height: int = 8,
    *,
    window: Window | None = None,
    switches: tuple[PrecisionSwitch, ...] = (),
    kind: Kind = "linear",
    band: bool = True,
    ascii_only: bool = False,
    plot: CurvePlot | None = None,
) -> Canvas:
    series = values if isinstance(values, Series) else series_of(values)
    canvas = Canvas(width, height, ascii_only=ascii_only)
    plot = plot or CurvePlot(units.loss, band=band)
    plot.draw(
        canvas,
        series,
        window=window or Window(series.first_step, max(1, series.last_step)),
        switches=switches,
        kind=kind,
    )
    return canvas


def labels(canvas: Canvas) -> list[str]:
    return [line[:GUTTER].strip() for line in canvas.lines()]


def dots(canvas: Canvas, styles: Set[int]) -> Bools:
    """The plot's braille dots [4 x height, 2 x width] in cells of these styles."""
    bits = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
    chars, cell_styles = canvas.chars[:, GUTTER:].astype(np.int64), canvas.styles[:, GUTTER:]
    codes = np.where(
        (chars >= 0x2800) & (chars < 0x2900) & np.isin(cell_styles, list(styles)), chars - 0x2800, 0
    )
    cells = (codes[:, :, None, None] & bits) != 0
    height, width = codes.shape
    by_dot: Bools = cells.transpose(0, 2, 1, 3).reshape(4 * height, 2 * width)
    return by_dot


def rows_with(canvas: Canvas, styles: Set[int]) -> list[int]:
    """Dot rows from the top."""
    return [row for row, some in enumerate(dots(canvas, styles)) if some.any()]


def columns_without(canvas: Canvas) -> list[int]:
    """Dot columns that the line leaves out."""
    return [column for column, some in enumerate(dots(canvas, LINE_STYLES).T) if not some.any()]


@given(
    st.data(),
    st.integers(0, 40),
    st.integers(0, 9),
    st.sampled_from(["linear", "log10", "log2"]),
    st.booleans(),
    st.booleans(),
    any_series(),
)
def test_any_series_in_any_window_on_any_canvas_can_be_drawn(
    data: st.DataObject, width: int, height: int, kind: Kind, band: bool, ascii_only: bool, series: Series
) -> None:
    plot = CurvePlot(units.loss, band=band)
    for _ in range(2):
        canvas = plotted(
            series,
            width,
            height,
            window=data.draw(windows_near(series)),
            switches=data.draw(any_switches(series)),
            kind=kind,
            ascii_only=ascii_only,
            plot=plot,
        )
        for line in canvas.lines():
            assert len(line) == width
            assert line.isascii() or not ascii_only


def test_a_series_without_values_leaves_the_canvas_blank() -> None:
    blank = [" " * 58] * 8
    assert plotted(EMPTY_SERIES).lines() == blank
    assert plotted([None] * 40).lines() == blank


def test_one_value_is_a_dot_between_labels() -> None:
    canvas = plotted([2.5], window=Window(1, 100))
    assert dots(canvas, LINE_STYLES).sum() == 1
    top, bottom = labels(canvas)[0], labels(canvas)[-1]
    assert float(bottom) < 2.5 < float(top)


def test_a_constant_is_a_level_line() -> None:
    canvas = plotted([0.5] * 500)
    assert len(rows_with(canvas, LINE_STYLES)) == 1
    assert columns_without(canvas) == []


def test_a_falling_curve_falls_from_its_first_value_to_its_last() -> None:
    canvas = plotted(list(np.linspace(1, 0, 600)), band=False)
    rows = dots(canvas, LINE_STYLES).argmax(axis=0)
    assert rows[0] == 0
    assert rows[-1] == 31
    assert (np.diff(rows) >= 0).all()
    assert labels(canvas) == ["1", "", "", "", "0.5", "", "", "0"]


def test_columns_with_nan_or_inf_are_a_gap_under_a_red_cross() -> None:
    values = [1.0] * 100
    values[40], values[41], values[80] = nan, inf, -inf
    canvas = plotted(values, width=GUTTER + 50)
    crosses = [x - GUTTER for x, character in enumerate(canvas.lines()[0]) if character == "×"]
    assert crosses == [20, 40]
    assert all(canvas.styles[0, GUTTER + x] == Style.ERROR for x in crosses)
    assert columns_without(canvas) == [40, 41, 80, 81]


def test_only_nan_is_a_row_of_crosses_without_labels() -> None:
    canvas = plotted([nan] * 200)
    assert canvas.lines()[0] == " " * GUTTER + "×" * 50
    assert canvas.lines()[1:] == [" " * 58] * 7


def test_steps_that_were_not_measured_are_a_gap_without_a_cross() -> None:
    canvas = plotted([1.0] * 40 + [None] * 20 + [1.0] * 40)
    assert "×" not in "".join(canvas.lines())
    assert columns_without(canvas) == list(range(40, 60))


def test_the_line_has_the_colour_of_the_precision_and_no_other() -> None:
    canvas = plotted([1.0] * 100, switches=FP32_THEN_AMP)
    row = int(np.flatnonzero((canvas.styles[:, GUTTER:] == Style.FP32).any(axis=1))[0])
    assert canvas.styles[row, GUTTER : GUTTER + 25].tolist() == [Style.FP32] * 25
    assert canvas.styles[row, GUTTER + 25 :].tolist() == [Style.FP16] * 25


def test_a_jump_at_a_switch_is_not_smoothed_away() -> None:
    canvas = plotted([1.0] * 50 + [2.0] * 50, switches=FP32_THEN_AMP)
    before, after = rows_with(canvas, {Style.FP32}), rows_with(canvas, {Style.FP16})
    assert min(before) == max(after) + 1, "each goes half of the way, in one column"
    assert len(dots(canvas, {Style.FP32}).T[49].nonzero()[0]) == len(before)


def test_the_band_shows_every_spike_behind_a_smoother_line() -> None:
    values = [0.5] * 1000
    values[500] = 0.9
    canvas = plotted(values)
    assert min(rows_with(canvas, {Style.DIM})) <= 4
    assert min(rows_with(canvas, LINE_STYLES)) > 16
    assert rows_with(plotted(values, band=False), {Style.DIM}) == []


def test_outliers_leave_the_plot_and_are_marked() -> None:
    values = [40.0, *[0.1, 0.2] * 300]
    canvas = plotted(values)
    assert float(labels(canvas)[0]) <= 0.25
    assert [x for x, character in enumerate(canvas.lines()[0]) if character == "↑"] == [GUTTER]
    exact = plotted(values, band=False)
    assert float(labels(exact)[0]) >= 40
    assert "↑" not in exact.lines()[0]


def test_a_logarithmic_axis_spreads_the_decades_evenly() -> None:
    canvas = plotted(list(np.geomspace(10, 0.001, 600)), kind="log10", band=False)
    rows = dots(canvas, LINE_STYLES).argmax(axis=0)
    assert np.abs(rows - np.linspace(0, 31, 100)).max() <= 1
    assert [label for label in labels(canvas) if label] == ["log", "1", "0.01"]


def test_a_logarithmic_axis_says_so_and_a_linear_one_does_not() -> None:
    for kind in ("linear", "log10", "log2"):
        for height in (3, 5, 12):
            assert ("log" in labels(plotted([1.0, 2.0, 4.0], height=height, kind=kind))) == (kind != "linear")


def test_zero_on_a_logarithmic_axis_is_marked_at_the_bottom() -> None:
    values = [1.0] * 100
    values[50] = 0.0
    bottom = plotted(values, kind="log10").lines()[-1]
    assert [x - GUTTER for x, character in enumerate(bottom) if character == "↓"] == [25]


def test_a_series_without_positive_values_has_a_linear_axis() -> None:
    canvas = plotted([-1.0, -2.0, -3.0], kind="log10")
    assert labels(canvas) == labels(plotted([-1.0, -2.0, -3.0]))
    assert dots(canvas, LINE_STYLES).any()


def test_few_steps_fill_the_width_with_a_line() -> None:
    assert columns_without(plotted([1.0, 3.0, 2.0, 5.0])) == []


def test_a_terminal_without_utf8_gets_stars_and_points() -> None:
    values = [float(value) for value in np.tile([1.0, 2.0], 200)]
    values[200:204] = [nan] * 4
    canvas = plotted(values, ascii_only=True, switches=FP32_THEN_AMP)
    text = "".join(canvas.lines())
    assert {"*", ".", "x"} <= set(text)
    assert not set(text) & set("⣿×↑")


def test_ten_million_steps_are_drawn_from_the_overview() -> None:
    count, buckets = 10_000_000, 2048
    mean = np.linspace(2, 1, -(-count // 8192))
    recent = np.full(buckets, 1.0)
    series = Series(
        first_step=1,
        count=count,
        bucket_steps=8192,
        minimum=mean - 0.1,
        maximum=mean + 0.1,
        mean=mean,
        nonfinite=np.zeros(len(mean), np.int64),
        recent=recent,
        recent_nonfinite=np.zeros(buckets, np.bool_),
    )
    for zoom in range(24):
        canvas = plotted(series, window=visible_window(series, zoom))
        assert all(column > 90 for column in columns_without(canvas))


@pytest.mark.parametrize(("height", "count"), [(1, 1), (2, 2), (4, 2), (5, 3), (8, 3), (12, 6)])
def test_labels_fall_by_equal_steps_and_have_a_free_line_between(height: int, count: int) -> None:
    canvas = plotted([0.0, 1.0], height=height)
    written = [(row, float(label)) for row, label in enumerate(labels(canvas)) if label]
    assert len(written) == count
    assert np.diff([value for _, value in written]) == pytest.approx(-1 / max(1, count - 1))
    if height > 2:
        assert all(below - above > 1 for (above, _), (below, _) in pairwise(written))


def test_a_growing_run_changes_few_cells_of_a_frame() -> None:
    losses = 0.1 + 2 * np.exp(-np.arange(700) / 150)
    plot, changed, frames = CurvePlot(units.loss), 0, 0
    previous: Canvas | None = None
    for count in range(500, 700, 2):
        series = series_of(losses[:count].tolist())
        canvas = plotted(series, 100, 12, window=visible_window(series, 0), plot=plot)
        if previous is not None:
            changed += sum(span.stop - span.start for span in canvas.changes_since(previous))
            frames += 1
        previous = canvas
    assert changed / frames < 20
