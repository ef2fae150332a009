"""All logged values as charts: what is shown, found and enlarged, at any size, for the cost of a page."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.tui.overlays.metrics_browser import MetricsBrowser
from amptui.tui.panels.metric_charts import charts_of
from tests.costly_laws import COSTLY
from tests.tui import views
from tests.tui.overlays.opened import SCREEN, drawn

CURSOR_KEYS = [
    *("left", "right", "left_square_bracket", "right_square_bracket", "home", "end", "plus", "minus", "0")
]
TITLES = [
    *("loss", "digit", "parity", "validation loss", "validation accuracy", "validation f1"),
    *("loss scale", "samples/s", "gradient norm", "learning rate", "learning rate 2", "step time"),
    *("waiting for data", "GPU memory", "GPU utilization", "GPU power", "GPU temperature"),
    *("features.0 update/weight", "fc update/weight (sample)"),
]

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
