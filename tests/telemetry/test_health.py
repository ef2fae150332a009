"""How bad a histogram, a trace or an X-ray is, and the numbers behind that."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.findings import LayerAgreement, ParameterWindow
from amptui.telemetry.health import (
    XRAY_CAREFUL_COSINE,
    XRAY_SAFE_COSINE,
    judge_trace,
    judge_window,
    judge_xray,
    least_agreeing,
)
from amptui.telemetry.underflow import UNDERFLOW_SHARE, WORST_SHARE
from tests.telemetry.float16_windows import spread, squares_of
from tests.telemetry.record_samples import layer, module, parameter, traced, window, xray

# ------------------------------------------------------------------------------- the float16 window


def test_only_the_norm_counts() -> None:
    # 999 of 1,000 elements are flushed, and are a millionth of the norm.
    assert judge_window(spread({-30: 999, 0: 1})).state == "survives"
    # One element in two is flushed, and all others are hardly larger.
    judged = judge_window(spread({-28: 500, -20: 500}, zeros=10**9))
    assert (judged.severity, judged.state) == ("warning", "underflows")
    assert judged.share == pytest.approx(1.0)


def test_a_large_gradient_in_float32_halves_nothing_in_a_step_of_float16s_own() -> None:
    would = spread({-28: 1, -2: 1000, 17: 1})
    assert judge_window(would).halvings == 2
    judged = judge_window(replace(would, precision="fp16", hypothetical=False))
    assert (judged.state, judged.halvings) == ("kept", 0)


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
    judged = judge_window(spread(exponents, scale=2.0**log2_scale))
    assert judged.share == pytest.approx(share, abs=1e-12)
    assert judged.state == ("underflows" if share >= UNDERFLOW_SHARE else "survives")
    assert (judged.severity == "warning") == (judged.state == "underflows")
    assert math.ldexp(2.0**log2_scale, -judged.halvings) == scale


def losing(name: str, share: float) -> ParameterWindow:
    """A parameter of whose norm this share is flushed."""
    return parameter(name, squares=4.0, flushed_squares=4.0 * share**2, subnormal_squares=0.0)


def test_the_parameter_that_loses_most_counts_from_a_tenth_of_its_norm_on() -> None:
    little, much = losing("a", WORST_SHARE), losing("b", 0.6)
    assert judge_window(window(worst=(little,))).worst is None
    assert judge_window(window(worst=(little, much))).worst == much
    everywhere = squares_of(flushed=1.0)
    assert judge_window(window(worst=(much,), **everywhere)).worst is None
    assert judge_window(window(worst=(parameter("from an older journal", flushed=99),))).worst is None


@pytest.mark.parametrize(
    ("changes", "severity", "state"),
    [
        ({"nonfinite": 12}, "warning", "not finite"),
        ({"zeros": 10_000}, "info", "all zero"),
        ({"hypothetical": False, "zeros": 10_000}, "warning", "all zero"),
        ({"hypothetical": False, "nonfinite": 12}, "info", "overflow"),
        ({"hypothetical": False, "elements": 0, "zeros": 0, "counts": ()}, "info", "empty"),
        ({"hypothetical": False, "zeros": 310, "subnormal": 40}, "info", "kept"),
        ({"hypothetical": False, **squares_of(subnormal=1.0, whole=2.0)}, "warning", "underflows"),
        (squares_of(subnormal=0.1, whole=10.0), "info", "survives"),
    ],
)
def test_each_histogram_has_its_state(changes: dict[str, Any], severity: str, state: str) -> None:
    verdict = judge_window(window(**changes))
    assert (verdict.severity, verdict.state) == (severity, state)


# ----------------------------------------------------------------------------------- traced modules


@pytest.mark.parametrize(
    ("changes", "severity", "state"),
    [
        ({"first": module(largest=math.inf)}, "warning", "overflowed"),
        ({"first": module(largest=math.inf), "precision": "fp32"}, "error", "overflowed"),
        ({}, "info", "fits"),
        ({"nearest": (module(largest=131_008.0),)}, "warning", "would overflow"),
        ({"nearest": (module(largest=0.0),)}, "info", "unknown"),
        ({"nearest": ()}, "info", "unknown"),
    ],
)
def test_each_trace_has_its_state(changes: dict[str, Any], severity: str, state: str) -> None:
    verdict = judge_trace(traced(**changes))
    assert (verdict.severity, verdict.state) == (severity, state)


# ------------------------------------------------------------------------------------------- X-ray


@pytest.mark.parametrize(
    ("cosines", "state", "count", "layers"),
    [
        ((0.9, 1.0), "agree", 2, 2),
        ((None, 0.9999), "agree", 1, 1),
        ((0.89999, 1.0), "differ", 1, 2),
        ((0.5, 0.8, 1.0), "differ", 2, 3),
        ((0.4999, 0.7), "disagree", 1, 2),
        ((0.9999, math.nan, math.nan), "overflow", 2, 3),
        ((None,), "nothing to compare", 0, 0),
    ],
)
def test_an_xray_counts_the_layers_of_its_state(
    cosines: Sequence[float | None], state: str, count: int, layers: int
) -> None:
    found = judge_xray(xray(layers=tuple(layer("a", cosine) for cosine in cosines)))
    assert (found.state, found.count, found.layers) == (state, count, layers)


LAYERS = st.lists(
    st.builds(layer, st.sampled_from(["", "a", "b.c"]), st.none() | st.just(math.nan) | st.floats(-1, 1)),
    max_size=6,
)


@given(layers=LAYERS, loss=st.floats())
def test_severity_follows_the_least_cosine(layers: list[LayerAgreement], loss: float) -> None:
    verdict = judge_xray(xray(layers=tuple(layers), loss_amp=loss))
    cosines = [found.cosine for found in layers if found.cosine is not None]
    if not math.isfinite(loss):
        assert verdict.severity == "error"
    elif any(math.isnan(cosine) for cosine in cosines):
        assert verdict.severity == "warning"
    else:
        least = min(cosines, default=1.0)
        bounds = (least < XRAY_SAFE_COSINE) + (least < XRAY_CAREFUL_COSINE)
        assert verdict.severity == ("info", "warning", "error")[bounds]


@given(layers=LAYERS)
def test_the_least_agreeing_layers_come_first_and_nan_before_all(layers: list[LayerAgreement]) -> None:
    cosines = [found.cosine for found in least_agreeing(layers)]
    assert len(cosines) == sum(found.cosine is not None for found in layers)
    ordered = [-2.0 if value is None or math.isnan(value) else value for value in cosines]
    assert ordered == sorted(ordered)
