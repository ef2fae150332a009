"""Whatever records of its ranks a run may emit, in hypothesis's words."""

from typing import get_args

from hypothesis import strategies as st

from amptui.base import strictjson
from amptui.records.ranks import (
    RankLost,
    RankPhase,
    RankPlace,
    RanksAwaited,
    RanksDisagree,
    RanksOverflowed,
    RanksSampled,
    RanksStarted,
    RankStack,
    RankValue,
    StacksTaken,
)

TIMES = st.floats(0, strictjson.MAX_SECONDS)

RANKS = st.integers(0, 9)

COLUMNS = st.lists(st.none() | st.floats(), max_size=4).map(tuple)

COUNTS = st.lists(st.none() | st.integers(0, 10**6), max_size=4).map(tuple)

PHASES = st.sampled_from(get_args(RankPhase))

RANK_RECORDS = st.one_of(
    st.builds(
        RanksStarted,
        time=TIMES,
        ranks=st.lists(
            st.builds(
                RankPlace,
                rank=RANKS,
                host=st.text(max_size=3),
                device=st.sampled_from(["cuda:0", "cpu"]),
                memory_total_bytes=st.none() | st.integers(0, 10**12),
            ),
            max_size=4,
        ).map(tuple),
    ),
    st.builds(
        RanksSampled,
        time=TIMES,
        step=st.integers(0, 60),
        steps=st.integers(0, 60),
        world_size=RANKS,
        ranks=st.lists(RANKS, max_size=4).map(tuple),
        step_seconds=COLUMNS,
        data_seconds=COLUMNS,
        compute_seconds=COLUMNS,
        peak_allocated_bytes=COUNTS,
        memory_used_bytes=COUNTS,
        grad_norm=COLUMNS,
        skipped=COUNTS,
        overflowed=COUNTS,
        sm_clock_mhz=st.lists(st.none() | st.floats(0, 5000), max_size=4).map(tuple),
        throttled=st.dictionaries(
            st.sampled_from(["power cap", "thermal (hw)"]), st.lists(RANKS, max_size=2).map(tuple)
        ),
        step_percentiles=st.lists(st.floats(), max_size=6).map(tuple),
        data_percentiles=st.lists(st.floats(), max_size=6).map(tuple),
        compute_percentiles=st.lists(st.floats(), max_size=6).map(tuple),
    ),
    st.builds(
        RanksDisagree,
        time=TIMES,
        step=st.integers(0, 60),
        what=st.sampled_from(["loss scale", "found_inf", "weights"]),
        count=RANKS,
        most=st.floats(),
        others=st.lists(st.builds(RankValue, rank=RANKS, value=st.floats()), max_size=3).map(tuple),
    ),
    st.builds(
        RanksOverflowed,
        time=TIMES,
        step=st.integers(0, 60),
        ranks=st.lists(RANKS, max_size=3).map(tuple),
        count=RANKS,
    ),
    st.builds(
        RanksAwaited,
        time=TIMES,
        step=st.integers(0, 60),
        ranks=st.lists(RANKS, max_size=3).map(tuple),
        count=RANKS,
        phase=PHASES,
        seconds=st.floats(),
        over=st.booleans(),
    ),
    st.builds(
        StacksTaken,
        time=TIMES,
        step=st.integers(0, 60),
        stacks=st.lists(
            st.builds(
                RankStack, rank=RANKS, phase=PHASES, step=st.integers(0, 60), stack=st.text(max_size=9)
            ),
            max_size=3,
        ).map(tuple),
        silent=st.lists(RANKS, max_size=3).map(tuple),
    ),
    st.builds(
        RankLost,
        time=TIMES,
        step=st.integers(0, 60),
        rank=RANKS,
        host=st.text(max_size=3),
        cause=st.sampled_from(["killed", "hung", "out of memory", "failed"]),
        detail=st.text(max_size=3),
    ),
)
