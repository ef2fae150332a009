"""Removes a run that has ended: the files that a run folder consists of, and nothing else.

A link in it is removed, and not what it leads to.
"""

import re
import stat
from contextlib import suppress
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import Removal
from amptui.runs.lock import RunLock, holder, refuse_running_elsewhere
from amptui.runs.rundir import (
    LOCK_NAME,
    RunDir,
    is_of_a_script,
    is_own_folder_name,
    is_own_name,
    reason,
)

_JOURNAL = re.compile(r"journal.*\.jsonl")

_CHECKPOINT = re.compile(r"step-\d{9,}\.pt")

_IN_CHECKPOINTS = re.compile(r"step-\d{9,}\.(pt|[0-9a-f]+-\d+\.shards)(\.writing|\.old)?|\.amptui-.*\.tmp")
"""What amptui writes in a folder of checkpoints."""

_IN_SHARDS = re.compile(r"__\d+_0\.distcp(\.writing)?|\.metadata(\.writing)?|\.amptui-.*\.tmp")


def plan_removal(folder: Path) -> Removal:
    """What removing the run in ``folder`` would delete. Raises ``RunFolderError``, as :func:`remove` does."""
    try:
        _refuse(folder)
        return _sweep(folder)[0]
    except OSError as error:
        raise RunFolderError(f"cannot remove {folder}: {reason(error)}") from error


def remove(plan: Removal) -> Removal:
    """Delete the files that ``plan`` names, and their folder if nothing else is in it.

    Raises ``RunFolderError`` if the run is live or may start again, if it has changed since the plan, if its
    folder is a link or no run, and if a file cannot be deleted: those before it are gone then, and the run is
    still one that can be removed.
    """
    folder = plan.folder
    try:
        _refuse(folder)
        with RunLock.take(folder):
            # A run that begins now waits for the lock, and then finds that there is none here.
            now, folders = _sweep(folder)
            if now != plan:
                raise RunFolderError(f"{folder} has changed since you were asked", hint="look at it again")
            for name in plan.files:
                (folder / name).unlink()
            for inner in reversed(folders):
                with suppress(OSError):  # what is not the run's is in it
                    inner.rmdir()
            (folder / LOCK_NAME).unlink(missing_ok=True)
        if not plan.left:
            folder.rmdir()
    except OSError as error:
        raise RunFolderError(f"cannot remove {folder}: {reason(error)}") from error
    return plan


def _refuse(folder: Path) -> None:
    """Raise ``RunFolderError`` for what is no run that has ended."""
    trains = holder(folder)
    if trains is not None:
        raise RunFolderError(f"{folder} is live, {trains}", hint="stop it before you remove it")
    refuse_running_elsewhere(folder)
    if folder.is_symlink():
        raise RunFolderError(
            f"cannot remove {folder}: it is a symbolic link", hint="remove the link yourself"
        )
    if not RunDir(folder).holds_a_run:
        raise RunFolderError(f"cannot remove {folder}: there is no run in it")


def _sweep(folder: Path) -> tuple[Removal, list[Path]]:
    """What of ``folder`` is the run's, its lock aside, and the folders in it that are. Raises OSError."""
    sizes: dict[str, int] = {}
    folders: list[Path] = []
    left: list[str] = []
    has_checkpoints = not is_of_a_script(RunDir(folder))  # those beside a script's run are the script's own

    def visit(parent: Path, own: re.Pattern[str] | None) -> None:
        for path in sorted(parent.iterdir()):
            name, status = path.name, path.lstat()
            is_folder = stat.S_ISDIR(status.st_mode)
            if own is not None:
                is_own = own.fullmatch(name) is not None and not (is_folder and own is _IN_SHARDS)
            elif is_own_folder_name(name):  # or a link in its place
                is_own = has_checkpoints and not stat.S_ISREG(status.st_mode)
            else:
                is_own = is_own_name(name) and not is_folder
            if not is_own:
                left.append(str(path.relative_to(folder)))
            elif is_folder:
                folders.append(path)
                visit(path, _IN_CHECKPOINTS if own is None else _IN_SHARDS)
            elif path != folder / LOCK_NAME:
                sizes[str(path.relative_to(folder))] = status.st_size

    visit(folder, None)
    names = [Path(path).name for path in sizes]
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
