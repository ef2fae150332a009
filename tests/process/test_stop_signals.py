"""Stop signals in processes of their own: the first asks, the second leaves."""

import signal
import subprocess
import sys
import threading

import pytest

from amptui.process.stop_signals import Arrival, received_of_pending

HEADER = """
import os, signal, sys, threading
from signal import SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGPWR
from signal import SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU
from amptui.process import stop_signals
from amptui.process.stop_signals import StopSignals, blocked_stop_signals, received_within
from amptui.records.control import Control
control, hangups = Control(), []
def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + bytes([10]))
"""
"""What the programs below import; unbuffered, since some of them leave at once."""


def end_of(program: str, *, prelude: str = "") -> tuple[list[str], int]:
    command = [sys.executable, "-c", prelude + HEADER + program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.stdout.splitlines(), done.returncode


SENDS = """
with StopSignals(control.ask, restore_terminal=lambda: say("restored")) as signals:
    for number in ({numbers}):
        os.kill(os.getpid(), number)
        say(signals.received, control.stop_reason)
handlers = [signal.getsignal(number) for number in (SIGINT, SIGTERM)]
assert handlers == [signal.default_int_handler, signal.SIG_DFL], "what they were"
"""

IGNORING = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
OWN_HANDLER = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n"


@pytest.mark.parametrize(
    ("numbers", "prelude", "asked", "status"),
    [
        ("SIGINT, SIGINT", "", ["2 SIGINT", "restored"], 130),
        ("SIGHUP, SIGHUP", "", ["1 SIGHUP", "restored"], 129),
        ("SIGTERM, SIGINT", "", ["15 SIGTERM", "restored"], 143),
        ("SIGUSR1, SIGUSR1, SIGXCPU", "", ["10 SIGUSR1"] * 3, 0),
        ("SIGUSR1, SIGTERM, SIGTERM", "", [*["10 SIGUSR1"] * 2, "restored"], 138),
        ("SIGHUP, SIGHUP, SIGTERM", IGNORING, ["None None"] * 2 + ["15 SIGTERM"], 0),
        ("SIGUSR1, SIGUSR2", OWN_HANDLER, ["None None", "12 SIGUSR2"], 0),
    ],
    ids=[
        *("interrupted twice", "hung up twice", "the first gives the status", "schedulers come twice"),
        *("a person twice after a scheduler", "what was ignored stays so", "what has a handler keeps it"),
    ],
)
def test_the_first_signal_asks_for_a_clean_end_and_a_person_s_second_leaves_at_once(
    numbers: str, prelude: str, asked: list[str], status: int
) -> None:
    assert end_of(SENDS.format(numbers=numbers), prelude=prelude) == (asked, status)


EACH = """
for number in (SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR):
    with StopSignals(Control().ask) as signals:
        os.kill(os.getpid(), number)
    say(signals.received == number)
"""

FORKS = """
with StopSignals(control.ask):
    worker = os.fork()
    if not worker:
        for number in (SIGINT, SIGUSR1, SIGUSR1, SIGINT):
            os.kill(os.getpid(), number)
        say(control.stop_reason)
        os.kill(os.getpid(), SIGTERM)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
say(status, control.stop_reason)
"""

HELD_BACK = """
with blocked_stop_signals():
    pid = os.fork()
    for number in (SIGHUP, SIGINT):
        os.kill(os.getpid(), number)
    with StopSignals(control.ask, hung_up=lambda: hangups.append(1)) as signals:
        say(len(hangups), signals.received, control.stop_reason)
    if pid:
        say(os.waitpid(pid, 0)[1])
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


@pytest.mark.parametrize(
    ("program", "lines", "status"),
    [
        (EACH, ["True"] * 8, 0),
        (FORKS, ["None", "-15 None"], 0),
        (HELD_BACK, ["1 2 SIGINT", "1 2 SIGINT", "0"], 0),
    ],
    ids=[
        "whatever a batch system, a limit or a timer sends asks for a clean end",
        "a worker outlives what is sent to all and dies when it is terminated",
        "what is held back is heeded later on both sides of a fork",
    ],
)
def test_signals_of_every_kind_in_children_and_before_they_are_expected(
    program: str, lines: list[str], status: int
) -> None:
    assert end_of(program) == (lines, status)


def test_blocked_signals_are_taken_one_by_one_as_macos_does() -> None:
    """By calls that Linux has as well; a signal of this thread's, that no other takes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT})
    try:
        assert received_of_pending((signal.SIGUSR1, signal.SIGUSR2)) is None
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert received_of_pending((signal.SIGUSR1, signal.SIGUSR2)) == Arrival(signal.SIGUSR2, False)
        assert received_of_pending((signal.SIGUSR1, signal.SIGUSR2)) is None
        assert received_of_pending((signal.SIGINT,)) == Arrival(signal.SIGINT, True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
