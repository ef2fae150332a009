"""The threshold of underflow: no trouble is missed, no healthy model is flagged, and the margins are wide."""

import pytest

from amptui.telemetry.underflow import UNDERFLOW_SHARE
from tests.benchmarks.healthy_models import HEALTHY
from tests.benchmarks.underflow import TROUBLES, Row, healthy, scales, trouble

CI, NIGHTLY = pytest.mark.ci, pytest.mark.nightly

MAX_HEALTHY_SHARE = UNDERFLOW_SHARE / 100
MIN_TROUBLED_SHARE = 3 * UNDERFLOW_SHARE
MAX_HARMLESS_ERROR = 0.2
"""Below the threshold no model's gradient is off by more. One with a cosine of 0.98 is."""

CAUSES = {
    "none": "",
    "calibration": "",
    "collapse": "overflow: skipped mostly",
    "forward": "overflow: forward overflow",
    "buffers": "loss: validation not finite",
    "underflow": "float16: underflows",
}
"""What the answer on AMP is about in each trouble of ``unstable``; empty without trouble."""


def shares(row: Row) -> list[float]:
    return [share for share in (row.fp32_share, row.fp16_share, row.xray_share) if share is not None]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=CI if name == "underflow" else NIGHTLY) for name in TROUBLES]
)
def test_of_all_troubles_only_underflow_is_one(name: str) -> None:
    row = trouble(name)
    assert row.cause == CAUSES[name]
    if name == "underflow":
        assert min(shares(row)) > MIN_TROUBLED_SHARE
    else:
        assert not row.underflows
        assert max(shares(row)) < MAX_HEALTHY_SHARE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=CI if name == "mlp" else NIGHTLY) for name in HEALTHY]
)
def test_no_healthy_model_is_flagged(name: str) -> None:
    row = healthy(name)
    assert not row.underflows
    assert len(shares(row)) == 3
    assert max(shares(row)) < MAX_HEALTHY_SHARE


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_below_the_threshold_gradients_are_right_and_far_above_wrong(name: str) -> None:
    found = [(share, error) for _, _, share, error in scales(name, HEALTHY[name]()) if share is not None]
    assert max(error or 0.0 for share, error in found if share < UNDERFLOW_SHARE) < MAX_HARMLESS_ERROR
    assert max(error or 0.0 for share, error in found if share > UNDERFLOW_SHARE) > MAX_HARMLESS_ERROR
