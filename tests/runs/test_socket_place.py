"""A run's socket: found in its folder or beside it, by its user alone, and gone with its process."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from amptui.base.errors import RunFolderError
from amptui.runs.lock import RunLock, holder
from amptui.runs.socket_place import connect, connect_to_live
from tests.runs.served import ENOUGH_SECONDS, Screen, attached, running, until

REFUSAL = {"error": "this run belongs to another user"}


OTHER_USER = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(connection.makefile().read(), end="")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_real_other_user_s_process_is_refused_even_where_the_file_lets_it_in() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        with running(folder) as run:
            command = [sys.executable, "-I", "-c", OTHER_USER, str(folder / "run.sock")]

            def as_nobody() -> subprocess.CompletedProcess[str]:
                return subprocess.run(command, capture_output=True, text=True, check=False)

            assert "PermissionError" in as_nobody().stderr
            (folder / "run.sock").chmod(0o666)
            done = as_nobody()
            assert (done.stderr, json.loads(done.stdout)) == ("", REFUSAL)
            assert run.told() == [("refused", 0)]
    finally:
        shutil.rmtree(folder)


def test_the_socket_is_for_its_user_alone_and_gone_with_the_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with running(tmp_path) as run:
            status = (tmp_path / "run.sock").stat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o600
            assert run.server.trouble == ""
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_a_folder_with_a_very_long_name_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50) / ("longer" * 40)
    folder.mkdir(parents=True)
    with running(folder) as run:
        screen = run.attach_screen()
        run.publish(2)
        screen.catch_up(run)
        assert [path.name for path in folder.iterdir()] == ["run.sock"]
    assert list(folder.iterdir()) == []


# A run that has locked its folder and does not listen yet.


def test_a_run_that_has_just_begun_is_waited_for(tmp_path: Path) -> None:
    with RunLock.take(tmp_path), ThreadPoolExecutor(1) as screens:
        attached = screens.submit(connect_to_live, tmp_path)
        with running(tmp_path) as run, attached.result(ENOUGH_SECONDS) as connection:
            Screen(connection)
            until(lambda: run.told() == [("attached", 1)])


def test_a_dead_run_s_socket_is_replaced_and_a_live_one_s_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "run.sock"))
        stale.listen()
    with running(tmp_path) as run, running(tmp_path) as second:
        assert run.server.trouble == ""
        assert second.server.trouble.startswith(f"cannot listen at {tmp_path / 'run.sock'}: address already")
        attached(second)
        run.attach_screen().catch_up(run)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder for sockets."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return runtime


def test_where_the_folder_holds_no_socket_the_user_s_folder_for_sockets_does(
    tmp_path: Path, runtime: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.sock").write_text("not ours")
    with running(folder) as run:
        assert run.server.trouble == ""
        (found,) = (runtime / "amptui").iterdir()
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
        assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
        run.attach_screen().catch_up(run)
    assert (folder / "run.sock").read_text() == "not ours"
    assert list((runtime / "amptui").iterdir()) == []


def test_a_folder_for_sockets_that_others_can_enter_is_not_used(tmp_path: Path, runtime: Path) -> None:
    (runtime / "amptui").mkdir()
    (runtime / "amptui").chmod(0o777)
    with running(tmp_path / "vanished") as run:
        path = tmp_path / "vanished" / "run.sock"
        assert run.server.trouble == f"cannot listen at {path}: no such file or directory"
        assert list((runtime / "amptui").iterdir()) == []
        attached(run)  # its own screen needs no socket


FORKS = """
import os, sys
from pathlib import Path
from amptui.runs.lock import RunLock, holder
from amptui.runs.server import Server

def fork(_change):
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        os._exit(0)
    print(child, flush=True)

folder = Path(sys.argv[1])
lock = RunLock.take(folder)
server = Server(folder, obey=print, changed=fork)
server.start()
os.read(0, 1)
"""


def test_a_worker_that_outlives_the_run_keeps_no_connection_open_and_holds_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        until(lambda: _connects(tmp_path))
        connection = connect(tmp_path)
        screen = Screen(connection)
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        found: Any = holder(tmp_path)
        assert found.pid == process.pid, "the run still holds it, with the worker beside it"
        process.kill()
        assert process.wait() == -9
        screen.read_to_the_end()
        connection.close()
        until(lambda: not _connects(tmp_path))
        assert holder(tmp_path) is None
        os.kill(worker, 0)  # it lives


def _connects(folder: Path) -> bool:
    try:
        connect(folder).close()
    except RunFolderError:
        return False
    return True
