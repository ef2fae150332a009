"""Whether a run may be live although nothing holds its lock: on another machine, or between two starts."""

import os
import time
from contextlib import suppress
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_to_read
from amptui.runs.lock import Holder, last_signer
from amptui.runs.rundir import RunDir, read_run_json, written

RECENT_SECONDS = 600.0
"""A run of another machine that wrote more lately may live, whatever its lock says here: a live one writes
every second. The rest is for clocks that differ."""

RESTART_SECONDS = 120.0
"""How long ranks may take to be started again. The launcher gives the old ones 30 s to end."""

_HEARTBEATS_SECONDS = 5.0
"""A run that lives writes a sample of its device every second: in so many there is one even of a busy one."""

_LOOK_SECONDS = 0.1


def recent_signer_elsewhere(folder: Path) -> Holder | None:
    """Who signed the lock of ``folder`` on another machine and may live, as the run was written recently.

    Some network file systems lock for each machine alone: a lock that is held there is free here.
    """
    signer, last = last_signer(folder), written(RunDir(folder))
    if signer is None or signer.is_here or last is None or abs(time.time() - last) >= RECENT_SECONDS:
        return None
    return signer


def writer_elsewhere(folder: Path) -> Holder | None:
    """Who writes the run in ``folder`` on another machine now; None if nobody does.

    Waits for a new record if somebody may: ``_HEARTBEATS_SECONDS`` for a run that has died lately.
    """
    signer = recent_signer_elsewhere(folder)
    if signer is None:
        return None
    journal = RunDir(folder).journal_path
    before, limit = _extent(journal), time.monotonic() + _HEARTBEATS_SECONDS
    while _extent(journal) == before:
        if time.monotonic() >= limit:
            return None
        time.sleep(_LOOK_SECONDS)  # no event tells of what another machine writes
    return signer


def may_start_again(run_dir: RunDir) -> bool:
    """Whether the run, which has no live process, was written just now and has a launcher that restarts."""
    wrote = written(run_dir)
    return wrote is not None and time.time() - wrote <= RESTART_SECONDS and has_restarts(run_dir)


def has_restarts(run_dir: RunDir) -> bool:
    """Whether a launcher starts the run's ranks again when they fail."""
    with suppress(RunFolderError, KeyError, TypeError):
        restarts = read_run_json(run_dir.path)["asked"]["max_restarts"]
        return isinstance(restarts, int) and restarts > 0
    return False


def _extent(journal: Path) -> tuple[int, int] | None:
    """Which file it is, and its size. Opened each time: NFS answers from its cache otherwise."""
    try:
        with open_to_read(journal) as file:
            status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_ino, status.st_size
