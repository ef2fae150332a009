"""Removes a run that has ended: the files that a run folder consists of, and nothing else.

The folder is opened once, and everything is looked at and removed relative to it, so that no link, neither
one that is there nor one that somebody puts there meanwhile, leads out of it.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import LINK, opened_folder
from amptui.runs.kept_run import look_at
from amptui.runs.lock import (
    RECENT_SECONDS,
    RESTART_SECONDS,
    RunLock,
    has_restarts,
    holder,
    may_start_again,
    recent_signer_elsewhere,
)
from amptui.runs.rundir import LOCK_NAME, RunDir, is_of_a_script, reason
from amptui.runs.trust import is_own_folder_name, is_own_name

_MAY_RESTART = ("died", "failed")
"""How a run stands between two starts of its ranks."""

_JOURNAL = re.compile(r"journal.*\.jsonl")

_CHECKPOINT = re.compile(r"step-\d{9,}\.pt")

_IN_CHECKPOINTS = re.compile(r"step-\d{9,}\.(pt|[0-9a-f]+-\d+\.shards)(\.writing|\.old)?|\.amptui-.*\.tmp")
"""What amptui writes in a folder of checkpoints."""

_IN_SHARDS = re.compile(r"__\d+_0\.distcp(\.writing)?|\.metadata(\.writing)?|\.amptui-.*\.tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is removed, or would be."""

    folder: Path
    journals: int = 0
    checkpoints: int = 0
    other_files: int = 0
    size_bytes: int = 0
    files: tuple[str, ...] = ()
    """Their paths in the folder, but for its lock's."""
    left: tuple[str, ...] = ()
    """Names in the folder that are not the run's: they stay, and so does the folder."""
    restart_seconds: float | None = None
    """For how long it has written nothing, if a launcher restarts its ranks and it did not end as asked."""


def plan_removal(folder: Path) -> Removal:
    """What removing the run in ``folder`` would delete. Raises ``RunFolderError``, as :func:`remove` does."""
    _refuse_live(folder)
    with _opened(folder) as opened:
        return replace(_Sweep(folder).over(opened), restart_seconds=_restart_seconds(folder))


def remove(plan: Removal) -> Removal:
    """Delete the files that ``plan`` names, and their folder if nothing else is in it.

    Raises ``RunFolderError`` if the run is live or may start again, if it has changed since the plan, if its
    folder is a link or no run, if it is somebody else's, and if a file cannot be deleted: those before it are
    gone then, and the run is still one that can be removed.
    """
    folder = plan.folder
    _refuse_live(folder)
    with _opened(folder) as opened, RunLock.take(folder):
        # A run that begins now waits for the lock, and then finds that there is none here.
        if replace(_Sweep(folder).over(opened), restart_seconds=plan.restart_seconds) != plan:
            raise RunFolderError(f"{folder} has changed since you were asked", hint="look at it again")
        removal = _Sweep(folder, deletes=frozenset(plan.files)).over(opened)
        with suppress(FileNotFoundError):
            os.unlink(LOCK_NAME, dir_fd=opened)
    if not removal.left:
        try:
            folder.rmdir()
        except OSError as error:  # something new is in it
            raise RunFolderError(f"cannot remove {folder}: {reason(error)}") from error
    return replace(removal, restart_seconds=plan.restart_seconds)


def _refuse_live(folder: Path) -> None:
    trains = holder(folder)
    if trains is not None:
        raise RunFolderError(f"{folder} is live, {trains}", hint="stop it before you remove it")
    signer = recent_signer_elsewhere(folder)
    if signer is not None:
        minutes = f"{RECENT_SECONDS / 60:.0f} minutes"
        what = f"{folder} may be live, {signer}: it was written in the last {minutes}"
        raise RunFolderError(what, hint="make sure that it has ended there, and wait as long")
    # Between two starts of its ranks a run has no process, and nobody holds its lock.
    if _restart_seconds(folder) is not None and may_start_again(RunDir(folder)):
        what = f"{folder} may be starting again: it was written in the last {RESTART_SECONDS:.0f} s"
        raise RunFolderError(what, hint="make sure that its launcher has ended, and wait as long")


