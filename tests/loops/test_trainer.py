"""The loop, run for real on the CPU: epochs, switches, comparisons, warm-up, gradient norms, loss scales."""

import math
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import ExperimentError
from amptui.monitor.ab_test import MAX_ROUNDS
from amptui.monitor.divergence_guard import MIN_LOSS_SCALE
from amptui.monitor.warm_up import MAX_STEPS, MIN_STEPS, WarmUp
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import (
    BlockFinished,
    EpochFinished,
    NonFinite,
    PauseChanged,
    PrecisionChanged,
    Record,
    StepSkipped,
)
from tests.builders import StepRow
from tests.tiny import Log, Spoiled, Tiny, log_of, losses, prepare, train


@given(st.dictionaries(st.integers(1, 15), st.sampled_from(["fp32", "ieee", "fp16", "bf16"]), max_size=6))
def test_any_switching_keeps_every_step_once_and_in_order(at: dict[int, str]) -> None:
    log = log_of(prepare(Tiny()), at=at)
    steps = log.of(StepRow)
    assert [record.step for record in steps] == list(range(1, 17))
    expected, now = [], "fp32"
    for step in range(1, 17):
        expected.append(now)
        now = at.get(step, now)
    assert [record.precision for record in steps] == expected
    assert all(math.isfinite(record.loss or math.nan) for record in steps)
    assert sum(record.steps for record in log.of(BlockFinished)) == 16
    changes = [(change.step, change.previous, change.current) for change in log.of(PrecisionChanged)]
    assert changes == [
        (step, before, after) for step, (before, after) in enumerate(pairwise(expected), 2) if before != after
    ]


@pytest.mark.parametrize("phase", ["paused", "validating"])
def test_a_stop_ends_a_pause_and_a_validation(phase: str) -> None:
    control = Control()
    if phase == "paused":
        control.ask(RequestMade("pause", paused=True))

    def watch(record: Record) -> None:
        if isinstance(record, PauseChanged) or getattr(record, "phase", "") == phase:
            control.ask(RequestMade("stop", reason="test"))

    log = Log(watch)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert len(losses(log)) == (0 if phase == "paused" else 8)
    assert log.of(EpochFinished) == []


FP32_AND_BF16 = RequestMade("comparison", precisions=("fp32", "bf16"))


@pytest.mark.ci
def test_precisions_run_in_turns_until_the_ratio_is_known_and_the_chosen_one_returns() -> None:
    control = Control()
    ended: list[int] = []

    def watch(record: Record) -> None:
        if isinstance(record, PrecisionsCompared) and record.over:
            ended.append(record.step)
        if isinstance(record, StepRow) and record.step == 5:
            control.ask(FP32_AND_BF16)
        if isinstance(record, StepRow) and ended and record.step == ended[0] + 20:
            control.ask(RequestMade("stop", reason="seen enough"))

    log = Log(watch)
    assert train(prepare(Tiny(epochs=2000), precision="bf16", steps=5000), log, control) == "stopped"
    records = log.of(PrecisionsCompared)
    result = records[-1]
    assert [record.rounds for record in records] == list(range(result.rounds + 1))
    assert [record.over for record in records] == [False] * result.rounds + [True]
    assert result.reason in ("narrow", "limit")
    assert result.rounds <= MAX_ROUNDS
    baseline, amp = result.rows
    assert (baseline.precision, amp.precision) == ("fp32", "bf16")
    assert baseline.blocks == amp.blocks == result.rounds
    assert baseline.steps == result.rounds * result.block_steps
    assert (amp.speedup_low or 9) < (amp.speedup or 0) < (amp.speedup_high or 0)
    assert log.of(StepRow)[-1].precision == "bf16"
    changes = [change.current for change in log.of(PrecisionChanged)]
    # A B, B A, A B: two blocks of one precision meet at each turn.
    assert changes[:4] == ["fp32", "bf16", "fp32", "bf16"]
    blocks = log.of(BlockFinished)
    assert sum(block.steps for block in blocks) == ended[0] + 20


def left_out(step_seconds: list[float | None]) -> int:
    settling, count = WarmUp(), 0
    for seconds in step_seconds:
        count += settling.begin_step()
        settling.add([seconds])
    return count


FALLING: list[float | None] = [0.002 * (1 + 2 * 0.9**i) for i in range(200)]


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        ([0.002] * 100, MIN_STEPS, MIN_STEPS),
        ([3.0, *[0.002] * 99], MIN_STEPS, MIN_STEPS),
        (FALLING, 35, MAX_STEPS - 1),
        ([0.002 * 1.05**i for i in range(200)], MAX_STEPS, MAX_STEPS),
        ([None] * 200, MAX_STEPS, MAX_STEPS),
    ],
    ids=["steady", "a slow first step", "getting faster", "never steady", "not measured"],
)
def test_steps_warm_up_until_their_times_stand_still(
    seconds: list[float | None], least: int, most: int
) -> None:
    assert least <= left_out(seconds) <= most


@pytest.mark.parametrize("clip_norm", [None, 1e6])
def test_the_gradients_that_fp16_tells_are_unscaled(clip_norm: float | None) -> None:
    full = log_of(prepare(Tiny(), steps=1))
    half = log_of(prepare(Tiny(), steps=1, precision="fp16", clip_norm=clip_norm))
    for name in ("grad_norm", "grad_max"):
        values = [getattr(log.of(StepRow)[0], name) for log in (full, half)]
        assert values[1] == pytest.approx(values[0], rel=0.02), name


@pytest.mark.parametrize(
    ("at", "options", "least"),
    [(1, {}, MIN_LOSS_SCALE / 4), (30, {"look_interval_seconds": 1000}, 2.0**-126)],
    ids=["often looked at", "seldom"],
)
def test_a_collapsed_scale_ends_an_unattended_run_before_it_reaches_zero(
    at: int, options: dict[str, Any], least: float
) -> None:
    """Below 2^-126 it would be denormal."""
    prepared = prepare(Spoiled(at=at, steps=1000, value=math.inf, epochs=20), precision="fp16")
    with pytest.raises(ExperimentError) as failed:
        train(prepared, Log(), **options)
    assert re.fullmatch(
        r"the loss scale fell to \S+ after \d+ skipped steps in a row; use --precision bf16 or fp32",
        str(failed.value),
    )
    assert least < prepared.scaler.get_scale() < MIN_LOSS_SCALE


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gradients_too_dear_to_measure_are_measured_where_trouble_is(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amptui.probes.gradients.GRADIENTS_BUDGET", 0.0)
    prepared = prepare(Spoiled(at=4), precision=precision)
    log = log_of(prepared, at={5: RequestMade("stop", reason="the test")})
    norms = [record.grad_norm for record in log.of(StepRow)]
    first = log.of(NonFinite)[0]
    assert (first.step, first.what, first.kind) == (4, "loss", "nan")
    assert norms[0] is not None  # the first two tell what one costs
    assert norms[2] is None
    skipped_or_found: list[StepSkipped | NonFinite] = [*log.of(StepSkipped)]
    skipped_or_found += [record for record in log.of(NonFinite) if record.what == "gradient"]
    # A skipped step has its own gradients left to look at; else the loss tells that the next one's matter.
    at = 4 if precision == "fp16" else 5
    assert skipped_or_found[0].step == at
    assert skipped_or_found[0].count == len(list(prepared.model.parameters()))
    assert set(skipped_or_found[0].names) <= set(dict(prepared.model.named_parameters()))
    assert math.isnan(norms[at - 1] or 0.0)
