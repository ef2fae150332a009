"""Numbers of float16: headroom, the scaler's counts, a histogram's verdict, alarms."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import Record
from amptui.records.steps import Steps, joined
from amptui.telemetry.health import (
    LARGEST_FLOAT16,
    RECOVERED_SHARE,
    UNDERFLOW_SHARE,
    UnderflowWatch,
    judge_window,
)
from amptui.telemetry.numerics import MIN_OF
from amptui.telemetry.scaling import RECENT_STEPS, ScalerView, ScalerWatch
from amptui.telemetry.view import NumericsView
from tests.builders import assert_holds, changed, make_started, make_step, make_steps, view_of
from tests.telemetry.record_samples import losing, spread


def numerics_of(*records: Record) -> NumericsView:
    return view_of(*records).numerics


def scaled(number: int, doublings_left: float, scale: float = 65536.0, **changes: object) -> Steps:
    """An ``fp16`` step whose largest gradient leaves so much headroom."""
    grad_max = LARGEST_FLOAT16 / scale / 2.0**doublings_left
    return make_step(number, precision="fp16", loss_scale=scale, grad_max=grad_max, **changes)


# ---------------------------------------------------------------------------------------- headroom


LOW = scaled(1, 0.5)
WITHIN = [scaled(number, 5.0) for number in range(2, MIN_OF + 1)]

KNOWN: dict[str, tuple[Sequence[Record], dict[str, Any]]] = {
    "fp16 at its own scale": (
        [make_step(1, precision="fp16", loss_scale=1024.0, grad_max=0.5, grad_norm=2.0)],
        {
            "headroom": math.log2(65504 / 512),
            "headroom_scale": 1024.0,
            "hypothetical": False,
            "grad_norm": 2.0,
            "grad_max": 0.5,
            "nonfinite_gradients": 0,
            "measured_step": 1,
        },
    ),
    "FP32 at the default scale": (
        [make_step(1, grad_max=0.5)],
        {"headroom": math.log2(65504 / 32768), "headroom_scale": 65536.0, "hypothetical": True},
    ),
    "the newest that were measured": (
        [make_step(1, grad_max=0.5, grad_norm=7.0), *make_steps(2, 40)],
        {"measured_step": 1, "grad_norm": 7.0, "grad_max": 0.5, "headrooms.count": 40},
    ),
    "never measured": (
        make_steps(1, 50),
        {"headrooms.count": 50, "headroom": None, "min_headroom": None, "measured_step": None},
    ),
    "least of the newest": ([LOW, *WITHIN], {"min_headroom": 0.5}),
    "least of the newest alone": ([LOW, *WITHIN, scaled(MIN_OF + 1, 5.0)], {"min_headroom": 5.0}),
    "least at the newest scale": (
        [scaled(1, 1.5, scale=65536.0), scaled(2, 4.0, scale=32768.0)],
        {"min_headroom": 2.5},
    ),
    "forward overflow": (
        [scaled(1, 3.0), changed(scaled(2, 3.0), loss=math.nan, grad_max=math.nan), scaled(3, 3.0)],
        {"min_headroom": -math.inf},
    ),
}


@pytest.mark.parametrize(("records", "expected"), KNOWN.values(), ids=KNOWN)
def test_what_is_known_of_gradients(records: Sequence[Record], expected: dict[str, Any]) -> None:
    assert_holds(numerics_of(make_started(), *records), expected)


# ------------------------------------------------------------------------------------ the loss scaler


def fp16_steps(outcomes: str) -> list[Steps]:
    """One ``fp16`` step a letter: . applied, s skipped, n skipped with a NaN loss, ? lost."""
    losses = {"n": math.nan, "?": None}
    return [
        make_step(number, precision="fp16", skipped=outcome in "sn", loss=losses.get(outcome, 0.5))
        for number, outcome in enumerate(outcomes, 1)
    ]


def facts_of(*batches: list[Steps]) -> ScalerView:
    watch = ScalerWatch()
    for batch in batches:
        for steps_alike in joined(batch):
            watch.add(steps_alike)
    return watch.view()


def naive_facts(outcomes: Sequence[str]) -> tuple[int, int, int, int]:
    measured = [outcome for outcome in outcomes if outcome != "?"]
    skipped = [outcome in "sn" for outcome in measured]
    row = next((i for i, is_skip in enumerate(reversed(skipped)) if not is_skip), len(skipped))
    return len(measured), sum(skipped), row, sum(skipped[-RECENT_STEPS:])


@given(runs=st.lists(st.tuples(st.sampled_from(".sn?"), st.sampled_from([1, 2, 5, 60, 150])), max_size=12))
def test_the_facts_equal_a_naive_count_however_the_steps_are_batched(runs: list[tuple[str, int]]) -> None:
    outcomes = "".join(letter * count for letter, count in runs)
    facts = facts_of(fp16_steps(outcomes))
    result = (facts.steps, facts.skipped, facts.skips_in_a_row, facts.recent_skips)
    assert result == naive_facts(outcomes)
    assert facts_of(*([record] for record in fp16_steps(outcomes))) == facts


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
