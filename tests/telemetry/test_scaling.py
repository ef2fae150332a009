"""What the loss scaler is doing: calm about what is normal, an alarm about what is not."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.steps import Steps, joined
from amptui.telemetry.scaler import ScalerWatch
from amptui.telemetry.scaling import RECENT_STEPS, ScalerFacts, judge_skip
from tests.telemetry.record_samples import skip, step

FIRST: dict[str, Any] = {"skips_before": 0, "scale_has_grown": False}


@pytest.mark.parametrize(
    ("before", "changes", "state", "grade"),
    [
        *(
            ({**FIRST, "skips_before": n}, {"consecutive": n + 1}, "calibrating", "neutral")
            for n in (0, 1, 3)
        ),
        ({"skips_before": 0}, {}, "occasional", "neutral"),
        ({**FIRST, "skips_before": 4}, {}, "occasional", "neutral"),
        ({}, {"consecutive": 4}, "occasional", "neutral"),
        *(({"scale_has_grown": grown}, {"consecutive": 5}, "collapsing", "error") for grown in (True, False)),
        ({"scale_after": 1.0}, {}, "occasional", "neutral"),
        ({"scale_after": 0.5}, {}, "collapsed", "error"),
        ({"scale_after": None}, {"loss_scale": 0.0}, "collapsed", "error"),
        *((FIRST, {"loss": loss}, "loss not finite", "warning") for loss in (math.nan, math.inf, -math.inf)),
        ({}, {"loss": math.inf, "consecutive": 5}, "loss not finite", "error"),
    ],
)
def test_what_a_skip_means(before: dict[str, Any], changes: dict[str, Any], state: str, grade: str) -> None:
    facts = {"scale_after": 65536.0, "skips_before": 10, "scale_has_grown": True, **before}
    finding = judge_skip(skip(600, **changes), **facts)
    assert (finding.state, finding.grade) == (state, grade)


# -------------------------------------------------------------------------------------- the scaler


def fp16_steps(outcomes: str) -> list[Steps]:
    """One ``fp16`` step a letter: . applied, s skipped, n skipped with a NaN loss, ? lost."""
    losses = {"n": math.nan, "?": None}
    return [
        step(number, precision="fp16", skipped=outcome in "sn", loss=losses.get(outcome, 0.5))
        for number, outcome in enumerate(outcomes, 1)
    ]


def facts_of(*batches: list[Steps]) -> ScalerFacts:
    watch = ScalerWatch()
    for batch in batches:
        for steps_alike in joined(batch):
            watch.add(steps_alike)
    return watch.facts()


def naive_facts(outcomes: Sequence[str]) -> tuple[int, int, int, int]:
    measured = [outcome for outcome in outcomes if outcome != "?"]
    skipped = [outcome in "sn" for outcome in measured]
    row = next((i for i, is_skip in enumerate(reversed(skipped)) if not is_skip), len(skipped))
    return len(measured), sum(skipped), row, sum(skipped[-RECENT_STEPS:])


@given(runs=st.lists(st.tuples(st.sampled_from(".sn?"), st.sampled_from([1, 2, 5, 60, 150])), max_size=12))
def test_the_facts_equal_a_naive_count_however_the_steps_are_batched(runs: list[tuple[str, int]]) -> None:
    outcomes = "".join(letter * count for letter, count in runs)
    facts = facts_of(fp16_steps(outcomes))
    result = (facts.steps, facts.skips, facts.skips_in_a_row, facts.recent_skips)
    assert result == naive_facts(outcomes)
    assert facts_of(*([record] for record in fp16_steps(outcomes))) == facts
