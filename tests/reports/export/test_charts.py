"""What a page's script draws: the numbers in its figures, of which no spike and no NaN is lost."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amptui.records.run import EpochFinished, Record, Validation
from amptui.reports.export.charts import MAX_COLUMNS
from tests.builders import make_started, make_step, make_steps, make_switch
from tests.gan_journal import gan_records
from tests.reports.export.pages import charts_of, contents, page_of


def losses(values: Sequence[float | None]) -> list[Record]:
    return [make_step(number, loss=value) for number, value in enumerate(values, 1)]


def loss_chart(values: Sequence[float | None]) -> dict[str, Any]:
    return charts_of(*losses(values))["loss"]


def test_only_what_was_measured_has_a_chart() -> None:
    assert loss_chart([1.0, 2.0])["curves"][0]["mean"] == [1.0, 2.0]
    assert "loss" not in charts_of(*losses([None, math.nan, math.inf]))
    assert "loss scale" not in charts_of(make_started(), *make_steps(1, 9))
    assert charts_of(make_started()) == {}


@pytest.mark.parametrize(("far", "low", "high"), [(-400.0, 1.0, 1.6), (400.0, 0.5, 2.0)])
def test_the_vertical_axis_is_of_the_usual_values_and_no_other_is_lost(
    far: float, low: float, high: float
) -> None:
    values = [far if n == 30 else 1 + n % 7 / 10 for n in range(100)]
    chart = loss_chart(values)
    assert (chart["low"], chart["high"], chart["logarithmic"]) == (low, high, far > 0)
    assert chart["curves"][0]["mean"] == values


def test_steps_have_precisions_skips_and_validations() -> None:
    validation = Validation(loss=1.5, accuracy=0.5, samples=10, metrics={})
    epoch = EpochFinished(time=101.0, step=30, epoch=1, seconds=1.0, mean_loss=1.0, validation=validation)
    records: list[Record] = [
        make_started(),
        *make_steps(1, 20),
        make_switch(21, "fp32", "fp16"),
        *make_steps(21, 29, precision="fp16", loss_scale=1024.0),
        make_step(30, precision="fp16", loss=math.nan, skipped=True, loss_scale=1024.0),
        epoch,
    ]
    (axis,) = contents(page_of(*records), "data-axes")[0]
    assert (axis["first"], axis["count"]) == (1, 30)
    assert axis["labels"] == [
        [0.0, "1"],
        [pytest.approx(9.5 / 30), "10"],
        [pytest.approx(19.5 / 30), "20"],
        [1.0, "30"],
    ]
    assert axis["switches"] == [[1, "fp32", "F", "FP32"], [21, "fp16", "H", "AMP fp16"]]
    chart = charts_of(*records)["loss"]
    assert chart["skips"] == [30.5]
    assert chart["points"] == [[30, 1.5, "validation after epoch 1: loss 1.50, accuracy 50.0%"]]
    assert chart["curves"][0]["mean"][28:] == [0.5, None]
    assert chart["curves"][0]["nonfinite"] == [29]


def test_curves_are_of_each_optimizer_s_own_steps_and_go_on_where_a_run_was_resumed() -> None:
    charts = [
        chart
        for chart in contents(page_of(*gan_records(60)), "data-chart")
        if "learning rate" in chart["title"]
    ]
    rates = [chart["curves"][0]["mean"] for chart in charts]
    assert [len(rate) for rate in rates] == [60, 118]
    assert [set(rate) for rate in rates] == [{2e-4}, {4e-4}]
    resumed: list[Record] = [
        *make_steps(1, 10, grad_norm=1.0),
        make_started(time=200.0),
        *make_steps(6, 8, grad_norm=2.0),
    ]
    curve = charts_of(make_started(), *resumed)["gradient norm"]["curves"][0]
    assert curve["mean"] == [1.0] * 5 + [2.0] * 3


@settings(suppress_health_check=[HealthCheck.too_slow])
@example(values=[1e308, 5e-324, -1e308, 0.0, math.nan], copies=150)
@given(values=st.lists(st.none() | st.floats(), min_size=1, max_size=40), copies=st.integers(1, 150))
def test_extremes_and_nonfinite_values_stay_and_a_page_stays_small(
    values: list[float | None], copies: int
) -> None:
    chart = charts_of(*losses(values * copies)).get("loss")
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if chart is None:
        assert not finite
        return
    (curve,) = chart["curves"]
    assert len(curve["mean"]) <= MAX_COLUMNS
    assert len(curve["mean"]) * curve["width"] >= len(values) * copies
    ends = [np.array(curve.get(name, curve["mean"]), np.float64) for name in ("low", "high")]
    assert np.nanmin(ends[0]) == pytest.approx(min(finite), rel=1e-5)
    assert np.nanmax(ends[1]) == pytest.approx(max(finite), rel=1e-5)
    assert bool(curve["nonfinite"]) == any(value is not None and not math.isfinite(value) for value in values)
