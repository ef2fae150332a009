"""The screen of a comparison: what stands where, at each size, with and without colours."""

import math
from dataclasses import replace

import numpy as np
import pytest

from amptui.reports.compare.axis_cursor import AxisCursor
from amptui.reports.compare.compare_frame import Choice, CompareFrame
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.following import read_all
from amptui.reports.compare.grid import Span, grid
from amptui.reports.compare.overlay_plot import MAX_GROUPS, STYLES
from amptui.tui.canvas import Canvas
from tests.reports.compare.compared_runs import BF16, FP32, figures, started, trained, validated, whole_run


@pytest.fixture(scope="module")
def recorded() -> Compared:
    return read_all([*FP32, *BF16], target=None)


def drawn(
    found: Compared | None, size: tuple[int, int] = (120, 40), *, ascii_only: bool = False, **choice: object
) -> Canvas:
    canvas = Canvas(*size, ascii_only=ascii_only)
    CompareFrame().draw(canvas, found, replace(Choice(), **choice))  # type: ignore[arg-type]
    return canvas


def text(canvas: Canvas) -> str:
    return "\n".join(canvas.lines())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16), (200, 60)])
def test_every_size_has_curves_groups_verdict_and_keys(recorded: Compared, size: tuple[int, int]) -> None:
    summary = text(drawn(recorded, size))
    assert "A FP32" in summary
    assert "B AMP bf16" in summary
    assert "0.404" in summary  # the final loss
    assert "B AMP bf16 against A FP32" in summary
    assert "q quit" in summary.splitlines()[-1]


@pytest.mark.ci
@pytest.mark.parametrize("height", range(1, 45, 4))
def test_no_size_makes_it_fail(recorded: Compared, height: int) -> None:
    for width in range(1, 130, 17):
        drawn(recorded, (width, height))
        drawn(recorded, (width, height), by_run=True, shows_help=True)
        drawn(recorded, (width, height), cursor=AxisCursor(12.0, Span(10.0, 20.0)))


def test_each_group_has_a_letter_on_its_curve_and_a_colour(recorded: Compared) -> None:
    canvas = drawn(recorded)
    plot = canvas.rows(1, 14)
    letters = {(chr(plot.chars[y, x]), int(plot.styles[y, x]) & 0x7F) for y, x in np.argwhere(plot.chars > 0)}
    assert {("A", STYLES["fp32"]), ("B", STYLES["bf16"])} <= letters


def test_without_utf8_there_is_only_ascii(recorded: Compared) -> None:
    assert text(drawn(recorded, ascii_only=True)).isascii()
    assert "*" in text(drawn(recorded, ascii_only=True))


@pytest.mark.parametrize(("axis", "last"), [("steps", "60"), ("samples", "3,840"), ("seconds", "3:10")])
def test_the_x_axis_can_be_chosen(recorded: Compared, axis: str, last: str) -> None:
    lines = drawn(recorded, axis=axis).lines()
    assert any(line.rstrip(" │").endswith(last) for line in lines[:20])


def test_rows_of_runs(recorded: Compared) -> None:
    summary = text(drawn(recorded, (80, 24), by_run=True))
    assert "A fp32-seed2" in summary
    assert "B bf16-seed0" in summary
    assert "A fp32-seed2" in text(drawn(recorded))
    assert "A fp32-seed2" not in text(drawn(recorded, (80, 24)))


def test_before_anything_was_read() -> None:
    assert "reading" in text(drawn(None))


def test_a_run_without_steps_is_shown_without_curves() -> None:
    comparison = compared(
        [figures([started()], name="one"), figures([started(precision="bf16")], name="two")]
    )
    summary = text(drawn(comparison))
    assert "no loss yet" in summary
    assert "A FP32" in summary


def test_no_step_times_are_told_on_the_time_axis() -> None:
    runs = [
        figures([started(precision=p), *trained([1.0] * 5, precision=p, step_seconds=None)])
        for p in ("fp32", "bf16")
    ]
    assert "no training time" in text(drawn(compared(runs), axis="seconds"))


