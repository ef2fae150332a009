"""The user's runs, newest first, found without opening any of their files."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from amptui.base.errors import RunFolderError
from amptui.runs.elsewhere import runs_elsewhere
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
    """The names of all saved runs, or those for which ``named`` is true; the one written last first.

    A run that has no journal, or whose folder cannot be read, counts as written when its folder last changed:
    it may be starting. Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    return [os.path.basename(folder) for folder in _newest_first(_saved_folders(matches))]  # noqa: PTH119


def run_folders() -> list[str]:
    """The folders of all runs of this user, saved and elsewhere, newest first as for :func:`kept_names`.

    Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    return _newest_first([*_saved_folders(None), *runs_elsewhere()])


def lock_files() -> list[LockFile]:
    """Those of all runs of this user, the one that was taken last first.

    Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    locks = []
    for folder in [*_saved_folders(None), *runs_elsewhere()]:
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
