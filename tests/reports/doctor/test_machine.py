"""What a container's limits mean for threads and memory."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.cores import Cores, Limits
from amptui.reports.doctor.machine import (
    check_cores,
    check_memory,
    check_shared_memory,
    check_threads,
    machine_checks,
    thread_checks,
)

GIB = 2**30


def test_this_machine_is_told_without_a_failure() -> None:
    assert [check.name for check in machine_checks()] == ["cores", "memory", "shared-memory"]


def test_a_containers_limit_is_told_beside_the_machines_cores() -> None:
    check = check_cores(Cores(machine=64, allowed=64, limit=1.5))
    assert check.text == "2 of 64 cores available (container limit 1.5)"
    assert check_cores(Cores(machine=8, allowed=8, limit=None)).text == "8 cores available"


def test_more_threads_than_cores_are_too_many() -> None:
    check = check_threads(32, Cores(machine=64, allowed=64, limit=4.0))
    assert check.severity == "warning"
    assert check.hint.startswith("set OMP_NUM_THREADS=4:")


def test_few_threads_leave_cores_idle() -> None:
    check = check_threads(1, Cores(machine=16, allowed=16, limit=None))
    assert check.text == "torch uses 1 thread on 16 cores: CPU training leaves most cores idle"


@given(st.integers(1, 512), st.integers(1, 512), st.none() | st.floats(0.01, 512))
def test_between_half_of_the_cores_and_all_of_them_nothing_is_to_be_fixed(
    threads: int, allowed: int, limit: float | None
) -> None:
    cores = Cores(machine=allowed, allowed=allowed, limit=limit)
    assert 1 <= cores.usable <= allowed
    fits = cores.usable <= 2 * threads <= 2 * cores.usable
    assert (check_threads(threads, cores).severity == "info") == fits


def test_torchs_own_thread_count_is_what_is_judged() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)) + 3)
    (check,) = thread_checks()
    assert (check.severity, check.facts["threads"]) == ("warning", torch.get_num_threads())


def test_a_small_container_is_told_to_be_small() -> None:
    check = check_memory(Limits(cores=None, memory_bytes=GIB))
    assert check.severity == "warning"
    assert "container limit 1.00 GiB" in check.text
    assert check.facts["limit_bytes"] == GIB


def test_a_limit_beyond_the_machines_memory_is_none() -> None:
    assert check_memory(Limits(cores=None, memory_bytes=2**62)).facts["limit_bytes"] is None


def test_without_shared_memory_workers_fail(tmp_path: Path) -> None:
    check = check_shared_memory(tmp_path / "absent")
    assert check.severity == "warning"
    assert "--shm-size" in check.hint


def test_room_for_workers_is_told(tmp_path: Path) -> None:
    check = check_shared_memory(tmp_path)
    assert check.facts["free_bytes"] == pytest.approx(
        os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.2
    )
