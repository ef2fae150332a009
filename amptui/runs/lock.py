"""The lock of a run's folder, held by the live run's process, and whether a run may live without one."""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_file
from amptui.runs.rundir import LOCK_NAME, RunDir, reason, refuse_a_run, run_argument, written

_PATIENCE_SECONDS = 0.5
"""Checking whether the lock is held takes it for microseconds; a new run waits that out."""

_RETRY_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that trains in a folder, as its lock file says; None and empty if that is damaged."""

    pid: int | None
    host: str
    started: float | None
    """When it took the lock, in Unix seconds."""

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        pid = f"pid {self.pid}" if self.pid is not None else "a process"
        return f"{pid} on {self.host}" if self.host else pid


class RunLock:
    """The lock of one run's folder, held until :meth:`release` or the end of this process.

    Children of this process do not hold it, so that a child that lives on does not block a dead run's folder.
    """

    def __init__(self, file: int) -> None:
        self._file: int | None = file
        # Forked children share a lock: it would last until the last of them exits.
        os.register_at_fork(after_in_child=self._close)

    @classmethod
    def take(cls, folder: Path, *, new: bool = False) -> "RunLock":
        """Lock ``folder`` for this process.

        Raises ``RunFolderError`` if a live run holds it or, with ``new``, if there is already a run in it.
        """
        run_dir = RunDir(folder)
        try:
            # A folder of root's may be everybody's, and what a link there leads to would be overwritten.
            file = open_file(run_dir.lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            hint = "choose another folder with --run-dir"
            raise RunFolderError(f"cannot lock {folder}: {reason(error)}", hint=hint) from error
        limit = time.monotonic() + _PATIENCE_SECONDS
        while not _try_to_lock(file):
            if time.monotonic() >= limit:
                os.close(file)
                trains = holder(folder) or "just started"
                hint = f"watch it with `amptui attach {folder}`"
                raise RunFolderError(f"another run is training in {folder} ({trains})", hint=hint)
            time.sleep(_RETRY_SECONDS)
        signature = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        with suppress(OSError):  # the lock also works on a full disk
            os.ftruncate(file, 0)
            os.pwrite(file, f"{json.dumps(signature)}\n".encode("ascii"), 0)
        lock = cls(file)
        try:
            if new:
                refuse_a_run(run_dir)
        except RunFolderError:
            lock.release()
            raise
        return lock

    def release(self) -> None:
        """Release the folder; does nothing if it was released before."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)  # on file systems without locks, the content is the lock
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(folder: Path | str) -> Holder | None:
    """Who trains in ``folder`` now; None if nobody does. Creates no file and blocks nobody.

    With the folder as text it takes half the time, which counts for thousands of them.
    """
    try:
        file = open_file(f"{folder}{os.sep}{LOCK_NAME}", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(file)
    except OSError:
        return _holder_by_name(file)
    else:
        return None
    finally:
        os.close(file)


def _try_to_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return _holder_by_name(file) is None
    return True


def _holder_by_name(file: int) -> Holder | None:
    """The holder named in the file, unless it has ended; a process on another machine cannot be checked."""
    signed = _read_holder(file)
    if signed.pid is None or not signed.is_here:
        return signed if signed.pid is not None else None
    if signed.pid == os.getpid():
        return None
    try:
        os.kill(signed.pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass  # another user's
    return signed


def _read_holder(file: int) -> Holder:
    try:
        content: Any = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        content = {}
    pid, host, started = content.get("pid"), content.get("host"), content.get("started")
    return Holder(
        pid=pid if isinstance(pid, int) and pid > 0 else None,
        host=host if isinstance(host, str) else "",
        started=started if isinstance(started, float) else None,
    )


RECENT_SECONDS = 600.0
"""A run of another machine that wrote more lately may live, whatever its lock says here: a live one writes
every second. The rest is for clocks that differ."""

RESTART_SECONDS = 120.0
"""How long ranks may take to be started again. The launcher gives the old ones 30 s to end."""

_HEARTBEATS_SECONDS = 5.0
"""A run that lives writes a sample of its device every second: in so many there is one even of a busy one."""

_LOOK_SECONDS = 0.1


def refuse_running_elsewhere(folder: Path) -> None:
    """Raise ``RunFolderError`` if the run still runs on a machine whose locks are not seen here.

    Some network file systems lock for each machine alone: a lock that is held there is free here. It bears
    the signature of a process that holds it or was killed. Waits for a new record of a run that was signed
    elsewhere and written recently: ``_HEARTBEATS_SECONDS`` if it has ended.
    """
    last = written(RunDir(folder))
    if last is None or abs(time.time() - last) >= RECENT_SECONDS:
        return
    try:
        with (folder / LOCK_NAME).open("rb") as file:
            signer = _read_holder(file.fileno())
    except OSError:
        return
    if signer.pid is None or signer.is_here:
        return
    journal = RunDir(folder).journal_path
    before, limit = _extent(journal), time.monotonic() + _HEARTBEATS_SECONDS
    while _extent(journal) == before:
        if time.monotonic() >= limit:
            return
        time.sleep(_LOOK_SECONDS)  # no event tells of what another machine writes
    what = f"{run_argument(folder)} is still running, {signer}: it has just written a record"
    raise RunFolderError(what, hint="log in there to watch or stop it")


def _extent(journal: Path) -> tuple[int, int] | None:
    """Which file it is, and its size. Opened each time: NFS answers from its cache otherwise."""
    try:
        with journal.open("rb") as file:
            status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_ino, status.st_size
