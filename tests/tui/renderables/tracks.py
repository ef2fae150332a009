"""Series for the tests of curves, and strategies for any of them."""

from collections.abc import Iterable

from hypothesis import strategies as st

from amptui.records.run import PRECISIONS
from amptui.telemetry.history import Track
from amptui.telemetry.view import PrecisionSwitch, Series
from amptui.tui.renderables.step_window import Window


def series_of(
    values: Iterable[float | None], *, first_step: int = 1, buckets: int = 2048, recent: int = 2048
) -> Series:
    """The history of ``values``, one a step; None is not measured."""
    track = Track.empty(buckets, recent, first_step=first_step)
    track.extend(list(values))
    return track.snapshot()


def any_series() -> st.SearchStrategy[Series]:
    """Any floats at all, in so few buckets that overview and recent values are both met."""
    values = st.lists(st.none() | st.floats() | st.floats(0.01, 10), max_size=120)
    return st.builds(
        series_of,
        values,
        first_step=st.integers(-5, 10**12),
        buckets=st.sampled_from([2, 8, 64]),
        recent=st.sampled_from([1, 16, 128]),
    )


def windows_near(series: Series) -> st.SearchStrategy[Window]:
    """Windows that hold all, a part or nothing of ``series``, and empty ones."""
    near = st.integers(series.first_step - 50, series.last_step + 200)
    return st.builds(Window, near, near) | st.just(Window(series.first_step, max(1, series.last_step)))


def any_switches(series: Series) -> st.SearchStrategy[tuple[PrecisionSwitch, ...]]:
    """Switches in the order of their steps."""
    steps = st.integers(series.first_step - 20, series.last_step + 20)
    switch = st.builds(PrecisionSwitch, steps, st.sampled_from([*PRECISIONS, "unheard of"]))
    ordered = st.lists(switch, max_size=8).map(lambda some: sorted(some, key=lambda one: one.step))
    return ordered.map(tuple)