def test_nan_is_a_marked_gap() -> None:
    broken = figures(whole_run([1.0] * 30 + [math.nan] * 30))
    comparison = compared([broken, figures(whole_run([2.0] * 60, precision="bf16"))])
    assert "×" in text(drawn(comparison).rows(2, 1))


def test_more_groups_than_colours_are_told() -> None:
    runs = [figures(whole_run(config={"width": width}), name=str(width)) for width in range(MAX_GROUPS + 2)]
    summary = text(drawn(compared(runs), (120, 60)))
    assert "no curves for I" in summary
    assert "J FP32" in summary
    assert "no curves for I" in text(drawn(compared(runs), (80, 24)))
    assert "more row" in text(drawn(compared(runs), (80, 18)))


def test_the_verdict_can_be_scrolled(recorded: Compared) -> None:
    first = text(drawn(recorded, (80, 24)))
    assert "more lines: ↓" in first
    assert "time to 0.451:" not in first
    last = text(drawn(recorded, (80, 24), top=999))
    assert "more lines" not in last
    assert "--target-loss" in last


def test_validations_are_drawn_on_request() -> None:
    runs = []
    for precision, final in (("fp32", 1.0), ("bf16", 40.0)):
        *records, end = whole_run(5.0, precision=precision)
        runs.append(figures([*records[:11], validated(10, 50.0), *records[11:], validated(30, final), end]))
    report = drawn(compared(runs), validation=True)
    assert "validation loss by step" in text(report)
    assert "50" in text(report.rows(1, 2))


@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_cursor_costs_no_line_of_the_curves(recorded: Compared, ascii_only: bool) -> None:
    before = drawn(recorded, (80, 24), ascii_only=ascii_only)
    after = drawn(recorded, (80, 24), ascii_only=ascii_only, cursor=AxisCursor(30.0))
    differs = np.argwhere((before.chars != after.chars).any(axis=1)).ravel().tolist()
    edge = next(y for y, line in enumerate(after.lines()) if " step 30, smoothed" in line)
    assert set(differs) <= {*range(2, edge + 1), 23}
    values = after.rows(edge, 1)
    styles = {chr(values.chars[0, x]): int(values.styles[0, x]) & 0x7F for x in range(80)}
    assert (styles["A"], styles["B"]) == (STYLES["fp32"], STYLES["bf16"])


def test_help_lists_the_keys(recorded: Compared) -> None:
    assert "by training time" in text(drawn(recorded, (80, 24), shows_help=True))


# --------------------------------------------------------------------------------------- curves


def test_a_mean_needs_all_runs_of_its_group() -> None:
    short, long = figures(whole_run([1.0] * 10, seed=0)), figures(whole_run([3.0] * 20, seed=1))
    both = replace(short, view=long.view, curve=short.curve)
    comparison = compared([replace(long, name="long"), replace(both, name="short")])
    (curve,) = grid(comparison, "steps", 19, validation=False).curves
    assert curve is not None
    assert curve.mean[:8].tolist() == [2.0] * 8
    assert np.isnan(curve.mean[12:]).all()
    assert (curve.low[12:].tolist(), curve.high[12:].tolist()) == ([3.0] * 7, [3.0] * 7)
    assert (curve.low[0], curve.high[0]) == (1.0, 3.0)


def test_curves_by_samples_and_by_time_are_stretched_alike() -> None:
    slow = figures(whole_run([2.0] * 30))
    fast = figures([started(precision="bf16"), *trained([1.0] * 30, precision="bf16", step_seconds=0.25)])
    comparison = compared([slow, fast])
    by_time = grid(comparison, "seconds", 100, validation=False)
    assert by_time.high == 15.0
    assert by_time.curves[1] is not None
    assert np.isnan(by_time.curves[1].mean[60:]).all()
    assert np.isfinite(by_time.curves[1].mean[:45]).any()
    by_samples = grid(comparison, "samples", 100, validation=False)
    assert by_samples.curves[1] is not None
    assert np.isfinite(by_samples.curves[1].mean).all()
