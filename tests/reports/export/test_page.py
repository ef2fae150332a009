"""The page: what it says and draws of a run, that it needs nothing else, and nobody's text takes it over."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amptui.records.run import EpochFinished, Note, Record, Validation
from amptui.reports.export import page as cards
from amptui.reports.export.charts import MAX_COLUMNS
from amptui.reports.export.template import Card
from amptui.telemetry.events import event_of
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import SessionView
from tests import poison
from tests.builders import make_started, make_step, make_steps, make_switch
from tests.gan_journal import gan_records
from tests.golden import Goldens
from tests.record_values import RECORDS
from tests.reports.texts import Reading, card_html, charts_of, contents, json_text, page_of, page_words
from tests.telemetry import record_samples
from tests.tui import numerics_views, special_views, views

RUNS: dict[str, list[Record]] = {
    "every kind of record": list(poison.records()),
    "two optimizers": list(gan_records(60)),
    "in mixed": [
        make_started(precision="mixed"),
        *make_steps(1, 60),
        *make_steps(61, 160, precision="mixed", grad_max=0.25, step_seconds=0.002),
    ],
}


def test_whole_pages_say_what_was_recorded(goldens: Goldens) -> None:
    for name, records in RUNS.items():
        goldens.check(f"reports/page of {name}", page_words(page_of(*records)))


# ---------------------------------------------------------------------------------------- its cards


def with_flops() -> SessionView:
    """What both precisions achieved."""
    run = record_samples.run()
    full = flops_now(record_samples.flops(flops=10**12), 0.02, run)
    half = flops_now(record_samples.flops("fp16", flops=10**12, nchw_flops=10**12), 0.0025, run)
    return replace(views.compared(), flops=(full, half))


def eventful() -> SessionView:
    """Events, one of them of several lines."""
    texts = (f"event {n}" + "\nmore" * (n == 3) for n in range(5))
    notes = [Note(time=views.NOW - n, severity="warning", text=text) for n, text in enumerate(texts)]
    events = tuple(replace(event_of(note), step=100 - n) for n, note in enumerate(notes))
    return replace(views.compared(), events=events)


CARDS: dict[str, Callable[[], Card | None]] = {
    "comparison with FLOP/s": lambda: cards.comparison(with_flops()),
    "comparison, A/B test": lambda: cards.comparison(
        replace(views.compared(), compared=record_samples.compared())
    ),
    "float16": lambda: cards.float16_window(numerics_views.float16_window(-8, worst=numerics_views.LOSING)),
    "trace": lambda: cards.trace(numerics_views.traced()),
    "X-ray": lambda: cards.xray(numerics_views.xrayed()),
    "events": lambda: cards.events(eventful()),
    "8 ranks, slow input": lambda: cards.ranks(special_views.of_ranks(8, "input")),
    "8 ranks in trouble": lambda: cards.ranks(special_views.RANKED["8 ranks in trouble"]()),
    "ranks without numbers": lambda: cards.ranks(special_views.unsampled()),
}
"""Those that the approved words of all situations lack."""


def test_each_card_has_its_words(goldens: Goldens) -> None:
    words = [f"== {name}\n{page_words(f'<body>{card_html(make())}')}" for name, make in CARDS.items()]
    goldens.check("reports/page cards", "\n".join(words))


# ------------------------------------------------------------------------------ any text, any journal


def test_hostile_texts_add_no_tag_and_no_attribute() -> None:
    reading = Reading(page_of(*poison.evil_records()))
    tags = [tag for tag, _ in reading.tags]
    assert poison.EVIL in reading.text
    assert (tags.count("script"), "img" in tags) == (1, False)
    attributes = [(name, value) for _, own in reading.tags for name, value in own.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("src", "href", "style")]
    classes = {word for name, value in attributes if name == "class" for word in value.split()}
    assert all(re.fullmatch(r"[a-z]+\d?|fp32|fp16|bf16|tf32", name) for name in classes)


def test_the_policy_allows_only_the_page_s_own_script() -> None:
    html = page_of(*make_steps(1, 3))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    sources = r"default-src 'none'; style-src 'sha256-\S+'; script-src 'sha256-\S+'; base-uri 'none'"
    assert re.fullmatch(sources, policy)
    assert not re.search(r"https?://|@import|url\((?!`?#)", html.replace("http://www.w3.org/2000/svg", ""))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(records=st.lists(RECORDS, max_size=20))
def test_any_journal_has_a_page(records: list[Record]) -> None:
    assert page_of(*records).endswith("</html>\n")


# ---------------------------------------------------------------------------- what its script draws
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


def test_steps_have_precisions_skips_and_validations(goldens: Goldens) -> None:
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
    found = [contents(page_of(*records), "data-axes")[0], charts_of(*records)["loss"]]
    goldens.check("reports/page chart", json_text(found))


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
