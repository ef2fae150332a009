"""What is said of the loss scaler: calm about what is normal, plain about what is not."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records import StepRecord
from amptui.telemetry.nonfinite import Judgement
from amptui.telemetry.scaler import ScalerWatch
from amptui.telemetry.scaling import (
    CALIBRATION_SKIPS,
    COLLAPSE_SKIPS,
    FREQUENT_SKIPS,
    RECENT_STEPS,
    ScalerFacts,
    judge_scaler,
    judge_skip,
)
from amptui.telemetry.stretch import stretches
from amptui.telemetry.view import ScalerVerdict
from tests.telemetry.record_samples import backoff, growth, module, skip, step

RANKS = ["info", "warning", "error"]


def judged(
    *,
    scale_after: float | None = 65536.0,
    skips_before: int = 10,
    scale_has_grown: bool = True,
    began: Any = None,
    **changes: object,
) -> Judgement:
    return judge_skip(
        skip(600, **changes),
        scale_after=scale_after,
        skips_before=skips_before,
        scale_has_grown=scale_has_grown,
        began=began,
    )


# ------------------------------------------------------------------------------------ a single skip


@pytest.mark.parametrize("skips_before", [0, 1, 3])
def test_the_first_skips_from_the_initial_scale_are_calibration(skips_before: int) -> None:
    judgement = judged(skips_before=skips_before, consecutive=skips_before + 1, scale_has_grown=False)
    assert (judgement.verdict.severity, judgement.verdict.text) == ("info", "calibration, normal")
    assert "Nothing to do" in judgement.explanation


def test_a_skip_after_the_scale_has_grown_is_no_calibration_but_normal() -> None:
    for judgement in (judged(skips_before=0), judged(skips_before=4, scale_has_grown=False)):
        assert (judgement.verdict.severity, judgement.verdict.text) == ("info", "normal")


@pytest.mark.parametrize("scale_has_grown", [True, False])
def test_five_skips_in_a_row_are_an_alarm_that_names_the_layer(scale_has_grown: bool) -> None:
    assert judged(consecutive=4).verdict.severity == "info"
    verdict = judged(consecutive=5, scale_has_grown=scale_has_grown).verdict
    assert verdict.severity == "error"
    assert verdict.text.endswith("switch to bf16 or FP32; check features.13.conv")


def test_a_scale_below_one_is_an_alarm() -> None:
    assert judged(scale_after=1.0).verdict.severity == "info"
    judgement = judged(scale_after=0.5)
    assert judgement.verdict.severity == "error"
    assert "switch to bf16 or FP32; check features.13.conv" in judgement.verdict.text
    assert "every weight into NaN" in judgement.explanation
    assert judged(scale_after=None, loss_scale=0.0).verdict.severity == "error"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_skip_with_a_non_finite_loss_is_beyond_scaling(loss: float) -> None:
    judgement = judged(loss=loss, skips_before=0, scale_has_grown=False)
    assert judgement.verdict.severity == "warning"
    text = "the forward pass overflowed: scaling cannot help; use bf16 or FP32"
    assert judgement.verdict.text == text
    assert judged(loss=loss, consecutive=5).verdict.severity == "error"
    named = judged(loss=loss, began=module(largest=math.inf)).verdict.text
    assert named == f"{text}; it began in features.12.conv (Conv2d, float16)"
    assert judged(loss=loss, began=module(way="backward")).verdict.text == text


def test_where_to_look_is_what_a_trace_found_rather_than_a_parameter() -> None:
    assert judged(consecutive=5, began=module("b")).verdict.text.endswith("check b (Conv2d, float16)")
    assert "look at" not in judged(consecutive=5, names=()).verdict.text
    assert judged(consecutive=5, names=("weight",)).verdict.text.endswith("check weight")


@given(
    consecutive=st.integers(1, 10),
    scale=st.floats(0, 65536),
    skips_before=st.integers(0, 10),
    loss=st.none() | st.floats(),
)
def test_a_longer_row_or_a_lower_scale_is_never_less_severe(
    consecutive: int, scale: float, skips_before: int, loss: float | None
) -> None:
    def rank(row: int, scale_after: float) -> int:
        judgement = judged(consecutive=row, scale_after=scale_after, skips_before=skips_before, loss=loss)
        return RANKS.index(judgement.verdict.severity)

    assert rank(consecutive + 1, scale) >= rank(consecutive, scale)
    assert rank(consecutive, scale / 2) >= rank(consecutive, scale)


# -------------------------------------------------------------------------------------- the scaler


def fp16_steps(outcomes: str) -> list[StepRecord]:
    """One ``fp16`` step a letter: . applied, s skipped, n skipped with a NaN loss, ? lost."""
    losses = {"n": math.nan, "?": None}
    return [
        step(number, precision="fp16", skipped=outcome in "sn", loss=losses.get(outcome, 0.5))
        for number, outcome in enumerate(outcomes, 1)
    ]


def watched(outcomes: str) -> ScalerWatch:
    watch = ScalerWatch()
    for stretch in stretches(fp16_steps(outcomes)):
        watch.add(stretch)
    return watch


def verdict_of(outcomes: str) -> ScalerVerdict:
    return judge_scaler(watched(outcomes).facts())


def test_without_a_float16_step_nothing_is_said_of_the_scaler() -> None:
    assert verdict_of("") == verdict_of("??") == ScalerVerdict()
    watch = ScalerWatch()
    for stretch in stretches([step(1), step(2, precision="bf16")]):
        watch.add(stretch)
    assert judge_scaler(watch.facts()).state == "unused"


@pytest.mark.parametrize(
    ("outcomes", "state", "severity", "rule"),
    [
        ("...", "healthy", "info", "no skip in the last 100 steps: 3 without one"),
        ("s", "calibrating", "info", "at most 4 skips before the first growth: 1 so far"),
        ("ssss" + "." * 99, "calibrating", "info", "at most 4 skips before the first growth: 4 so far"),
        ("ssss" + "." * 100, "healthy", "info", "no skip in the last 100 steps: 100 without one"),
        ("s.s.s.s" + "." * 500 + "s", "backing off", "info", "a skip in the last 100 steps: 1"),
        ("s.s.s.s.s", "backing off", "warning", "5 skips in the last 100 steps: 5"),
        ("ssssss", "collapsing", "error", "5 skips in a row: 6 so far"),
        ("ssssss.", "backing off", "warning", "5 skips in the last 100 steps: 6"),
        (
            "." * 610 + "n..",
            "forward overflow",
            "warning",
            "a skip with a non-finite loss in the last 100 steps: step 611",
        ),
        (
            "n" * 5,
            "forward overflow",
            "error",
            "a skip with a non-finite loss in the last 100 steps: step 5",
        ),
        ("n" + "." * 100, "healthy", "info", "no skip in the last 100 steps: 100 without one"),
    ],
)
def test_each_state_follows_its_rule(outcomes: str, state: str, severity: str, rule: str) -> None:
    verdict = verdict_of(outcomes)
    assert (verdict.state, verdict.severity, verdict.rule) == (state, severity, rule)
    assert verdict.text


def test_steps_that_were_not_measured_neither_break_a_row_nor_count() -> None:
    assert verdict_of("ss?s?ss").rule == "5 skips in a row: 5 so far"
    assert verdict_of("s" + "?" * 200).state == "calibrating"


def test_a_scale_that_has_grown_ends_the_calibration() -> None:
    watch = watched("...s")
    assert judge_scaler(watch.facts()).state == "calibrating"
    watch.add_change(growth(2, 65536.0))
    assert judge_scaler(watch.facts()).state == "backing off"


def test_a_scale_below_one_is_collapsing_whatever_the_steps_do() -> None:
    watch = watched("." * 200)
    watch.add_change(backoff(200, 1.0))
    verdict = judge_scaler(watch.facts())
    assert (verdict.state, verdict.severity) == ("collapsing", "error")
    assert verdict.rule == "scale below 1: 0.500"


def test_a_collapse_names_the_layer_to_look_at() -> None:
    watch = watched("sssss")
    watch.add_skip(skip(5))
    assert judge_scaler(watch.facts()).text.endswith("check features.13.conv")
    assert judge_scaler(watch.facts(), module("b")).text.endswith("check b (Conv2d, float16)")


def test_a_forward_overflow_names_the_module_that_a_trace_found() -> None:
    facts = watched("n").facts()
    assert "it began in features.12.conv (Conv2d, float16)" in judge_scaler(facts, module()).text
    assert "it began" not in judge_scaler(facts, module(way="backward")).text


def naive_facts(outcomes: Sequence[str]) -> tuple[int, int, int, int, int | None]:
    measured = [outcome for outcome in outcomes if outcome != "?"]
    skipped = [outcome in "sn" for outcome in measured]
    since = next((i for i, is_skip in enumerate(reversed(skipped)) if is_skip), None)
    row = next((i for i, is_skip in enumerate(reversed(skipped)) if not is_skip), len(skipped))
    return len(measured), sum(skipped), row, sum(skipped[-RECENT_STEPS:]), since


@given(runs=st.lists(st.tuples(st.sampled_from(".sn?"), st.sampled_from([1, 2, 5, 60, 150])), max_size=12))
def test_the_facts_equal_a_naive_count_however_the_steps_are_batched(runs: list[tuple[str, int]]) -> None:
    outcomes = "".join(letter * count for letter, count in runs)
    facts = watched(outcomes).facts()
    found = (facts.steps, facts.skips, facts.skips_in_a_row, facts.recent_skips, facts.steps_since_skip)
    assert found == naive_facts(outcomes)
    one_by_one = ScalerWatch()
    for record in fp16_steps(outcomes):
        for stretch in stretches([record]):
            one_by_one.add(stretch)
    assert one_by_one.facts() == facts


FACTS = st.builds(
    ScalerFacts,
    steps=st.integers(1, 10_000),
    skips=st.integers(0, 20),
    skips_in_a_row=st.integers(0, 20),
    recent_skips=st.integers(0, 20),
    steps_since_skip=st.none() | st.integers(0, 10_000),
    forward_overflow_step=st.none() | st.integers(1, 10_000),
    scale=st.none() | st.floats(),
    scale_has_grown=st.booleans(),
    suspect=st.sampled_from(["", "head"]),
)


@given(facts=FACTS)
def test_the_alarm_is_an_error_exactly_where_its_rule_holds(facts: ScalerFacts) -> None:
    verdict = judge_scaler(facts)
    collapses = facts.skips_in_a_row >= COLLAPSE_SKIPS or (facts.scale is not None and facts.scale < 1)
    assert (verdict.severity == "error") == collapses
    assert (verdict.state == "forward overflow") == (facts.forward_overflow_step is not None)
    if verdict.state == "calibrating":
        assert facts.skips <= CALIBRATION_SKIPS
    if verdict.severity == "warning" and verdict.state == "backing off":
        assert facts.recent_skips >= FREQUENT_SKIPS
    assert verdict.text
    assert verdict.rule
