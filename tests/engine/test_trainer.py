"""The loop, run for real on the CPU: what its records say of epochs, switches, pauses and stops."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.warm_up import MAX_STEPS, MIN_STEPS
from amptui.records.control import Control, PauseRequest, PrecisionRequest, StopRequest
from amptui.records.run import BlockFinished, EpochFinished, PauseChanged, PrecisionChanged, Record
from amptui.records.steps import StepRecord
from tests.tiny import Log, Tiny, log_of, losses, prepare, train


def test_a_pause_makes_no_step_and_a_switch_meanwhile_counts() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == 4:
            control.ask(PauseRequest(True))
        if isinstance(record, PauseChanged) and record.paused:
            assert len(losses(log)) == 4
            control.ask(PrecisionRequest("bf16"))
        if isinstance(record, PrecisionChanged):
            control.ask(PauseRequest(False))

    log = Log(watch)
    assert train(prepare(Tiny()), log, control) == "done"
    assert [record.paused for record in log.of(PauseChanged)] == [True, False]
    assert [record.precision for record in log.of(StepRecord)] == ["fp32"] * 4 + ["bf16"] * 12


@given(st.dictionaries(st.integers(1, 15), st.sampled_from(["fp32", "ieee", "fp16", "bf16"]), max_size=6))
def test_any_switching_keeps_every_step_once_and_in_order(at: dict[int, str]) -> None:
    log = log_of(prepare(Tiny()), at=at)
    steps = log.of(StepRecord)
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


def test_the_first_steps_of_a_block_are_settling() -> None:
    log = log_of(prepare(Tiny(epochs=15)), at={60: "bf16"})
    for precision, first in (("fp32", 1), ("bf16", 61)):
        steps = [record for record in log.of(StepRecord) if record.precision == precision]
        settling = [record.step for record in steps if record.settling]
        assert MIN_STEPS <= len(settling) <= MAX_STEPS
        assert settling == list(range(first, first + len(settling)))


@pytest.mark.parametrize("phase", ["paused", "validating"])
def test_a_stop_ends_a_pause_and_a_validation(phase: str) -> None:
    control = Control()
    if phase == "paused":
        control.ask(PauseRequest(True))

    def watch(record: Record) -> None:
        if isinstance(record, PauseChanged) or getattr(record, "phase", "") == phase:
            control.ask(StopRequest("test"))

    log = Log(watch)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert len(losses(log)) == (0 if phase == "paused" else 8)
    assert log.of(EpochFinished) == []
