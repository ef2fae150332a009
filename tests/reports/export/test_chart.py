"""A chart: the line of what was measured, in the colours of the precisions, with marks and words."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.reports.export.chart import Chart, Curve, Point, draw
from amptui.reports.export.step_axis import MAX_COLUMNS, StepRange, columns
from amptui.telemetry.history import RateTrack, Track
from amptui.telemetry.view import PrecisionSwitch
from tests.golden import Goldens
from tests.tui.views import series

SWITCHES = (PrecisionSwitch(1, "fp32"), PrecisionSwitch(41, "fp16"), PrecisionSwitch(71, "fp4"))


def steps(last: int = 100) -> StepRange:
    return StepRange(1, last, SWITCHES)


def drawn(values: list[float | None], **changes: object) -> str:
    chart = Chart(title="loss", curves=(Curve("loss", series(values)),), **changes)  # type: ignore[arg-type]
    figure = draw(chart, steps(len(values)))
    assert figure is not None
    return figure


def lines(figure: str) -> list[tuple[str, int]]:
    """The class of each line, and how many points it has."""
    lines = re.findall(r'<path d="([^"]*)" class="line (\w+)"', figure)
    return [(name, len(re.findall(r"[ML]", path))) for path, name in lines]


@pytest.mark.parametrize("values", [[None] * 5, [math.nan, math.inf], []])
def test_there_is_no_chart_without_a_finite_value(values: list[float | None]) -> None:
    chart = Chart(title="loss", curves=(Curve("loss", series(values)),))
    assert draw(chart, steps()) is None


def test_each_kind_of_curve_is_drawn_as_before(goldens: Goldens) -> None:
    """Where precisions change, nothing was measured, values are few, not finite or beyond the axis."""
    rising = [1.0 + n / 100 for n in range(100)]
    gaps = [value if n % 10 == 5 else None for n, value in enumerate(rising)]
    outlier = [1 + n % 7 / 10 for n in range(100)]
    below = list(outlier)
    outlier[30], below[30] = 400.0, -400.0
    extreme: list[float | None] = [1e308, 5e-324, -1e308, 0.0, 1.0] * 8
    figures = {
        "three precisions": drawn([*rising]),
        "gaps": drawn([*gaps]),
        "gaps, sparse": drawn([*gaps], sparse=True),
        "a share": drawn([99.9] * 100, kind="linear", ceiling=100.0),
        "one value": drawn([None, 2.0, *[None] * 98]),
        "NaN and skips": drawn(
            [math.nan if n == 50 else 1.0 for n in range(100)],
            skips=series([float(n in (5, 6)) for n in range(100)]),
        ),
        "a band": drawn([float(n % 7) for n in range(5000)]),
        "one far above": drawn([*outlier], noisy=True, kind="linear"),
        "one far below": drawn([*below], noisy=True, kind="linear"),
        "all of it": drawn([*outlier], kind="linear"),
    }
    for kind in (None, "linear", "log10", "log2"):
        figures[f"extremes, {kind}"] = drawn(extreme, kind=kind, noisy=True)
    goldens.check_digests(figures)
    assert lines(figures["gaps"]) == [("fp32", 4), ("fp16", 3), ("other", 3)]
    assert lines(figures["gaps, sparse"]) == [("fp32", 4), ("fp16", 4), ("other", 4)]
    crosses = re.findall(r'<text x="([\d.]+)%" y="10" class="(\w+)">×', figures["NaN and skips"])
    assert crosses == [("5.50", "skip"), ("6.50", "skip"), ("50.50", "nonfinite")]
    beyond = [re.findall(r'class="beyond">(.)<', figure) for figure in figures.values()]
    assert beyond[7:10] == [["↑"], ["↓"], []]
    track = RateTrack.empty()
    seconds = [0.006] * 60 + [1e-6] + [0.006] * 39
    track.extend([256 / duration for duration in seconds], [256] * 100, list(seconds))
    rates = Chart(title="throughput", curves=(Curve("throughput", track.snapshot()),), kind="linear")
    assert "↑: values beyond the axis." in (draw(rates, steps(100)) or "")


def test_a_chart_is_drawn_with_all_it_can_have(goldens: Goldens) -> None:
    curve = Curve("used", series([2.0 * 1024**3, math.nan, None, 2.512345678 * 1024**3]))
    figure = draw(
        Chart(
            title="memory <b>",
            unit="GiB",
            unit_value=1024.0**3,
            curves=(curve, Curve("", series([1024.0**3, 1024.0**3 * 9, 1024.0**3]))),
            points=(Point(3, 4 * 1024.0**3, "validation after epoch 1: 4.00"),),
            skips=series([0.0, 1.0, 0.0, 0.0]),
            kind="linear",
        ),
        steps(4),
    )
    narrow = draw(Chart(title="loss", curves=(Curve("loss", series([1.0] * 5000)),)), steps(5000))
    assert figure is not None
    assert narrow is not None
    goldens.check("reports/page chart", figure.replace("><", ">\n<"))
    # The ribbon has a letter where there is room for it.
    assert re.findall(r'class="letter">(.)<', drawn([1.0] * 100)) == ["F", "A", "?"]
    assert re.findall(r'class="letter">(.)<', narrow) == ["?"]


# -------------------------------------------------------------------------- columns of a history


@given(
    values=st.lists(st.none() | st.floats(), min_size=1, max_size=40),
    copies=st.integers(1, 150),
    buckets=st.sampled_from([4, 64, 2048]),
)
def test_extremes_and_nonfinite_values_stay(values: list[float | None], copies: int, buckets: int) -> None:
    track = Track.empty(buckets=buckets, first_step=5)
    track.extend(values * copies)
    series = track.snapshot()
    joined = columns(series)
    assert len(joined.mean) <= MAX_COLUMNS
    finite = [value for value in values if value is not None and math.isfinite(value)]
    assert np.isfinite(joined.mean).any() == bool(finite)
    if finite:
        assert np.nanmin(joined.minimum) == min(finite)
        assert np.nanmax(joined.maximum) == max(finite)
    bad = sum(value is not None and not math.isfinite(value) for value in values)
    assert joined.nonfinite.sum() == bad * copies
    assert joined.first_step == 5
    assert len(joined.mean) * joined.width_steps >= series.count
