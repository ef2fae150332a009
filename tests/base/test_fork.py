"""Processes that no terminal reaches or that lack a stream, and what a parent learns of a child."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import deprecations

PRELUDE = """
import os, signal, sys
from amptui.base.fork import fork
"""

IN_TIME = """
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

PIPED = """
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


def run(program: str, *arguments: str, terminal: bool = False) -> str:
    """What the program printed; its terminal, if it has one, is closed with it."""
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, *deprecations.options_for_python(), "-c", PRELUDE + program, *arguments],
        stdin=slave if terminal else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave if terminal else subprocess.STDOUT,
        text=True,
        timeout=120,
        check=True,
    )
    os.close(slave)
    os.close(master)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print(fork(lambda: 7).wait(60))", "7"),
        ("print(fork(lambda: os.kill(os.getpid(), signal.SIGKILL) or 0).wait(60))", "-9"),
        (IN_TIME, "None None\n3 3 3"),
        (PIPED, "b''\n0"),
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nprint(fork(lambda: 7).wait(60))", "7"),
    ],
    ids=[
        *("a child's status is what its work returns", "a signal's is negative"),
        *("waiting ends in time and the status stays", "a pipe's reader does not wait for the child"),
        "also where whoever started us ignores the ends of children",
    ],
)
def test_what_a_parent_learns_of_its_child(program: str, said: str) -> None:
    assert run(program) == said


def test_work_that_raises_ends_the_child_and_never_runs_the_parent_s_code() -> None:
    said = run("child = fork(lambda: 1 // 0)\nprint('parent', child.wait(60))")
    assert said.splitlines()[-1] == "parent 1"
    assert said.count("parent") == 1


LEADS = """
def work():
    print("unseen")
    print("unseen", file=sys.stderr)
    tty = [os.isatty(each) for each in (0, 1, 2)]
    with open(sys.argv[1], "w") as told:
        print(os.getsid(0) == os.getpid(), *tty, repr(sys.stdin.read()), file=told)
    return 0
print(fork(work).wait(60))
"""

KEEPS = """
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
print(fork(lambda: os.write(2, b"kept") - 4).wait(60))
"""


def test_the_child_leads_a_session_without_the_terminal_and_has_the_standard_error_that_is_kept(
    tmp_path: Path,
) -> None:
    assert run(LEADS, str(tmp_path / "told"), terminal=True) == "0"
    assert (tmp_path / "told").read_text().split() == ["True", "False", "False", "False", "''"]
    assert run(KEEPS, str(tmp_path / "errors")) == "0"
    assert (tmp_path / "errors").read_text() == "kept"


# --------------------------------------------------------- standard streams that were closed before
PROGRAM = """
import os, sys
from amptui.base.prompt import complain, replace_closed_streams, say
replace_closed_streams()
say("out")
complain("err")
sys.stdout.flush()
sys.stderr.flush()
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, str(file).encode())
"""


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [
        ("", "out\n", "amptui: err\n"),
        ("<&-", "out\n", "amptui: err\n"),
        (">&-", "", "amptui: err\n"),
        ("2>&-", "out\n", ""),
        ("<&- >&- 2>&-", "", ""),
    ],
)
def test_no_file_of_ours_becomes_a_standard_stream(closed: str, out: str, err: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    shell = f'"$0" {shlex.join(deprecations.options_for_python())} -c "$1" "$2" {closed}'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, PROGRAM, str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (out, err)
    assert int(file.read_text()) > 2
