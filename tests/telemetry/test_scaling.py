"""What is counted of the loss scaler's steps."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from amptui.records.steps import Steps, joined
from amptui.telemetry.scaler import ScalerWatch
from amptui.telemetry.scaling import RECENT_STEPS, ScalerView
from tests.telemetry.record_samples import step


def fp16_steps(outcomes: str) -> list[Steps]:
    """One ``fp16`` step a letter: . applied, s skipped, n skipped with a NaN loss, ? lost."""
    losses = {"n": math.nan, "?": None}
    return [
        step(number, precision="fp16", skipped=outcome in "sn", loss=losses.get(outcome, 0.5))
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
