"""How bad a histogram, a trace or an X-ray is, and when an alarm of underflow begins and ends."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import ParameterWindow
from amptui.telemetry.health import judge_window
from amptui.telemetry.underflow import (
    RECOVERED_SHARE,
    UNDERFLOW_SHARE,
    WORST_SHARE,
    UnderflowFound,
    UnderflowWatch,
)
from tests.builders import fold
from tests.telemetry import record_samples as samples
from tests.telemetry.record_samples import layer, losing, parameter, spread, squares_of, window, xray

# ------------------------------------------------------------------------------- the float16 window


def test_only_the_norm_counts() -> None:
    # 999 of 1,000 elements are flushed, and are a millionth of the norm.
    assert judge_window(spread({-30: 999, 0: 1})).state == "survives"
    # One element in two is flushed, and all others are hardly larger.
    window_verdict = judge_window(spread({-28: 500, -20: 500}, zeros=10**9))
    assert (window_verdict.severity, window_verdict.state) == ("warning", "underflows")
    assert window_verdict.share == pytest.approx(1.0)


def test_a_large_gradient_in_float32_halves_nothing_in_a_step_of_float16s_own() -> None:
    would = spread({-28: 1, -2: 1000, 17: 1})
    assert [judge_window(spread({-28: 1, top: 1})).halvings for top in (16, 17)] == [1, 2]
    window_verdict = judge_window(replace(would, precision="fp16", hypothetical=False))
    assert (window_verdict.state, window_verdict.halvings) == ("kept", 0)


@given(
    exponents=st.dictionaries(st.integers(-45, 35), st.integers(1, 1000), min_size=1, max_size=12),
    log2_scale=st.integers(-8, 24),
)
def test_the_verdict_is_that_of_float16_itself_at_the_scale_the_scaler_would_come_to(
    exponents: dict[int, int], log2_scale: int
) -> None:
    """Against numpy's float16: halve until nothing is infinite, then sum the squares below its range."""
    scaled = np.repeat([1.5 * 2.0**e for e in exponents], list(exponents.values()))
    scale = 2.0**log2_scale
    with np.errstate(over="ignore"):
        while np.isinf(scaled.astype(np.float16)).any():
            scaled, scale = scaled / 2, scale / 2
        small = np.abs(scaled.astype(np.float16)) < 2.0**-14
    share = math.sqrt((scaled[small] ** 2).sum() / (scaled**2).sum())
    window_verdict = judge_window(spread(exponents, scale=2.0**log2_scale))
    assert window_verdict.share == pytest.approx(share, abs=1e-12)
    assert window_verdict.state == ("underflows" if share >= UNDERFLOW_SHARE else "survives")
    assert (window_verdict.severity == "warning") == (window_verdict.state == "underflows")
    assert math.ldexp(2.0**log2_scale, -window_verdict.halvings) == scale


def parameter_losing(name: str, share: float) -> ParameterWindow:
    """A parameter of whose norm this share is flushed."""
    return parameter(name, squares=4.0, flushed_squares=4.0 * share**2, subnormal_squares=0.0)


def test_the_parameter_that_loses_most_counts_from_a_tenth_of_its_norm_on() -> None:
    little, much = parameter_losing("a", WORST_SHARE), parameter_losing("b", 0.6)
    assert judge_window(window(worst=(little,))).worst is None
    assert judge_window(window(worst=(little, much))).worst == much
    everywhere = squares_of(flushed=1.0)
    assert judge_window(window(worst=(much,), **everywhere)).worst is None


# ---------------------------------------------------------------------------------------- underflow


@pytest.mark.parametrize("hypothetical", [True, False])
def test_an_alarm_is_told_once_and_again_after_it_was_better(*, hypothetical: bool) -> None:
    watch = UnderflowWatch()
    shares = [0.1, UNDERFLOW_SHARE, 0.9, 0.2, 0.9, RECOVERED_SHARE / 2, 0.2, 0.3, 0.3]
    windows = [losing(share, step, hypothetical=hypothetical) for step, share in enumerate(shares)]
    first, again = (found for found in map(watch.see_window, windows) if found is not None)
    assert (first.step, again.step, again.hypothetical) == (1, 7, hypothetical)
    assert again.share == pytest.approx(0.3)


def test_what_shows_no_norm_neither_raises_nor_ends_an_alarm() -> None:
    watch = UnderflowWatch()
    assert watch.see_window(losing(0.9)) is not None
    assert watch.see_window(window(nonfinite=3)) is None
    assert watch.see_window(spread({-30: 9, 19: 1})) is None
    assert watch.see_window(losing(0.9)) is None


def test_an_xray_raises_the_same_alarm_and_names_the_layer() -> None:
    watch = UnderflowWatch()
    layers = (layer("a", 1.0, norm=1.0, underflowing=0.2), layer("b", 1.0, norm=1.0, underflowing=0.9))
    result: Any = watch.see_xray(xray(layers=layers))
    assert (result.place, result.hypothetical) == ("b", False)
    assert watch.see_window(losing(0.9, hypothetical=False)) is None


@pytest.mark.parametrize(
    ("amp", "hypothetical", "alarms"), [("fp16", True, 1), ("bf16", True, 0), ("bf16", False, 1)]
)
def test_it_is_foretold_where_p_would_switch_to_fp16(amp: str, alarms: int, *, hypothetical: bool) -> None:
    session = fold([samples.run(amp_precision=amp)])
    session.fold([losing(0.5, step, hypothetical=hypothetical) for step in (1, 2, 3)])
    view = session.view()
    result = [event for event in view.events if isinstance(event.about, UnderflowFound)]
    assert [event.severity for event in result] == ["warning"] * alarms
    assert view.warnings == alarms
