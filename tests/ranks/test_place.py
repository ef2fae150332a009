"""A rank's process is known by its machine, its PID namespace, its number and its start."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from amptui.base.errors import DeviceError
from amptui.ranks.store.place import Machine, Place, device_of, here, place_of, started_ticks
from amptui.ranks.world import World

MACHINE = here()

pytestmark = pytest.mark.skipif(MACHINE is None, reason="needs /proc")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def place(pid: int) -> Place:
    own = place_of(torch.device("cpu"), "CPU", None)
    return replace(own, pid=pid, started_ticks=started_ticks(pid) or 0)


def test_a_process_is_gone_once_it_has_died_also_as_a_zombie(other: "subprocess.Popen[bytes]") -> None:
    there = place(other.pid)
    assert not there.is_gone(MACHINE)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert there.is_gone(MACHINE)


def test_a_later_process_of_the_same_number_is_another() -> None:
    own = place(os.getpid())
    assert not own.is_gone(MACHINE)
    assert replace(own, started_ticks=own.started_ticks - 1).is_gone(MACHINE)


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


WHERE = """
import os
from amptui.ranks.store.place import here
print(os.getpid(), here())
"""


@pytest.mark.ci  # a process that imports torch
def test_in_another_pid_namespace_than_that_of_its_proc_nothing_is_known() -> None:
    """As under ``unshare --pid --fork`` alone: numbers in ``/proc`` are those of other processes."""
    start = ["unshare", "--pid", "--fork", "--map-root-user"]
    try:
        permitted = subprocess.run([*start, "true"], capture_output=True, check=False, timeout=60)
    except OSError:
        pytest.skip("there is no unshare(1)")
    if permitted.returncode:
        pytest.skip("this user may not make PID namespaces")
    process = subprocess.run(
        [*start, sys.executable, "-c", WHERE], capture_output=True, text=True, check=True, timeout=120
    )
    assert process.stdout == "1 None\n"


def test_ranks_are_refused_on_a_device_whose_tensors_nothing_sends() -> None:
    with pytest.raises(DeviceError, match="ranks cannot train together on MPS; start one process, or use"):
        device_of(World(0, 0, 2), "mps")


@pytest.mark.skipif(torch.xpu.is_available(), reason="how many there are, this machine says")
def test_each_rank_takes_the_gpu_of_its_number() -> None:
    assert device_of(World(1, 1, 2), "xpu") == "xpu:1"  # where there is none, the engine says so
    assert device_of(World(1, 1, 2), "cpu") == "cpu"
