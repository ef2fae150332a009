"""One run a folder: the lock lets one process in, tells who it is, and dies with it."""

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amptui.base.errors import RunFolderError
from amptui.runs.lock import Holder, RunLock, holder
from amptui.runs.rundir import RunDir, create_run_dir

HOST = socket.gethostname()

HOLD = """
import sys
from pathlib import Path
from typing import Any
from amptui.runs.lock import RunLock
lock = RunLock.take(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield process


def words(folder: Path, **said: object) -> None:
    RunDir(folder).lock_path.write_text(json.dumps(said))


def test_a_folder_is_held_from_taking_to_release_and_looking_makes_no_file(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    assert holder(tmp_path / "no" / "such") is None
    assert list(tmp_path.iterdir()) == []
    with RunLock.take(tmp_path):
        found: Any = holder(tmp_path)
        assert (found.pid, found.host, found.is_here) == (os.getpid(), HOST, True)
        assert found.started is not None
    assert holder(tmp_path) is None
    RunLock.take(tmp_path).release()
    with pytest.raises(RunFolderError, match=r"cannot lock .*no such file or directory"):
        RunLock.take(tmp_path / "run")


def test_a_second_run_is_told_who_trains_there_and_one_that_is_killed_holds_nothing_any_more(
    tmp_path: Path,
) -> None:
    with another_process(tmp_path) as process:
        with pytest.raises(RunFolderError) as caught:
            RunLock.take(tmp_path)
        assert str(caught.value) == (
            f"another run is training in {tmp_path} (pid {process.pid} on {HOST}); "
            f"watch it with `amptui attach {tmp_path}`"
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert holder(tmp_path) is None
        RunLock.take(tmp_path).release()


def test_a_new_run_is_refused_where_one_began_meanwhile(tmp_path: Path) -> None:
    run_dir = create_run_dir(tmp_path / "run", "m")
    run_dir.journal_path.touch()
    with pytest.raises(RunFolderError, match="contains a run"):
        RunLock.take(run_dir.path, new=True)
    assert holder(run_dir.path) is None, "who was refused holds nothing"
    RunLock.take(run_dir.path).release()


def test_those_who_look_stand_in_nobody_s_way(tmp_path: Path) -> None:
    RunLock.take(tmp_path).release()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            holder(tmp_path)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(50):
            RunLock.take(tmp_path).release()
    finally:
        done.set()
        looker.join()


def test_a_folder_that_was_deleted_and_made_again_is_held_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with RunLock.take(folder) as lock:
        lock.renew()
        shutil.rmtree(folder)
        lock.renew()
        folder.mkdir()
        lock.renew()
        found: Any = holder(folder)
        assert found.pid == os.getpid()


def test_without_locks_the_living_hold_by_their_word_and_the_dead_and_what_has_ended_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On file systems without locks: network ones, often."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("amptui.runs.lock._PATIENCE_SECONDS", 0.0)
    for pid, host in ((os.getppid(), HOST), (1, "elsewhere")):
        words(tmp_path, pid=pid, host=host, started=1.0)
        assert holder(tmp_path) == Holder(pid=pid, host=host, started=1.0)
        with pytest.raises(RunFolderError, match=f"another run is training in .*pid {pid} on {host}"):
            RunLock.take(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    words(tmp_path, pid=gone.pid, host=HOST, started=1.0)
    assert holder(tmp_path) is None
    lock = RunLock.take(tmp_path)
    assert json.loads(RunDir(tmp_path).lock_path.read_text())["pid"] == os.getpid()
    lock.release()
    assert holder(tmp_path) is None
    assert RunDir(tmp_path).lock_path.read_text() == ""
