"""Stop signals in processes of their own: the first asks, the second leaves."""

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from amptui.base.terminal import RESTORE
from amptui.process.stop_signals import Arrival, received_of_pending

STOPPERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

HEADER = """
import os, signal, sys, termios, threading, tty
from amptui.base.terminal import HeldTerminal
from amptui.process import stop_signals
from amptui.process.stop_signals import StopSignals, blocked_stop_signals, received_within
from amptui.records.control import Control
control, hangups = Control(), []
"""
"""What the programs below import."""

PROGRAM = """
with StopSignals(control.ask) as signals:
    print("ready", flush=True)
    for line in sys.stdin:
        print(signals.received, control.stop_reason, flush=True)
print("left", *(signal.getsignal(s).__name__ if callable(signal.getsignal(s)) else signal.getsignal(s).name
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)), flush=True)
"""


WAITING = """
with blocked_stop_signals():
    print("ready", flush=True)
    while (received := received_within(0.1)) is None:
        pass
    print(received.number, flush=True)
"""


@contextmanager
def running(program: str = PROGRAM, *, prelude: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program, the one above by default, ready for signals."""
    command = [sys.executable, "-c", prelude + HEADER + program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert said(process) == "ready"
        yield process
        process.kill()


def lines_of(program: str) -> list[str]:
    """What a program says that needs nothing."""
    command = [sys.executable, "-c", HEADER + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


IGNORING = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ask(process: subprocess.Popen[str]) -> str:
    """What the program knows of signals now."""
    assert process.stdin is not None
    process.stdin.write("?\n")
    process.stdin.flush()
    return said(process)


@pytest.mark.parametrize("number", STOPPERS)
def test_the_first_signal_asks_for_a_clean_end_and_the_second_leaves_at_once(number: signal.Signals) -> None:
    with running() as process:
        assert ask(process) == "None None"
        process.send_signal(number)
        assert ask(process) == f"{number.value} {number.name}"
        process.send_signal(number)
        assert process.wait(60) == 128 + number


def test_the_status_is_that_of_the_first_signal() -> None:
    with running() as process:
        process.send_signal(signal.SIGTERM)
        ask(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_hangup_that_was_ignored_at_the_start_stays_ignored() -> None:
    with running(prelude=IGNORING) as process:
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
        assert ask(process) == "None None"
        process.send_signal(signal.SIGTERM)
        assert ask(process) == f"{signal.SIGTERM.value} SIGTERM"


def test_afterwards_the_handlers_are_what_they_were() -> None:
    with running(prelude=IGNORING) as process:
        process.send_signal(signal.SIGINT)
        assert ask(process) == "2 SIGINT"
        assert process.stdin is not None
        process.stdin.close()
        assert said(process) == "left default_int_handler SIG_DFL SIG_IGN"
        assert process.wait(60) == 0


LAST_RESORT = "stop_signals.LEAVE_AFTER_SECONDS = 0.2\n"


def test_a_process_that_cannot_leave_by_itself_is_left_in_the_end() -> None:
    with running(LAST_RESORT + PROGRAM) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


RAW_TERMINAL = """
with HeldTerminal(lambda: "farewell") as terminal, StopSignals(control.ask, terminal=terminal):
    tty.setraw(0)
    terminal.take()
    print("ready", flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("first", "again", "status"),
    [
        (signal.SIGTERM, signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGUSR1, signal.SIGTERM, 128 + signal.SIGUSR1),
        (signal.SIGQUIT, signal.SIGQUIT, -signal.SIGQUIT),
        (signal.SIGABRT, signal.SIGABRT, -signal.SIGABRT),
    ],
)
def test_the_terminal_is_whole_before_a_process_that_leaves_at_once_is_gone(
    first: signal.Signals, again: signal.Signals, status: int
) -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-c", HEADER + RAW_TERMINAL]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, text=True) as process:
        assert said(process) == "ready"
        assert termios.tcgetattr(slave) != before
        deadline = time.monotonic() + 60
        process.send_signal(first)
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(again)  # two of a kind that wait to be delivered are one
            time.sleep(0.01)
        process.kill()  # of one that has ended nothing is left to kill
        assert process.wait() == status
        assert termios.tcgetattr(slave) == before
        assert os.read(master, 200) == RESTORE + b"amptui: farewell\r\n"
    os.close(master)
    os.close(slave)


INTERRUPTED = """
class Interrupted(StopSignals):
    def _ask(self, number, frame):
        os.kill(os.getpid(), signal.SIGTERM)
        super()._ask(number, frame)

with Interrupted(control.ask):
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_second_signal_in_the_middle_of_the_first_has_the_same_exit_status() -> None:
    ended = subprocess.run([sys.executable, "-c", HEADER + INTERRUPTED], timeout=60, check=False)
    assert ended.returncode == 128 + signal.SIGTERM


FORKS = r"""
with StopSignals(control.ask):
    worker = os.fork()
    if not worker:
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR1, signal.SIGINT):
            os.kill(os.getpid(), number)
        os.write(1, f"{control.stop_reason}\n".encode())
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
os.write(1, f"{status} {control.stop_reason}\n".encode())
"""


def test_a_worker_outlives_what_is_sent_to_all_and_dies_when_it_is_terminated() -> None:
    assert lines_of(FORKS) == ["None", f"{-signal.SIGTERM} None"]


OWN_HANDLER = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n"


def test_a_signal_that_somebody_else_handles_is_left_to_them() -> None:
    with running(prelude=OWN_HANDLER) as process:
        process.send_signal(signal.SIGUSR1)
        assert ask(process) == "None None"
        process.send_signal(signal.SIGUSR2)
        assert ask(process) == f"{signal.SIGUSR2.value} SIGUSR2"


HANGS_UP = """
with StopSignals(control.ask, hung_up=lambda: hangups.append(1)) as signals:
    print("ready", flush=True)
    for line in sys.stdin:
        print(len(hangups), signals.received, control.stop_reason, flush=True)
