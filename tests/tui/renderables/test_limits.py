"""Limits that are kept from frame to frame."""

from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.axis import Axis, Kind
from amptui.tui.renderables.limits import YLimits

finite = st.floats(-1e300, 1e300) | st.floats(-100, 100) | st.sampled_from([0.0, 5e-324, -1e-310, 1.0])


def test_limits_stay_while_they_fit_and_follow_when_they_do_not() -> None:
    limits = YLimits()
    assert limits.axis(0.05, 2.3) == Axis(0, 2.5)
    assert limits.axis(0.05, 2.4) == Axis(0, 2.5)
    assert limits.axis(0.05, 1.3) == Axis(0, 2.5), "more than half of the height is used"
    assert limits.axis(0.05, 2.6) == Axis(0, 3), "a value fell outside"
    assert limits.axis(0.05, 2.4) == Axis(0, 3), "no return for a little"
    assert limits.axis(0.05, 0.9) == Axis(0, 1), "less than half of the height was used"
    assert limits.axis(0.05, 0.9, "log10") == Axis(0.05, 1, "log10"), "another kind of axis"


@given(
    st.lists(st.tuples(finite, finite), min_size=1, max_size=20), st.sampled_from(["linear", "log10", "log2"])
)
def test_the_same_values_never_change_the_limits(pairs: list[tuple[float, float]], kind: Kind) -> None:
    limits = YLimits()
    for pair in pairs:
        found = limits.axis(min(pair), max(pair), kind)
        assert limits.axis(min(pair), max(pair), kind) == found
