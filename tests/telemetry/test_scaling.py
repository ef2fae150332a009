"""What the loss scaler is doing: calm about what is normal, an alarm about what is not."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import Severity
from amptui.records.steps import StepRecord
from amptui.telemetry.scaler import ScalerWatch
from amptui.telemetry.scaling import (
    RECENT_STEPS,
    ScalerVerdict,
    SkipMeaning,
    judge_scaler,
    judge_skip,
)
from tests.telemetry.record_samples import backoff, growth, module, skip, step, stretches


def judged(
    *,
    scale_after: float | None = 65536.0,
    skips_before: int = 10,
    scale_has_grown: bool = True,
    **changes: object,
) -> tuple[SkipMeaning, Severity]:
    return judge_skip(
        skip(600, **changes),
        scale_after=scale_after,
        skips_before=skips_before,
        scale_has_grown=scale_has_grown,
    )


# ------------------------------------------------------------------------------------ a single skip


@pytest.mark.parametrize("skips_before", [0, 1, 3])
def test_the_first_skips_from_the_initial_scale_are_calibration(skips_before: int) -> None:
    result = judged(skips_before=skips_before, consecutive=skips_before + 1, scale_has_grown=False)
    assert result == ("calibration", "info")


def test_a_skip_after_the_scale_has_grown_is_no_calibration_but_normal() -> None:
    assert judged(skips_before=0) == judged(skips_before=4, scale_has_grown=False) == ("normal", "info")


@pytest.mark.parametrize("scale_has_grown", [True, False])
def test_five_skips_in_a_row_are_an_alarm(scale_has_grown: bool) -> None:
    assert judged(consecutive=4) == ("normal", "info")
    assert judged(consecutive=5, scale_has_grown=scale_has_grown) == ("falling", "error")


def test_a_scale_below_one_is_an_alarm() -> None:
    assert judged(scale_after=1.0) == ("normal", "info")
    assert judged(scale_after=0.5) == ("collapsed", "error")
    assert judged(scale_after=None, loss_scale=0.0) == ("collapsed", "error")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_skip_with_a_non_finite_loss_is_beyond_scaling(loss: float) -> None:
    result = judged(loss=loss, skips_before=0, scale_has_grown=False)
    assert result == ("forward overflow", "warning")
    assert judged(loss=loss, consecutive=5) == ("forward overflow", "error")


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
    assert verdict_of("") == ScalerVerdict()
    assert verdict_of("??").state == "unused"
    watch = ScalerWatch()
    for stretch in stretches([step(1), step(2, precision="bf16")]):
        watch.add(stretch)
    assert judge_scaler(watch.facts()).state == "unused"


@pytest.mark.parametrize(
    ("outcomes", "state", "severity"),
    [
        ("...", "healthy", "info"),
        ("s", "calibrating", "info"),
        ("ssss" + "." * 99, "calibrating", "info"),
        ("ssss" + "." * 100, "healthy", "info"),
        ("s.s.s.s" + "." * 500 + "s", "backing off", "info"),
        ("s.s.s.s.s", "backing off", "warning"),
        ("ssssss", "collapsing", "error"),
        ("ssssss.", "backing off", "warning"),
        ("." * 610 + "n..", "forward overflow", "warning"),
        ("n" * 5, "forward overflow", "error"),
        ("n" + "." * 100, "healthy", "info"),
    ],
)
def test_each_state_follows_its_rule(outcomes: str, state: str, severity: str) -> None:
    verdict = verdict_of(outcomes)
    assert (verdict.state, verdict.severity) == (state, severity)


def test_steps_that_were_not_measured_neither_break_a_row_nor_count() -> None:
    assert verdict_of("ss?s?ss").facts.skips_in_a_row == 5
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
    assert verdict.facts.scale == 0.5


def test_a_verdict_holds_the_newest_skip_and_the_module_that_a_trace_found() -> None:
    watch = watched("sssss")
    watch.add_skip(skip(5))
    assert judge_scaler(watch.facts()).facts.newest_skip == skip(5)
    assert judge_scaler(watch.facts(), module("b")).began == module("b")


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
    result = (facts.steps, facts.skips, facts.skips_in_a_row, facts.recent_skips, facts.steps_since_skip)
    assert result == naive_facts(outcomes)
    one_by_one = ScalerWatch()
    for record in fp16_steps(outcomes):
        for stretch in stretches([record]):
            one_by_one.add(stretch)
    assert one_by_one.facts() == facts
