"""The host's figures and limits, from the real system and from cgroup folders like a container's."""

from pathlib import Path

import psutil
import pytest

from amptui.base.cores import Cores, memory_limits, read_cores
from amptui.device.sampler import sample_host
from amptui.records.samples import HostSample

MIB = 2**20


def put_cgroup(
    root: Path, own: str, *, at: str, limit: str, current: int = 0, inactive_file: int = 0
) -> None:
    """Lay out a process in the cgroup ``own`` and a memory limit in the folder ``at``."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(f"1:name=systemd:/elsewhere\n0::{own}\n")
    folder = root / "sys/fs/cgroup" / at
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\nfile 2\n")


def memory_of(root: Path) -> tuple[int | None, int | None]:
    sample = sample_host(HostSample(), root)
    return sample.memory_used_bytes, sample.memory_total_bytes


def test_this_machine_is_measured() -> None:
    first = sample_host(HostSample())
    sample = sample_host(first)
    assert first.cpu_percent is None
    assert 0 <= (sample.cpu_percent or 0) <= 100
    assert 0 < (sample.memory_used_bytes or 0) <= (sample.memory_total_bytes or 0)
    assert 0 < (sample.process_rss_bytes or 0) < (sample.memory_total_bytes or 0)


def test_a_containers_limit_is_its_total_and_file_cache_is_not_used(tmp_path: Path) -> None:
    put_cgroup(tmp_path, "/", at="", limit=str(64 * MIB), current=40 * MIB, inactive_file=30 * MIB)
    assert memory_of(tmp_path) == (10 * MIB, 64 * MIB)


def test_a_limit_above_the_machine_or_none_at_all_does_not_count(tmp_path: Path) -> None:
    machine = psutil.virtual_memory().total
    assert memory_of(tmp_path)[1] == machine  # without a cgroup
    for limit in ("max", str(2 * machine)):
        put_cgroup(tmp_path, "/job", at="job", limit=limit, current=5)
        used, total = memory_of(tmp_path)
        assert total == machine
        assert (used or 0) > 5


def test_the_narrowest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    put_cgroup(tmp_path, "/slice/job", at="slice/job", limit="max", current=7 * MIB)
    put_cgroup(tmp_path, "/slice/job", at="slice", limit=str(32 * MIB), current=9 * MIB)
    put_cgroup(tmp_path, "/slice/job", at="", limit=str(64 * MIB), current=11 * MIB)
    assert memory_of(tmp_path) == (9 * MIB, 32 * MIB)


@pytest.mark.parametrize("own", ["/docker/0123abcd", "/../../pod/0123abcd"])
def test_a_path_of_the_host_leads_to_the_containers_own_mount(tmp_path: Path, own: str) -> None:
    put_cgroup(tmp_path, own, at="", limit=str(64 * MIB), current=3 * MIB)
    assert memory_of(tmp_path) == (3 * MIB, 64 * MIB)


# ------------------------------------------------------------------ limits of processors and memory
GIB = 2**30


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (
            {
                "proc/self/cgroup": "0::/box/job\n",
                "sys/fs/cgroup/box/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/box/job/cpu.max": "max 100000\n",
                "sys/fs/cgroup/box/memory.max": "max\n",
                "sys/fs/cgroup/box/job/memory.max": f"{4 * GIB}\n",
            },
            (2.0, 4 * GIB),
        ),
        ({}, (None, None)),
    ],
    ids=["the narrowest on the way up", "no files"],
)
def test_limits_are_what_the_kernel_writes(
    tmp_path: Path, files: dict[str, str], limits: tuple[float | None, int | None]
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    memory = min((limit for limit, _ in memory_limits(tmp_path)), default=None)
    assert (read_cores(tmp_path).limit, memory) == limits


@pytest.mark.parametrize(
    ("allowed", "limit", "usable", "seconds"),
    [(8, None, 8, 8.0), (8, 2.5, 3, 2.5), (2, 6.0, 2, 2.0), (4, 0.5, 1, 0.5)],
)
def test_the_narrower_of_cpu_set_and_quota_counts(
    allowed: int, limit: float | None, usable: int, seconds: float
) -> None:
    cores = Cores(machine=64, allowed=allowed, limit=limit)
    assert (cores.usable, cores.seconds) == (usable, seconds)
