"""Blocks of steps say as much as their steps one by one."""

from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from amptui.records.run import Record
from amptui.records.steps import Steps
from tests.builders import fold, joined, one_by_one
from tests.telemetry.record_samples import run, step, steps
from tests.telemetry.record_strategies import BLOCKS, OTHER_RECORDS

EXACT = st.integers(0, 2**20).map(lambda units: units / 1024)
"""Times and durations whose sums need no rounding."""


def timed(record: Record, time: float, seconds: list[float | None]) -> Record:
    """``record`` at ``time``; the steps of a block took ``seconds``."""
    if isinstance(record, Steps):
        return replace(record, time=time, step_seconds=(seconds * 6)[: record.count])
    return replace(record, time=time)


def exactly_timed(records: st.SearchStrategy[Any]) -> st.SearchStrategy[Record]:
    return st.builds(timed, records, EXACT, st.lists(st.none() | EXACT, min_size=1, max_size=6))


OF_ALL_KINDS = [
    run(time=100.0),
    joined(steps(1, 4, time=102.0, step_seconds=0.5, precision="fp16", loss_scale=65536.0, settling=True)),
    joined(steps(5, 7, time=103.0, step_seconds=0.25, precision="fp16", loss_scale=65536.0, skipped=True)),
    joined([*steps(8, 10, time=105.0, step_seconds=0.5), step(11, time=105.0, step_seconds=0.5, loss=None)]),
    joined(steps(1, 3, time=106.0, step_seconds=0.25, optimizer="critic", grad_norm=None)),
    joined([step(12, step_seconds=700.0), *steps(13, 14, time=900.0, step_seconds=1.0, grad_max=2.0)]),
]
"""Warm-up steps, skipped ones, some of another optimizer, one that was not measured, one of many minutes."""


@example(OF_ALL_KINDS)
@given(st.lists(exactly_timed(BLOCKS) | exactly_timed(OTHER_RECORDS), max_size=12))
def test_a_session_knows_the_same_of_steps_in_blocks_and_one_by_one(records: list[Record]) -> None:
    assert fold(records).state() == fold([*one_by_one(records)]).state()
