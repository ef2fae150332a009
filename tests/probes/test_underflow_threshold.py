"""The threshold of underflow: no trouble is missed, no healthy model is flagged, and the margins are wide."""

import pytest

from amptui.telemetry.underflow import UNDERFLOW_SHARE
from tests.benchmarks.healthy_models import HEALTHY
from tests.benchmarks.underflow import TROUBLES, Row, healthy, trouble

CI, NIGHTLY = pytest.mark.ci, pytest.mark.nightly

MAX_HEALTHY_SHARE = UNDERFLOW_SHARE / 100
MIN_TROUBLED_SHARE = 3 * UNDERFLOW_SHARE

CAUSES = {
    "none": "",
    "calibration": "",
    "collapse": "overflow: collapsed",
    "forward": "overflow: overflowed",
    "buffers": "weights: buffers lost",
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
