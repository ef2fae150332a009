"""What ranks tell each other through the launcher's store, on boards in it, and where each of them runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from amptui.base.errors import DeviceError
from amptui.ranks.agreement.board import collectives_by_group, is_ahead, is_same_place
from amptui.ranks.ends.peer_ends import PeerEnds
from amptui.ranks.store import launcher_store
from amptui.ranks.store.launcher_store import LauncherStore, meet_at_start
from amptui.ranks.store.place import Machine, Place, device_of, here, place_of, started_ticks
from amptui.ranks.world import World

# The stores of the launcher and of rank 0: ci, as each test has servers of its own.


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[TCPStore]:
    """A launcher's store in this process."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    yield store
    launcher_store._own_store.cache_clear()


def started(restarts: Sequence[int], max_restarts: int = 3) -> list[World]:
    """What ranks know that meet after a rank 0 has ended, and whose launchers have counted these restarts."""
    launcher_store._own_store.cache_clear()
    worlds = [World(rank, 0, len(restarts), restart, max_restarts) for rank, restart in enumerate(restarts)]
    with ThreadPoolExecutor(len(worlds)) as threads:
        return list(threads.map(meet_at_start, worlds, timeout=60))


@pytest.mark.ci
@pytest.mark.usefixtures("launcher")
def test_ranks_agree_on_their_start_whatever_their_launchers_count() -> None:
    """A launcher does not count a restart that another machine's rank has caused."""
    starts = [started(counts) for counts in ([0, 0, 0], [0, 1, 0], [2, 1])]
    assert [{world.restart for world in worlds} for worlds in starts] == [{0}, {1}, {2}]
    assert len({world.meeting for worlds in starts for world in worlds}) == len(starts)
    assert {world.starts_again for world in started([3, 0])} == {False}


@pytest.mark.ci
@pytest.mark.usefixtures("launcher")
def test_ranks_that_have_a_plan_were_started_before() -> None:
    first, again = started([0, 0]), started([0, 0])
    LauncherStore(again[0]).share_plan(lambda: "a plan")
    LauncherStore(first[1]).tell_end("failed", "a wrong number")
    third = started([0, 0])
    assert [world.restart for world in (*first, *again, *third)] == [0, 0, 0, 0, 1, 1]
    assert third[0].cause == "rank 1: a wrong number"
    assert LauncherStore(third[1]).share_plan(lambda: "another") == "a plan"


@pytest.mark.ci
@pytest.mark.usefixtures("launcher")
def test_the_first_end_is_one_key_and_a_rank_that_lost_the_others_is_not_blamed() -> None:
    leader, other = (World(rank, 0, 3, meeting="a") for rank in (0, 2))
    LauncherStore(other).tell_end("cut off", "Connection closed by peer")
    ended = PeerEnds(LauncherStore(leader), leader).first()
    assert ended is not None
    assert (ended.rank, ended.how) == (-1, "waited")
    assert "Connection closed by peer" in ended.what
    stores = [LauncherStore(World(rank, 0, 5, meeting="b")) for rank in range(5)]
    assert stores[0].first_end() is None
    stores[1].tell_end("waited", "waited for the others")
    assert stores[0].first_end() is None
    stores[3].tell_end("failed", "a wrong number")
    stores[2].tell_end("failed", "a later one")
    assert stores[0].first_end() == (3, "failed", "a wrong number")


# Boards, and how far ranks are in the collectives of all their groups.


def test_collectives_are_counted_in_every_group() -> None:
    assert collectives_by_group() == {}
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        group = dist.new_group([0])  # as of a device mesh
        assert isinstance(group, dist.ProcessGroup)
        before = collectives_by_group()
        assert len(before) == 2
        dist.all_reduce(torch.zeros(1), group=group)
        after = collectives_by_group()
    finally:
        dist.destroy_process_group()
    assert sum(after.values()) == sum(before.values()) + 1
    assert is_ahead(after, before)
    assert not is_ahead(before, after)
    assert not is_same_place([(4, before), (4, after)])
    assert is_same_place([(4, after), (4, after)])


def test_groups_that_ranks_do_not_share_say_nothing() -> None:
    """As the two halves of a device mesh: each rank is in one of them."""
    everybody = {"0": 7}
    assert is_same_place([(4, {**everybody, "left": 3}), (4, {**everybody, "right": 9})])
    assert not is_same_place([(4, {**everybody, "left": 3}), (4, {**everybody, "left": 4, "right": 9})])
    assert not is_same_place([(4, everybody), (5, everybody)])
    assert not is_ahead({"right": 9}, {"left": 3})


# A rank's process is known by its machine, its PID namespace, its number and its start.

MACHINE = here()

needs_proc = pytest.mark.skipif(MACHINE is None, reason="needs /proc")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def place(pid: int) -> Place:
    own = place_of(torch.device("cpu"), "CPU", None)
    return replace(own, pid=pid, started_ticks=started_ticks(pid) or 0)


@needs_proc
def test_a_process_is_gone_once_it_has_died_also_as_a_zombie_and_a_later_one_of_its_number_is_another(
    other: "subprocess.Popen[bytes]",
) -> None:
    there, own = place(other.pid), place(os.getpid())
    assert not there.is_gone(MACHINE)
    assert not own.is_gone(MACHINE)
    assert replace(own, started_ticks=own.started_ticks - 1).is_gone(MACHINE)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert there.is_gone(MACHINE)


@needs_proc
def test_of_a_process_elsewhere_nothing_is_known_and_nobody_is_killed(
    other: "subprocess.Popen[bytes]",
) -> None:
    assert MACHINE is not None
    there = place(other.pid)
    for elsewhere in (
        Machine("another boot", MACHINE.pid_namespace),
        Machine(MACHINE.boot_id, MACHINE.pid_namespace + 1),
        None,
    ):
        assert not replace(there, pid=2**22 + 1).is_gone(elsewhere)
        there.kill(elsewhere)
    replace(there, started_ticks=there.started_ticks - 1).kill(MACHINE)
    assert other.poll() is None
    there.kill(MACHINE)
    assert other.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(torch.xpu.is_available(), reason="how many there are, this machine says")
def test_each_rank_takes_the_gpu_of_its_number() -> None:
    assert device_of(World(1, 1, 2), "xpu") == "xpu:1"  # where there is none, the engine says so
    assert device_of(World(1, 1, 2), "cpu") == "cpu"
    with pytest.raises(DeviceError, match="ranks cannot train together on MPS; start one process, or use"):
        device_of(World(0, 0, 2), "mps")
