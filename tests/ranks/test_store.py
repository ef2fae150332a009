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
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from amptui.base.errors import DeviceError
from amptui.ranks import launcher_store
from amptui.ranks.agreement.board import device_of, here, is_ahead, is_same_place, place_of, started_ticks
from amptui.ranks.launcher_store import LauncherStore, meet_at_start
from amptui.ranks.world import World

# The stores of the launcher and of rank 0: ci, as each test has servers of its own.


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[TCPStore]:
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
def test_a_rank_that_lost_the_others_is_not_blamed() -> None:
    leader, other = (World(rank, 0, 3, meeting="a") for rank in (0, 2))
    LauncherStore(other).tell_end("waited", "waited for the others")
    assert LauncherStore(leader).ends.first() is None
    LauncherStore(other).tell_end("cut off", "Connection closed by peer")
    ended = LauncherStore(leader).ends.first()
    assert ended is not None
    assert (ended.rank, ended.how) == (-1, "waited")
    assert "Connection closed by peer" in ended.what


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        ((4, {"0": 7, "left": 3}), (4, {"0": 7, "left": 3}), True),
        ((4, {"0": 7, "left": 3}), (4, {"0": 7, "right": 9}), True),  # halves of a mesh, each in one
        ((4, {"0": 7, "left": 3}), (4, {"0": 7, "left": 4, "right": 9}), False),
        ((4, {"0": 7}), (5, {"0": 7}), False),
    ],
)
def test_groups_that_ranks_do_not_share_say_nothing(
    first: tuple[int, dict[str, int]], other: tuple[int, dict[str, int]], *, same: bool
) -> None:
    assert is_same_place([first, other]) == same
    assert is_ahead(other[1], first[1]) == (other[1].get("left", 0) > 3)


# A rank's process is known by its machine, its PID namespace, its number and its start.


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.skipif(not here(), reason="needs /proc")
def test_a_process_is_known_by_its_machine_its_number_and_its_start(
    other: "subprocess.Popen[bytes]",
) -> None:
    there = replace(
        place_of(0, torch.device("cpu"), "CPU", None),
        pid=other.pid,
        started_ticks=started_ticks(other.pid) or 0,
    )
    for machine in ("another boot/4026531836", ""):
        elsewhere = replace(there, machine=machine)
        assert not replace(elsewhere, pid=2**22 + 1).is_gone
        elsewhere.kill()
    later = replace(there, started_ticks=there.started_ticks - 1)
    later.kill()
    assert other.poll() is None
    assert (there.is_gone, later.is_gone) == (False, True)
    there.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert there.is_gone  # also as a zombie
    assert other.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(torch.xpu.is_available(), reason="how many there are, this machine says")
def test_each_rank_takes_the_gpu_of_its_number() -> None:
    assert device_of(World(1, 1, 2), "xpu") == "xpu:1"  # where there is none, the engine says so
    assert device_of(World(1, 1, 2), "cpu") == "cpu"
    with pytest.raises(DeviceError, match="ranks cannot train together on MPS; start one process, or use"):
        device_of(World(0, 0, 2), "mps")
