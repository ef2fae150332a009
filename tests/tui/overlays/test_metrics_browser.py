"""All logged values as charts: what is shown, found and enlarged, at any size, for the cost of a page."""

import re
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.view import EMPTY_VIEW, Metric, Series
from amptui.tui.overlays.metrics_browser import MetricsBrowser
from amptui.tui.panels.metric_charts import charts_of
from tests.costly_laws import COSTLY
from tests.tui import views
from tests.tui.overlays.opened import SCREEN, drawn, lines

CURSOR_KEYS = [
    *("left", "right", "left_square_bracket", "right_square_bracket", "home", "end", "plus", "minus", "0")
]
TITLES = [
    *("loss", "digit", "parity", "validation loss", "validation accuracy", "validation f1"),
    *("loss scale", "samples/s", "gradient norm", "learning rate", "learning rate 2", "step time"),
    *("waiting for data", "GPU memory", "GPU utilization", "GPU power", "GPU temperature"),
    *("features.0 update/weight", "fc update/weight (sample)"),
]

# -------------------------------------------------------------------------------------- the page


def test_everything_that_was_measured_is_a_chart_and_nothing_else() -> None:
    assert [chart.title for chart in charts_of(views.logged())] == TITLES
    fp32 = replace(views.fp32_only(), metrics=())
    assert [chart.title for chart in charts_of(fp32)] == ["loss", "samples/s"]
    assert charts_of(EMPTY_VIEW) == []
    assert "nothing is logged yet" in "\n".join(lines(MetricsBrowser(), EMPTY_VIEW))


# ------------------------------------------------------------------------------------- one chart


@pytest.mark.ci
@COSTLY
@given(
    size=st.tuples(st.integers(40, 200), st.integers(12, 60)),
    place=st.integers(0, len(TITLES) - 1),
    zoom=st.integers(0, 8),
    keys=st.lists(st.sampled_from(CURSOR_KEYS), min_size=1, max_size=12),
)
def test_the_line_reads_the_series_at_the_step_of_the_cursor(
    size: tuple[int, int], place: int, zoom: int, keys: list[str]
) -> None:
    view, screen = views.logged(), replace(SCREEN, zoom=zoom)
    browser, chart = MetricsBrowser(), charts_of(view)[place]
    drawn(browser, view, *size, screen=screen)
    for _ in range(place):
        browser.press("right", view)
    drawn(browser, view, *size, screen=screen)  # the page that the chart is on, before it is enlarged
    for key in ("enter", *keys):
        browser.press(key, view)
        shown = drawn(browser, view, *size, screen=screen).lines()
    assert shown[0].strip("╭─╮ ") == chart.title
    match = re.match(r"│ step ([\d,]+)  (.+?)(?:  .*)?│$", shown[-2])
    assert match is not None
    reading = chart.read().at(int(match[1].replace(",", "")))
    assert reading is not None
    assert reading.mean is not None
    assert match[2] == chart.look.format_value(reading.mean)


# -------------------------------------------------------------------------------------- its cost


def test_every_chart_of_a_page_follows_the_run_within_some_frames() -> None:
    browser = MetricsBrowser()
    lines(browser, views.logged(), 200, 60)
    grown = [
        replace(metric, read=partial(views.series, [*metric.read().recent.tolist(), 7.0]))
        for metric in views.metrics()
    ]
    later = replace(views.logged(), metrics=tuple(grown))
    for _ in range(3):
        lines(browser, later, 200, 60)
    assert lines(browser, later, 200, 60) == lines(MetricsBrowser(), later, 200, 60)


def test_only_the_page_is_computed() -> None:
    reads: list[int] = []

    def read(number: int) -> Series:
        reads.append(number)
        return views.metrics()[0].read()

    metrics = tuple(
        Metric(kind="part", name=f"metric {number}", read=partial(read, number)) for number in range(1000)
    )
    browser, view = MetricsBrowser(), replace(views.compared(), metrics=metrics)
    lines(browser, view)
    assert set(reads) == set(range(11)), "beside the loss"
    for _ in range(2):
        browser.press("pagedown", view)
        reads.clear()
        lines(browser, view)
    assert 0 < len(set(reads)) <= 12
