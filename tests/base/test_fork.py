"""A child process that no terminal reaches, and what its parent learns of it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests import deprecations

PRELUDE = """
import os, signal, sys, time
from amptui.base.fork import fork
"""


def run(program: str, *arguments: str, terminal: bool = False) -> tuple[str, int]:
    """What the program printed and its exit status; its terminal, if it has one, is closed with it."""
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, *deprecations.options_for_python(), "-c", PRELUDE + program, *arguments],
        stdin=slave if terminal else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave if terminal else subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(slave)
    os.close(master)
    return done.stdout.strip(), done.returncode


def test_the_child_s_status_is_what_its_work_returns() -> None:
    assert run("print(fork(lambda: 7).wait(60))") == ("7", 0)


def test_a_child_that_a_signal_ends_has_a_negative_status() -> None:
    program = "print(fork(lambda: os.kill(os.getpid(), signal.SIGKILL) or 0).wait(60))"
    assert run(program) == ("-9", 0)


def test_work_that_raises_ends_the_child_and_never_runs_the_parent_s_code() -> None:
    said, status = run("child = fork(lambda: 1 // 0)\nprint('parent', child.wait(60))")
    assert said.splitlines()[-1] == "parent 1"
    assert said.count("parent") == 1
    assert status == 0


def test_waiting_ends_in_time_and_the_status_stays() -> None:
    program = """
reading, writing = os.pipe()
def work():
    os.close(writing)
    os.read(reading, 1)
    return 3
child = fork(work)
print(child.wait(0.0), child.status)
os.close(writing)
print(child.wait(60), child.status, child.wait(60))
"""
    assert run(program) == ("None None\n3 3 3", 0)


def test_the_child_leads_a_session_without_the_terminal_and_prints_nowhere(tmp_path: Path) -> None:
    program = """
def work():
    print("unseen")
    print("unseen", file=sys.stderr)
    tty = [os.isatty(each) for each in (0, 1, 2)]
    with open(sys.argv[1], "w") as told:
        print(os.getsid(0) == os.getpid(), *tty, repr(sys.stdin.read()), file=told)
    return 0
print(fork(work).wait(60))
"""
    assert run(program, str(tmp_path / "told"), terminal=True) == ("0", 0)
    assert (tmp_path / "told").read_text().split() == ["True", "False", "False", "False", "''"]


def test_a_standard_error_that_is_kept_stays_the_child_s(tmp_path: Path) -> None:
    program = """
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
def work():
    os.write(2, b"kept")
    return 0
print(fork(work).wait(60))
"""
    assert run(program, str(tmp_path / "errors")) == ("0", 0)
    assert (tmp_path / "errors").read_text() == "kept"


def test_a_pipe_s_reader_does_not_wait_for_the_child() -> None:
    program = """
reading, writing = os.pipe()
os.dup2(writing, 2)
os.close(writing)
ends, keeps = os.pipe()
def work():
    os.close(keeps)
    os.read(ends, 1)
    return 0
child = fork(work)
os.dup2(1, 2)
print(os.read(reading, 1))
os.close(keeps)
print(child.wait(60))
"""
    assert run(program) == ("b''\n0", 0)


def test_the_end_is_known_where_whoever_started_us_ignores_the_ends_of_children() -> None:
    program = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(fork(lambda: 7).wait(60))
"""
    assert run(program) == ("7", 0)