def _restart_seconds(folder: Path) -> float | None:
    """How long to wait for a restart of the run in ``folder``; None if it ended as asked, or has no launcher.

    A script's run says that it failed before it is started again.
    """
    run_dir = RunDir(folder)
    return RESTART_SECONDS if has_restarts(run_dir) and look_at(run_dir).state in _MAY_RESTART else None


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    if folder.is_symlink():
        raise RunFolderError(f"cannot remove {folder}: {LINK}", hint="remove the link yourself")
    try:
        with opened_folder(folder) as opened:
            if os.fstat(opened).st_uid != os.geteuid():
                raise RunFolderError(f"cannot remove {folder}: it is another user's")
            if not RunDir(folder).holds_a_run:
                raise RunFolderError(f"cannot remove {folder}: there is no run in it")
            yield opened
    except OSError as error:
        raise RunFolderError(f"cannot remove {folder}: {reason(error)}") from error


class _Sweep:
    """Goes through a run folder, and counts what is the run's; or deletes, of that, the files ``deletes``."""

    def __init__(self, folder: Path, *, deletes: frozenset[str] | None = None) -> None:
        self._deletes = deletes
        # Checkpoints beside a script's run are the script's own.
        self._has_checkpoints = not is_of_a_script(RunDir(folder))
        self._files: list[str] = []
        self._removal = Removal(folder=folder)

    def over(self, opened: int) -> Removal:
        """The whole folder. Raises OSError."""
        left = []
        for name in sorted(os.listdir(opened)):
            mode = os.lstat(name, dir_fd=opened).st_mode
            is_folder = stat.S_ISDIR(mode)
            if is_own_folder_name(name) and (stat.S_ISREG(mode) or not self._has_checkpoints):
                left.append(name)
            elif is_folder and is_own_folder_name(name):
                left += self._inside(opened, name, name, _IN_CHECKPOINTS)
            elif is_folder or not is_own_name(name) or not self._take(opened, name, name):
                left.append(name)
        return replace(self._removal, files=tuple(self._files), left=tuple(left))

    def _inside(self, parent: int, name: str, path: str, own: re.Pattern[str]) -> list[str]:
        """The folder ``name``, with all in it that ``own`` fits; the paths of what stays in it."""
        left = []
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(name, flags, dir_fd=parent)
        try:
            for inner in sorted(os.listdir(opened)):  # noqa: PTH208 - a descriptor, not a path
                is_folder = stat.S_ISDIR(os.lstat(inner, dir_fd=opened).st_mode)
                inner_path = f"{path}/{inner}"
                if not own.fullmatch(inner) or (is_folder and own is _IN_SHARDS):
                    left.append(inner_path)
                elif is_folder:
                    left += self._inside(opened, inner, inner_path, _IN_SHARDS)
                elif not self._take(opened, inner, inner_path):
                    left.append(inner_path)
        finally:
            os.close(opened)
        if self._deletes is not None and not left:
            os.rmdir(name, dir_fd=parent)
        return left

    def _take(self, opened: int, name: str, path: str) -> bool:
        """Count a file, or a link in place of one, and delete it; false for one that is not to be deleted.

        The lock is left to the caller.
        """
        if name == LOCK_NAME:
            return True
        if self._deletes is not None and path not in self._deletes:
            return False
        size_bytes = os.lstat(name, dir_fd=opened).st_size
        removal = self._removal
        is_journal, is_checkpoint = bool(_JOURNAL.fullmatch(name)), bool(_CHECKPOINT.fullmatch(name))
        self._removal = replace(
            removal,
            journals=removal.journals + is_journal,
            checkpoints=removal.checkpoints + is_checkpoint,
            other_files=removal.other_files + (not is_journal and not is_checkpoint),
            size_bytes=removal.size_bytes + size_bytes,
        )
        self._files.append(path)
        if self._deletes is not None:
            os.unlink(name, dir_fd=opened)
        return True
