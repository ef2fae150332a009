"""The rows of a run's ranks, and what was wrong with them: stragglers, waits, differences."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from amptui.diagnosis.event_words import event_text
from amptui.records.ranks import RanksSampled
from amptui.records.run import Severity
from amptui.telemetry.finding import FindingReported
from amptui.telemetry.session import Session
from amptui.telemetry.stragglers import find_straggler
from tests.builders import fold
from tests.telemetry.record_samples import run
from tests.telemetry.simulated_ranks import STEP_SECONDS, SimulatedRanks, Slow

SIMULATED = SimulatedRanks(4, 1, slow="compute", slow_rank=2)
STARTED = (run(world_size=4, parallel="ddp"), SIMULATED.started())


def told_of_speed(session: Session) -> list[tuple[Severity, str]]:
    """Each such event, the oldest first."""
    return [
        (event.severity, event_text(event))
        for event in reversed(session.view().events)
        if isinstance(event.about, FindingReported)
    ]


@pytest.mark.parametrize("cause", ["input", "compute", "clocks"])
def test_a_slow_rank_is_one_event_and_another_when_none_is_slow_any_more(cause: Slow) -> None:
    session = fold(STARTED)
    session.fold(SimulatedRanks(4, 2, slow=cause, slow_rank=3).samples(60))
    ((severity, slow),) = told_of_speed(session)
    assert (severity, session.view().warnings) == ("warning", 1)
    assert slow.startswith("rank 3 (node-1 cuda:3) is slow: ")
    found = session.view().ranks
    assert found is not None
    assert [(finding.ranks, finding.state) for finding in found.findings] == [((3,), cause)]
    session.fold(SimulatedRanks(4, 3).samples(60, time=160.0))
    assert told_of_speed(session)[1:] == [("info", "the ranks are equally fast again")]
    session.fold(SimulatedRanks(4, 4, slow=cause, slow_rank=3).samples(60, time=220.0))
    assert [severity for severity, _ in told_of_speed(session)] == ["warning", "info", "warning"]


# ------------------------------------------------------------------- the slow rank among noisy ones


SEEDS = range(20)

MANY = [pytest.param(64, marks=pytest.mark.ci), pytest.param(1024, marks=pytest.mark.nightly)]


def window(world_size: int, seed: int, seconds: int = 20, **options: Any) -> list[RanksSampled]:
    return [*SimulatedRanks(world_size, seed, **options).samples(seconds)]


@pytest.mark.parametrize("world_size", [2, 8, *MANY])
@pytest.mark.parametrize("slow", [name for name in get_args(Slow) if name])
def test_a_slow_rank_is_found_20_times_of_20(slow: Slow, world_size: int) -> None:
    for seed in SEEDS:
        rank = seed * 7 % world_size
        found: Any = find_straggler(window(world_size, seed, slow=slow, slow_rank=rank))
        assert (found.ranks, found.state) == ((rank,), slow)
        beyond = found.numbers["seconds"] - found.numbers["others_seconds"]
        assert beyond == pytest.approx(0.25 * STEP_SECONDS, rel=0.25)


@pytest.mark.parametrize("noise", [0.01, 0.1])
@pytest.mark.parametrize(
    "world_size", [*(pytest.param(size, marks=pytest.mark.ci) for size in (2, 8)), *MANY]
)
def test_none_of_equal_ranks_is_slow_20_times_of_20(world_size: int, noise: float) -> None:
    for seed in SEEDS:
        samples = window(world_size, seed, 30, noise=noise)
        assert not any(find_straggler(samples[max(0, end - 20) : end]) for end in range(1, 31))


def test_a_lower_clock_without_a_reason_is_no_slow_rank() -> None:
    samples = window(8, 1, slow="clocks", slow_rank=3, fsdp=True)
    assert find_straggler([replace(sample, throttled={}) for sample in samples]) is None
