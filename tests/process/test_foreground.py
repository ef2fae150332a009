"""Parts of a command in children of their own: how they end is told as a shell tells it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from amptui.base.errors import UsageError
from amptui.process.foreground import in_foreground


def fail() -> tuple[int, str]:
    raise UsageError("no run 'x'", hint="check the path")


def die() -> tuple[int, str]:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0, ""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("work", "status", "said", "printed"),
    [
        (lambda: (3, "täg \udcff"), 3, "täg \udcff", ""),
        (lambda: (0, "x" * 2**20), 0, "x" * 2**20, ""),
        (fail, 2, "no run 'x'; check the path", "amptui: no run 'x'; check the path\n"),
        (lambda: (1 // 0, ""), 1, "", "ZeroDivisionError: integer division or modulo by zero\n"),
        (die, 128 + signal.SIGKILL, "", ""),
    ],
    ids=["a status and a text", "much is said", "an error", "a fault", "a signal"],
)
def test_how_a_part_ended_and_what_it_says_is_handed_back(
    work: Callable[[], tuple[int, str]],
    status: int,
    said: str,
    printed: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert in_foreground(work) == (status, said)
    assert capfd.readouterr().err.endswith(printed)


PASSES_ON = """
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
    with subprocess.Popen([sys.executable, "-c", PASSES_ON], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=50) == 7