"""


def test_a_hangup_may_mean_something_else_than_a_stop() -> None:
    with running(HANGS_UP) as process:
        process.send_signal(signal.SIGHUP)
        assert ask(process) == "1 None None"
        process.send_signal(signal.SIGHUP)
        assert ask(process) == "2 None None"
        process.send_signal(signal.SIGTERM)
        assert ask(process) == "2 15 SIGTERM"


BUSY = f"""{LAST_RESORT}
questions = threading.Semaphore(0)
def busy():
    questions.release()
    return True
with StopSignals(control.ask, busy=busy):
    print("ready", flush=True)
    for _ in range(3):
        questions.acquire()
    print("still here", flush=True)
"""


@pytest.mark.ci
def test_a_process_that_saves_something_is_not_left_for_taking_long() -> None:
    with running(BUSY) as process:
        process.send_signal(signal.SIGTERM)
        assert said(process) == "still here"
        assert process.wait(60) == 0


NO_LONGER_BUSY = f"""{LAST_RESORT}
answers = [True, False, False]
def busy():
    os.write(1, b"asked ")
    return answers.pop(0)
with StopSignals(control.ask, busy=busy):
    print("ready", flush=True)
    threading.Event().wait()
"""


@pytest.mark.ci
def test_a_process_that_has_just_saved_something_has_time_to_leave() -> None:
    with running(NO_LONGER_BUSY) as process:
        process.send_signal(signal.SIGTERM)
        assert said(process) == "asked asked asked"
        assert process.wait(60) == 128 + signal.SIGTERM


HELD_BACK = r"""
with blocked_stop_signals():
    pid = os.fork()
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(os.getpid(), number)
    with StopSignals(control.ask, hung_up=lambda: hangups.append(1)) as signals:
        os.write(1, f"{len(hangups)} {signals.received} {control.stop_reason}\n".encode())
    if pid:
        os.write(1, f"{os.waitpid(pid, 0)[1]}\n".encode())
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_what_is_held_back_is_heeded_later_on_both_sides_of_a_fork() -> None:
    assert lines_of(HELD_BACK) == ["1 2 SIGINT", "1 2 SIGINT", "0"]


@pytest.mark.ci
def test_a_process_that_is_stopped_and_goes_on_has_received_no_signal() -> None:
    with running(WAITING) as process:
        for _ in range(3):
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            time.sleep(0.2)  # longer than it waits each time
            os.kill(process.pid, signal.SIGCONT)
            os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        process.terminate()
        assert said(process) == str(int(signal.SIGTERM))


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
