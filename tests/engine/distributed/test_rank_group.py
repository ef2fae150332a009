"""How long ranks wait for each other, and what they say when it was too long."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from amptui.engine.distributed import rank_group
from amptui.engine.distributed.place import place_of
from amptui.engine.distributed.rank_group import HANG_SECONDS, RankGroup
from amptui.engine.distributed.world import World


class Clock:
    """Time passes while somebody sleeps; what is due is done then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.due and self.due[0][0] <= self.now:
            self.due.pop(0)[1]()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rank_group, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep))
    return clock


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RankGroup]]:
    """Two ranks of a compiled run that have not met, in this process."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    for name, value in {**told, "WORLD_SIZE": 2, "RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    cpu = torch.device("cpu")
    place = place_of(cpu, "CPU", None)
    yield [
        RankGroup(World(rank, rank, 2), cpu, place, stopping=lambda: False, compiles=True) for rank in (0, 1)
    ]
    del store


def test_time_in_which_another_rank_compiles_does_not_count(clock: Clock, ranks: list[RankGroup]) -> None:
    """Nor is it forgotten when a rank comes that has just compiled: it needs a moment for its step."""
    first, other = ranks
    other.tell_compiling(True)
    clock.due = [
        (HANG_SECONDS - 1, lambda: other.tell_compiling(False)),
        (HANG_SECONDS + 1, lambda: other.meet("a step")),
    ]
    first.meet("a step", patience_seconds=HANG_SECONDS)
    assert not clock.due


def test_a_rank_that_has_compiled_and_does_not_come_is_not_awaited_for_ever(
    clock: Clock, ranks: list[RankGroup]
) -> None:
    first, other = ranks
    other.tell_compiling(True)
    clock.due = [(HANG_SECONDS - 1, lambda: other.tell_compiling(False))]
    with pytest.raises(RuntimeError, match="gloo"):
        first.meet("a step", patience_seconds=HANG_SECONDS)
    assert HANG_SECONDS < clock.now < 2 * HANG_SECONDS


@pytest.mark.usefixtures("clock")
def test_ranks_that_all_waited_are_not_said_to_have_hung(ranks: list[RankGroup]) -> None:
    first, other = ranks
    silent = first.find_ended()
    assert (silent.rank, silent.how) == (1, "hung")
    other.tell_end("waited", "waited for the others")
    ended = first.find_ended()
    assert (ended.rank, ended.how) == (-1, "waited")
    assert "waited for each other" in str(ended)
