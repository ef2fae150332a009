"""The threshold of underflow: no trouble is missed, no healthy model is flagged, and the margins are wide."""

from itertools import chain

import pytest

from amptui.telemetry.underflow import UNDERFLOW_SHARE
from tests.benchmarks.healthy_models import HEALTHY
from tests.benchmarks.underflow import Row, healthy, measure, scales, troubles

MAX_HEALTHY_SHARE = UNDERFLOW_SHARE / 100
MIN_TROUBLED_SHARE = 3 * UNDERFLOW_SHARE
MAX_HARMLESS_ERROR = 0.2
"""Below the threshold no model's gradient is off by more. One with a cosine of 0.98 is."""

OWN_ALARMS = {
    "unstable none": "",
    "unstable calibration": "",
    "unstable collapse": "overflow: skipped mostly",
    "unstable forward": "overflow: forward overflow",
    "unstable buffers": "loss: validation not finite",
    "unstable underflow": "float16: underflows",
}


def shares(row: Row) -> list[float]:
    return [share for share in (row.fp32_share, row.fp16_share, row.xray_share) if share is not None]


@pytest.mark.slow
def test_no_trouble_is_missed_and_no_healthy_model_is_flagged() -> None:
    rows = {row.name: row for row in chain(troubles(), healthy())}
    assert {name: rows[name].cause for name in OWN_ALARMS} == OWN_ALARMS
    assert min(shares(rows["unstable underflow"])) > MIN_TROUBLED_SHARE
    others = [row for row in rows.values() if row.name != "unstable underflow"]
    assert len(others) >= 17
    assert [row.name for row in others if row.underflows] == []
    assert max(chain.from_iterable(map(shares, others))) < MAX_HEALTHY_SHARE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_below_the_threshold_gradients_are_right_and_far_above_wrong(name: str) -> None:
    found = [(share, error) for _, _, share, error in scales(name, HEALTHY[name]()) if share is not None]
    assert max(error or 0.0 for share, error in found if share < UNDERFLOW_SHARE) < MAX_HARMLESS_ERROR
    assert max(error or 0.0 for share, error in found if share > UNDERFLOW_SHARE) > MAX_HARMLESS_ERROR


def test_a_row_has_what_a_run_measured_before_and_in_float16() -> None:
    row = measure("mlp", HEALTHY["mlp"](), fp32_steps=6, fp16_steps=8)
    assert len(shares(row)) == 3
    assert max(shares(row)) < MAX_HEALTHY_SHARE
    assert 0 < (row.error or 0) < MAX_HARMLESS_ERROR
    assert (row.cause, row.alarms, row.underflows) == ("", 0, False)
