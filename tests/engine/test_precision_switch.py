"""Comparisons in turns within a real training: begun, ended, stopped, and what they leave behind."""

import pytest

from amptui.engine.ab_test import MAX_ROUNDS
from amptui.records.control import ComparisonRequest, Control, PrecisionRequest, StopRequest
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import BlockFinished, PrecisionChanged, Record
from amptui.records.steps import StepRecord
from tests.tiny import Log, Tiny, Unautocastable, prepare, train

FP32_AND_BF16 = ComparisonRequest(("fp32", "bf16"))


class Lasting(Tiny):
    epochs: int = 2000


@pytest.mark.ci
def test_precisions_run_in_turns_until_the_ratio_is_known_and_the_chosen_one_returns() -> None:
    control = Control()
    ended: list[int] = []

    def watch(record: Record) -> None:
        if isinstance(record, PrecisionsCompared) and record.over:
            ended.append(record.step)
        if isinstance(record, StepRecord) and record.step == 5:
            control.ask(FP32_AND_BF16)
        if isinstance(record, StepRecord) and ended and record.step == ended[0] + 20:
            control.ask(StopRequest("seen enough"))

    log = Log(watch)
    assert train(prepare(Lasting(), precision="bf16", steps=5000), log, control) == "stopped"
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
    assert log.of(StepRecord)[-1].precision == "bf16"
    changes = [change.current for change in log.of(PrecisionChanged)]
    # A B, B A, A B: two blocks of one precision meet at each turn.
    assert changes[:4] == ["fp32", "bf16", "fp32", "bf16"]
    blocks = log.of(BlockFinished)
    assert sum(block.steps for block in blocks) == ended[0] + 20


def test_a_switch_by_hand_ends_it() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == 5:
            control.ask(FP32_AND_BF16)
        if isinstance(record, PrecisionsCompared) and record.rounds == 1:
            control.ask(PrecisionRequest("fp32"))

    log = Log(watch)
    train(prepare(Lasting(), steps=600), log, control)
    result = log.of(PrecisionsCompared)[-1]
    assert (result.over, result.reason, result.rounds) == (True, "stopped", 1)
    last = log.of(PrecisionChanged)[-1].step
    assert log.of(StepRecord)[-1].precision == "fp32"
    assert last < 400


def test_the_others_are_compared_without_a_precision_that_fails() -> None:
    control = Control()
    control.ask(ComparisonRequest(("fp32", "bf16", "ieee")))

    def watch(record: Record) -> None:
        if isinstance(record, PrecisionsCompared) and record.over:
            control.ask(StopRequest("compared"))

    log = Log(watch)
    train(prepare(Unautocastable(epochs=Lasting.epochs), steps=2000, max_rounds=2), log, control)
    result = log.of(PrecisionsCompared)[-1]
    assert (result.reason, result.rounds, result.most_rounds) == ("limit", 2, 2)
    assert [(row.precision, row.blocks) for row in result.rows] == [("fp32", 2), ("ieee", 2)]
    assert list(result.failed) == ["bf16"]
