"""Parts of a command in children of their own: how they end is told as a shell tells it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from amptui.base.errors import UsageError
from amptui.process.foreground import in_foreground


@pytest.mark.ci
def test_a_part_ends_with_its_status_and_says_something() -> None:
    assert in_foreground(lambda: (3, "täg \udcff")) == (3, "täg \udcff")


@pytest.mark.ci
def test_much_may_be_said() -> None:
    assert in_foreground(lambda: (0, "x" * 2**20)) == (0, "x" * 2**20)


def test_how_it_ended_is_known_where_a_parent_ignored_its_children() -> None:
    program = (
        "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from amptui.process.foreground import in_foreground\n"
        "sys.exit(in_foreground(lambda: (5, '')).status)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 5


@pytest.mark.ci
def test_an_error_is_printed_and_handed_back(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> tuple[int, str]:
        raise UsageError("no run 'x'", hint="check the path")

    assert in_foreground(fail) == (2, "no run 'x'; check the path")
    assert capfd.readouterr().err == "amptui: no run 'x'; check the path\n"


@pytest.mark.ci
def test_a_fault_is_a_traceback_and_status_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_foreground(lambda: (1 // 0, "")) == (1, "")
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.ci
def test_a_signal_that_ends_it_is_128_and_its_number() -> None:
    def die() -> tuple[int, str]:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0, ""

    assert in_foreground(die).status == 128 + signal.SIGKILL


PROGRAM = """
import os, signal, sys, time
from amptui.process.foreground import in_foreground
def work():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    print("ready", flush=True)
    time.sleep(60)
    return 0, ""
sys.exit(in_foreground(work).status)
"""


def test_a_signal_to_the_process_that_waits_reaches_the_part() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert process.wait(timeout=60) == 7
    assert time.monotonic() - began < 50
    process.stdout.close()
