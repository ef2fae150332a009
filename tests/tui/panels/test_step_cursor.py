"""The cursor of an enlarged chart: it reads the series at its step, whatever the chart shows of it."""

import math
from collections.abc import Sequence

from amptui.base import units
from amptui.telemetry.view import PrecisionSwitch, Series, SessionView
from amptui.tui.panels.phrases import Phrase, Word
from amptui.tui.panels.step_cursor import (
    Cursor,
    Extent,
    cursor_line,
    press,
)
from amptui.tui.renderables.step_window import visible_window
from tests.golden import Goldens
from tests.tui.renderables.tracks import series_of


def extent_of(series: Series, zoom: int = 0, columns: int = 70) -> Extent:
    return Extent(series, visible_window(series, zoom), visible_window(series, 0), columns)


def pressed(extent: Extent, keys: Sequence[str], cursor: Cursor | None = None) -> Cursor | None:
    for key in keys:
        cursor = press(cursor, key, extent)
    return cursor


def words(line: Sequence[Phrase]) -> list[str]:
    return ["".join(word.text for word in phrase.words if isinstance(word, Word)) for phrase in line]


# ------------------------------------------------------------------------------------- the moves


LONG = series_of([1.0] * 10_000)


def validated(*steps: int) -> Extent:
    """A run of 1,000 steps with a value at some of them."""
    run = visible_window(series_of([1.0] * 1000), 0)
    return Extent(series_of([0.5 if step in steps else None for step in range(1, 1001)]), run, run, 70)


def test_keys_lead_the_cursor_where_was_approved(goldens: Goldens) -> None:
    back = "left_square_bracket"
    scripts = (
        *(
            "left",
            "left left",
            f"right {back}",
            f"right {back} right_square_bracket",
            "home",
            "end home",
        ),
        *(f"end {back} {back} plus", f"end {back} plus plus plus plus", "end plus left"),
        *(f"end plus plus plus plus {back} {back} {back}", "end plus plus minus minus", "end plus plus 0"),
        "end" + " plus" * 12 + " left",
    )
    few = ("left", "left left", "left left left", "left left left left", "home right")
    lines = [
        f"{keys}: {pressed(extent, keys.split())}"
        for extent, some in ((extent_of(LONG), scripts), (validated(100, 500, 900), few))
        for keys in some
    ]
    loss = series_of([float(step) for step in range(1, 33)], buckets=8, recent=2)
    scale = series_of([None] * 16 + [4.0] * 2 + [8.0] * 14, buckets=8, recent=2)
    switches = (PrecisionSwitch(1, "fp32"), PrecisionSwitch(17, "fp16"))
    broken = series_of([math.inf, None, 1.0, math.nan, None, None, 1.0], buckets=4, recent=1)
    for view, series, steps in (
        (SessionView(loss=loss, loss_scale=scale, switches=switches), loss, (1, 18, 32)),
        (SessionView(loss=broken), broken, (1, 3, 5)),
    ):
        lines += [" | ".join(words(cursor_line(view, series, step, units.loss))) for step in steps]
    goldens.check("scripts/cursor", "\n".join(lines))
