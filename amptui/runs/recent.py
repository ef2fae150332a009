"""The user's runs, newest first, found without opening any of their files."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from amptui.base.errors import RunFolderError
from amptui.runs.elsewhere import runs_elsewhere
from amptui.runs.folder_probe import FolderProbe
from amptui.runs.lock import holder
from amptui.runs.rundir import JOURNAL_NAME, LOCK_NAME, RunDir, default_base, reason

# Paths are text here: with 20,000 runs, Path and RunDir would take as long as the file system.


class LockFile(NamedTuple):
    """The lock file of a run. The largest was taken last, so that a list of them can be sorted."""

    is_signed: bool
    """Whether it names a process. A run that ends empties its lock; a full disk leaves it empty, too."""
    written: float
    """When it was taken or released, in Unix seconds by the file system's clock."""
    folder: str
    """Of the run."""


def kept_names(matches: Callable[[str], object] | None = None) -> list[str]:
    """The names of all saved runs, or those for which ``matches`` is true; the one written last first.

    A run that has no journal, or whose folder cannot be read, counts as written when its folder last changed:
    it may be starting. Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    return [os.path.basename(folder) for folder in _newest_first(_saved_folders(matches))]  # noqa: PTH119


class RunFolders(NamedTuple):
    """The folders of all runs of this user, saved and elsewhere."""

    newest_first: list[str]
    """By the same times as :func:`kept_names`."""
    unreachable: list[str]
    """Those on a file system that does not answer, in no order."""


def run_folders() -> RunFolders:
    """Raises ``RunFolderError`` if the folder of all runs cannot be read."""
    elsewhere = runs_elsewhere()
    return RunFolders(_newest_first([*_saved_folders(None), *elsewhere.runs]), elsewhere.unreachable)


class ListedRun(NamedTuple):
    """A run of the list."""

    folder: str
    is_live: bool
    """Whether a process trains it now. One that could not sign its lock, as the disk was full, does not
    count."""
    written: float
    """When its journal was last written, in Unix seconds; of one without a journal its folder."""
    is_reachable: bool = True
    """Whether its file system answers; else no more is known of it."""


def listed_runs(probe: FolderProbe) -> list[ListedRun]:
    """All runs of this user: live ones first, the last started one at the top, then the others by age.

    The order of live ones stays as they are written. ``probe`` looks at those elsewhere; what it cannot reach
    comes last. Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    elsewhere = runs_elsewhere(probe)
    looks = [_look(folder) for folder in _saved_folders(None)]
    answers = probe.look(elsewhere.runs, _look)
    looks += answers.values()
    live = [(signed, run) for signed, run in looks if signed is not None and run.is_live]
    ended = [(run.written, run) for _, run in looks if not run.is_live and run.written != _NO_RUN]
    listed = [run for runs in (live, ended) for _, run in sorted(runs, reverse=True)]
    lost = [*elsewhere.unreachable, *(folder for folder in elsewhere.runs if folder not in answers)]
    return [*listed, *(ListedRun(folder, False, 0.0, is_reachable=False) for folder in sorted(lost))]


def _look(folder: str) -> tuple[float | None, ListedRun]:
    """When a process signed its lock, if one did, and the run."""
    written = _last_change(folder)
    signed = _signed(folder) if written != _NO_RUN else None
    # Only a lock that names a process is opened: that would take longer than all else.
    is_live = signed is not None and holder(folder) is not None
    return signed, ListedRun(folder, is_live, written)


def _signed(folder: str) -> float | None:
    """When a process signed the lock, in Unix seconds; None if none did, or released it since."""
    try:
        status = os.lstat(f"{folder}{os.sep}{LOCK_NAME}")
    except OSError:
        return None
    return status.st_mtime if status.st_size else None


def lock_files() -> list[LockFile]:
    """Those of all runs of this user, the one that was taken last first.

    Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    locks = []
    for folder in [*_saved_folders(None), *runs_elsewhere().runs]:
        with suppress(OSError):  # none, or none that this user could read
            status = os.lstat(f"{folder}{os.sep}{LOCK_NAME}")
            locks.append(LockFile(status.st_size > 0, status.st_mtime, folder))
    locks.sort(reverse=True)
    return locks


def _newest_first(folders: list[str]) -> list[str]:
    """Those that hold a run."""
    dated = [(_last_change(folder), folder) for folder in folders]
    dated.sort(reverse=True)
    return [folder for when, folder in dated if when != _NO_RUN]


_NO_RUN = float("-inf")


def _last_change(folder: str) -> float:
    """When the run in ``folder`` was last written, in Unix seconds; `_NO_RUN` if there is none."""
    try:
        return os.lstat(f"{folder}{os.sep}{JOURNAL_NAME}").st_mtime
    except FileNotFoundError:
        if not RunDir(Path(folder)).holds_a_run:
            return _NO_RUN
    except OSError:
        pass  # whether it is a run cannot be known, so the list says that it cannot be read
    try:
        return os.lstat(folder).st_mtime
    except OSError:
        return _NO_RUN  # deleted meanwhile


def _saved_folders(matches: Callable[[str], object] | None) -> list[str]:
    base = default_base()
    try:
        with os.scandir(base) as entries:
            return [
                entry.path
                for entry in entries
                if (matches is None or matches(entry.name)) and _is_folder(entry)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunFolderError(f"cannot read {base}: {reason(error)}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True  # a link to a folder that cannot be reached
