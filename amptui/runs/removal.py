"""Removes a run that has ended: the files that a run folder consists of, and nothing else.

The folder is opened once, and everything is looked at and removed relative to it: no link in it is followed.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import LINK, Removal, opened_folder
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
from amptui.runs.rundir import LOCK_NAME, RunDir, is_of_a_script, is_own_folder_name, is_own_name, reason

_MAY_RESTART = ("died", "failed")
"""How a run stands between two starts of its ranks."""

_JOURNAL = re.compile(r"journal.*\.jsonl")

_CHECKPOINT = re.compile(r"step-\d{9,}\.pt")

_IN_CHECKPOINTS = re.compile(r"step-\d{9,}\.(pt|[0-9a-f]+-\d+\.shards)(\.writing|\.old)?|\.amptui-.*\.tmp")
"""What amptui writes in a folder of checkpoints."""

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_IN_SHARDS = re.compile(r"__\d+_0\.distcp(\.writing)?|\.metadata(\.writing)?|\.amptui-.*\.tmp")


def plan_removal(folder: Path) -> Removal:
    """What removing the run in ``folder`` would delete. Raises ``RunFolderError``, as :func:`remove` does."""
    _refuse_live(folder)
    with _opened(folder) as opened:
        removal, _ = _sweep(folder, opened, has_checkpoints=not is_of_a_script(RunDir(folder)))
    return replace(removal, restart_seconds=_restart_seconds(folder))


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
        has_checkpoints = not is_of_a_script(RunDir(folder))
        now, folders = _sweep(folder, opened, has_checkpoints=has_checkpoints)
        if replace(now, restart_seconds=plan.restart_seconds) != plan:
            raise RunFolderError(f"{folder} has changed since you were asked", hint="look at it again")
        for path in plan.files:
            os.unlink(path, dir_fd=opened)
        for path in reversed(folders):
            with suppress(OSError):  # what is not the run's is in it
                os.rmdir(path, dir_fd=opened)
        rest, _ = _sweep(folder, opened, has_checkpoints=has_checkpoints)
        left = (*rest.left, *rest.files)  # with what came meanwhile
        with suppress(FileNotFoundError):
            os.unlink(LOCK_NAME, dir_fd=opened)
    if not left:
        try:
            folder.rmdir()
        except OSError as error:  # something new is in it
            raise RunFolderError(f"cannot remove {folder}: {reason(error)}") from error
    return replace(plan, left=left)


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


def _sweep(folder: Path, opened: int, *, has_checkpoints: bool) -> tuple[Removal, list[str]]:
    """What of ``folder`` is the run's, its lock aside, and the folders in it that are. Raises OSError.

    Not ``has_checkpoints``: those beside a script's run are the script's own.
    """
    sizes: dict[str, int] = {}
    folders: list[str] = []
    left: list[str] = []

    def visit(parent: int, prefix: str, own: re.Pattern[str] | None) -> None:
        for name in sorted(os.listdir(parent)):
            path, status = f"{prefix}{name}", os.lstat(name, dir_fd=parent)
            is_folder = stat.S_ISDIR(status.st_mode)
            if own is not None:
                is_own = own.fullmatch(name) is not None and not (is_folder and own is _IN_SHARDS)
            elif is_own_folder_name(name):  # or a link in its place
                is_own = has_checkpoints and not stat.S_ISREG(status.st_mode)
            else:
                is_own = is_own_name(name) and not is_folder
            if not is_own:
                left.append(path)
            elif is_folder:
                folders.append(path)
                inner = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
                try:
                    visit(inner, f"{path}/", _IN_CHECKPOINTS if own is None else _IN_SHARDS)
                finally:
                    os.close(inner)
            elif path != LOCK_NAME:
                sizes[path] = status.st_size

    visit(opened, "", None)
    names = [path.rpartition("/")[2] for path in sizes]
    journals = sum(_JOURNAL.fullmatch(name) is not None for name in names)
    checkpoints = sum(_CHECKPOINT.fullmatch(name) is not None for name in names)
    removal = Removal(
        folder=folder,
        journals=journals,
        checkpoints=checkpoints,
        other_files=len(sizes) - journals - checkpoints,
        size_bytes=sum(sizes.values()),
        files=tuple(sizes),
        left=tuple(left),
    )
    return removal, folders
