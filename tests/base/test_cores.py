"""Limits of containers as the kernel writes them."""

from pathlib import Path

import pytest

from amptui.base.cores import Cores, memory_limit, read_cores

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
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            },
            (1.5, GIB),
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            (None, None),
        ),
        ({}, (None, None)),
    ],
    ids=[
        *("version 2: the narrowest on the way up", "version 1: a container names the host's path"),
        *("no quota", "no files"),
    ],
)
def test_limits_are_what_the_kernel_writes(
    tmp_path: Path, files: dict[str, str], limits: tuple[float | None, int | None]
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert (read_cores(tmp_path).limit, memory_limit(tmp_path)) == limits


@pytest.mark.parametrize(
    ("allowed", "limit", "usable", "seconds"),
    [(8, None, 8, 8.0), (8, 2.5, 3, 2.5), (2, 6.0, 2, 2.0), (4, 0.5, 1, 0.5)],
)
def test_the_narrower_of_cpu_set_and_quota_counts(
    allowed: int, limit: float | None, usable: int, seconds: float
) -> None:
    cores = Cores(machine=64, allowed=allowed, limit=limit)
    assert (cores.usable, cores.seconds) == (usable, seconds)
