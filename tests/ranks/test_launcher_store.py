"""What ranks tell each other through the launcher's store, and which start of theirs it is."""

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from amptui.base.errors import RunFolderError
from amptui.ranks.ends.peer_ends import PeerEnds
from amptui.ranks.store.failover_store import LOOK_SECONDS, FailoverStore, LostKeyError, connected, pauses
from amptui.ranks.store.launcher_store import LauncherStore, agree_on_start
from amptui.ranks.world import World
from tests.living import wait_until


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[TCPStore]:
    """A launcher's store in this process."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _name(store.port, monkeypatch)
    yield store
    del store


def _name(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def started(restarts: Sequence[int], max_restarts: int = 3) -> list[World]:
    """What ranks agree on whose launchers have counted so many ``restarts``."""
    worlds = [World(rank, 0, len(restarts), restart, max_restarts) for rank, restart in enumerate(restarts)]
    with ThreadPoolExecutor(len(worlds)) as threads:
        return list(threads.map(agree_on_start, worlds, timeout=60))


@pytest.mark.usefixtures("launcher")
@pytest.mark.ci
def test_ranks_agree_on_their_start_whatever_their_launchers_count() -> None:
    """A machine that takes another's place counts from 0; where one has joined, none counts a restart."""
    starts = [started(counts) for counts in ([0, 0, 0], [1, 0, 1], [1, 0, 1, 0], [2, 2, 0])]
    for generation, worlds in enumerate(starts, 1):
        assert {world.generation for world in worlds} == {generation}
        assert {world.restart for world in worlds} == {generation - 1}
        assert {world.starts_again for world in worlds} == {True}
    assert {world.counted_restarts for world in starts[2]} == {1}
    assert {world.starts_again for world in started([3, 0])} == {False}


@pytest.mark.ci
def test_a_rank_waits_for_the_call_of_its_own_start(launcher: TCPStore) -> None:
    """It comes before rank 0 of its start, when only the answer to those before it stands there."""
    started([0, 0])
    store = FailoverStore(launcher, "amptui/start")
    first_call = store.get("call").decode()
    with ThreadPoolExecutor(1) as thread:
        newcomer = thread.submit(agree_on_start, World(1, 0, 2))
        wait_until(lambda: store.add(f"arrived/{first_call}", 0) == 2, "nobody came")
        assert not newcomer.done()
        assert agree_on_start(World(0, 0, 2, 1, 3)).restart == 1
        assert newcomer.result(timeout=60).restart == 1


@pytest.mark.usefixtures("launcher")
@pytest.mark.ci
def test_a_plan_that_a_restart_has_lost_is_not_made_anew_unless_it_resumes() -> None:
    store = LauncherStore(World(0, 0, 2, restart=1, max_restarts=2, generation=1))
    with pytest.raises(RunFolderError, match="which run this is"):
        store.share_plan(lambda: "plan")
    assert store.final_status == 1
    other = LauncherStore(World(1, 0, 2, restart=1, generation=1))
    assert other.share_plan(str) == 1


@pytest.mark.usefixtures("launcher")
@pytest.mark.ci
def test_the_first_end_is_one_key() -> None:
    stores = [LauncherStore(World(rank, 0, 9)) for rank in range(9)]
    assert stores[0].first_end() is None
    for store in stores[1:5] + stores[6:]:
        store.tell_end("waited", "waited for the others")
    assert stores[0].first_end() is None
    stores[5].tell_end("failed", "a wrong number")
    stores[3].tell_end("failed", "a later one")
    assert stores[0].first_end() == (5, "failed", "a wrong number")


@pytest.mark.usefixtures("launcher")
@pytest.mark.ci
def test_a_rank_that_lost_the_others_ends_them_and_is_not_blamed() -> None:
    leader, other = (World(rank, 0, 3) for rank in (0, 2))
    LauncherStore(other).tell_end("cut off", "Connection closed by peer")
    ended = PeerEnds(LauncherStore(leader), leader).first()
    assert ended is not None
    assert (ended.rank, ended.how) == (-1, "waited")
    assert "Connection closed by peer" in ended.what
    again = LauncherStore(World(0, 0, 3, restart=1, generation=1))
    assert "Connection closed by peer" in again.cause_before


_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def killed_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FailoverStore, FailoverStore]]:
    """The connections of rank 0 and another rank to a launcher that is killed when the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        _name(int(process.stdout.readline()), monkeypatch)
        monkeypatch.setenv("RANK", "0")
        leader, other = (FailoverStore(connected(leads=rank == 0), "of the run") for rank in (0, 1))
        leader.open_spare()
        other.know_spare()
        yield leader, other
        process.kill()


@pytest.mark.ci
@pytest.mark.parametrize("listens_longer", [False, True])
def test_what_ranks_tell_goes_through_rank_0_once_the_launcher_is_killed(
    monkeypatch: pytest.MonkeyPatch, listens_longer: bool
) -> None:
    """Also if the kernel closes its port some time after its connections."""
    with killed_launcher(monkeypatch) as (leader, other):
        pass
    if listens_longer:
        port = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        threading.Timer(0.5, port.close).start()
    other.set("key", "what would be lost in a broken connection")
    assert leader.get("key") == b"what would be lost in a broken connection"
    assert [leader.add("count", 1), other.add("count", 1)] == [1, 2]
    lonely = FailoverStore(leader.torch_store, "without a spare")
    with pytest.raises(RuntimeError):
        lonely.add("count", 1)


@pytest.mark.ci
def test_what_a_killed_launcher_knew_is_told_again_or_known_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for the rest, and no thread for another that does."""
    with killed_launcher(monkeypatch) as (leader, other):
        other.set("lost", "1")
        for number in (1, 2):
            other.keep(f"part {number}", str(number), place="part")
        for store in (leader, other):
            store.keep_count("come")
    for ask in (lambda: leader.get("lost"), lambda: leader.multi_get(["part 2", "lost"])):
        with pytest.raises(LostKeyError):
            ask()
    assert leader.add("come", 0) == 1
    other.leave()
    assert leader.multi_get(["part 2"]) == [b"2"]
    assert not leader.check(["part 1"])
    assert [leader.add("come", 0), other.add("come", 0)] == [2, 2]
    other.keep_count("come")
    assert leader.add("come", 0) == 3


def test_many_ranks_look_less_often_the_longer_they_wait() -> None:
    """At most 8,000 times a second together at first, and 1,000 times later; a few every 50 ms."""
    for ranks in (1, 8, 50, 512, 4096):
        seconds = list(itertools.islice(pauses(ranks), 20))
        assert seconds == sorted(seconds)
        assert seconds[0] == max(LOOK_SECONDS, ranks / 8000)
        assert seconds[-1] == max(LOOK_SECONDS, ranks / 1000)
