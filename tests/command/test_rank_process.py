"""How a rank's process ends."""

import atexit
import os
import signal
import sys

import pytest

from amptui.command.rank_process import leave


@pytest.mark.parametrize("status", [0, 3])
def test_a_crash_in_an_exit_handler_does_not_change_how_a_rank_ended(status: int) -> None:
    """As torch's may crash under NCCL. What was printed is not lost."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        atexit.register(os.kill, os.getpid(), signal.SIGKILL)
        sys.stdout = os.fdopen(writing, "w")
        print("done", end="")
        leave(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as out:
        assert out.read() == b"done"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
