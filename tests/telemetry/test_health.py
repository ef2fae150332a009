"""How bad a histogram, a trace or an X-ray is, and when an alarm of underflow begins and ends."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.health import judge_window
from amptui.telemetry.underflow import (
    RECOVERED_SHARE,
    UNDERFLOW_SHARE,
    UnderflowWatch,
)
from tests.telemetry.record_samples import losing, spread

# ------------------------------------------------------------------------------- the float16 window


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
    assert window_verdict.numbers["share"] == pytest.approx(share, abs=1e-12)
    assert window_verdict.state == ("underflows" if share >= UNDERFLOW_SHARE else "survives")
    assert (window_verdict.severity == "warning") == (window_verdict.state == "underflows")
    assert window_verdict.loss_scale == scale


# ---------------------------------------------------------------------------------------- underflow


@pytest.mark.parametrize("hypothetical", [True, False])
def test_an_alarm_is_told_once_and_again_after_it_was_better(*, hypothetical: bool) -> None:
    watch = UnderflowWatch()
    shares = [0.1, UNDERFLOW_SHARE, 0.9, 0.2, 0.9, RECOVERED_SHARE / 2, 0.2, 0.3, 0.3]
    windows = [losing(share, step, hypothetical=hypothetical) for step, share in enumerate(shares)]
    begun = [seen.step for seen in windows if watch.begins(judge_window(seen), hypothetical=hypothetical)]
    assert begun == [1, 7]
