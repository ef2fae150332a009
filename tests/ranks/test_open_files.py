"""How many files a rank may have open."""

import resource
import subprocess
import sys

import pytest

from amptui.base.errors import DeviceError
from amptui.ranks.group import allow_open_files, needed_files


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of this process as the code sees them: the newest is last."""
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _which, both: limits.append(both))
    return limits


def test_few_ranks_leave_the_limit_as_it_is(limits: list[tuple[int, int]]) -> None:
    allow_open_files(64, keeps_store=True)
    assert limits == [(1024, 4096)]


def test_many_ranks_raise_it_as_far_as_they_need(limits: list[tuple[int, int]]) -> None:
    allow_open_files(512, keeps_store=False)
    assert limits[-1] == (needed_files(512, keeps_store=False), 4096)
    assert limits[-1][0] > 2 * 512


def test_too_many_for_the_hard_limit_are_refused(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(DeviceError, match=r"^4,096 ranks need 8,448 open files in each process"):
        allow_open_files(4096, keeps_store=False)
    assert limits == [(1024, 4096)]


@pytest.mark.ci
def test_the_limit_of_a_real_process_is_raised() -> None:
    program = """
import resource
from amptui.ranks.group import allow_open_files
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
allow_open_files(50, keeps_store=False)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(process.stdout) == needed_files(50, keeps_store=False)
