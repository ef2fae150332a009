"""Blocks of steps say as much as their steps one by one."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amptui.records import Record
from amptui.steps import Steps
from amptui.telemetry.session import Session
from tests.single_steps import one_by_one
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


def folded(records: list[Record]) -> Session:
    session = Session()
    session.fold(records)
    return session


@given(st.lists(exactly_timed(BLOCKS | OTHER_RECORDS), max_size=30))
def test_a_session_knows_the_same_of_steps_in_blocks_and_one_by_one(records: list[Record]) -> None:
    assert folded(records).state() == folded([*one_by_one(records)]).state()
