"""The index of runs that were started with ``--run-dir``, outside of the folder of all runs.

It is a folder of symbolic links, one for each run folder, named after what it links to. A link is made and
read in one system call, so that no other process ever sees half of one, and takes no room on a full disk.
Nothing follows a link here: where it leads is only text, which anybody may have forged.
"""

import hashlib
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from amptui.base.errors import RunFolderError
from amptui.runs.folder_probe import FolderProbe
from amptui.runs.own_files import is_run_folder
from amptui.runs.rundir import JOURNAL_NAME, default_base, make_private

INDEX_NAME = "elsewhere"
"""The index's folder, beside that of all runs."""

_NAME_DIGITS = 32
"""Hexadecimal digits of an entry's name: 128 bits, by which no two folders meet."""

_AWAY_SECONDS = 365 * 86_400.0
"""How long an entry is kept at least whose folder may only be away."""


def note_elsewhere(folder: Path) -> None:
    """Enter the run folder ``folder``, unless it is among the saved runs or entered already. Never raises.

    It belongs in a thread of its own: a home on a network that hangs must not hold up a run.
    """
    with suppress(OSError, ValueError, RunFolderError):
        path = os.path.realpath(folder)
        if Path(path).parent != Path(os.path.realpath(default_base())):
            index = index_folder()
            make_private(index)
            if _is_index(index):
                _enter(path)


class RunsElsewhere(NamedTuple):
    """The folders in the index that are this user's runs, in no order."""

    runs: list[str]
    unreachable: list[str]
    """Those on a file system that does not answer."""


def runs_elsewhere(probe: FolderProbe | None = None) -> RunsElsewhere:
    """What is in the index, looked at with ``probe``, or with a new one. Never raises.

    An entry whose folder is gone or holds no run any more is dropped from the index. If the folder around
    it is not there either, a disk may be unmounted or another machine's: that entry stays for a year. What
    is no entry is left alone. A run is this user's if the folder and its journal are: what somebody else has
    put there is not listed.
    """
    try:
        index = index_folder()
        names = os.listdir(index) if _is_index(index) else []  # noqa: PTH208 - names are all that is needed
    except (OSError, RunFolderError):
        return RunsElsewhere([], [])
    entries = {path: name for name in names if (path := _folder_of(index, name)) is not None}
    states = (probe or FolderProbe()).look(list(entries), _state_of)
    for path, state in states.items():
        name = entries[path]
        if state == "gone" or (state == "away" and _is_old(index, name)):
            _drop(index, name, path)
    own = [path for path, state in states.items() if state == "own"]
    return RunsElsewhere(own, [path for path in entries if path not in states])


def index_folder() -> Path:
    """Where the index is. Raises ``RunFolderError`` for a user without a home."""
    return default_base().with_name(INDEX_NAME)


def _is_index(index: Path) -> bool:
    """Whether it is a folder of this user's, and no link to one in which names would be removed."""
    status = os.lstat(index)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _enter(path: str) -> None:
    """Link to ``path``. Raises OSError."""
    entry = index_folder() / _entry_name(path)
    try:
        entry.symlink_to(path)
    except FileExistsError:
        if _folder_of(entry.parent, entry.name) is None:  # damaged
            entry.unlink()
            entry.symlink_to(path)


def _entry_name(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:_NAME_DIGITS]


def _folder_of(index: Path, name: str) -> str | None:
    """The folder that an entry is of; None if it is no entry."""
    try:
        path = os.readlink(f"{index}{os.sep}{name}")  # noqa: PTH115 - it is text, and may be of thousands
    except OSError:
        return None
    return path if os.path.isabs(path) and _entry_name(path) == name else None  # noqa: PTH117 - it is text


def _state_of(path: str) -> str:
    """``own``: a run of this user's. ``gone``: no run. ``away``: nor the folder around it.

    Empty for one that cannot be read or is not theirs.
    """
    user = os.geteuid()
    try:
        folder = os.lstat(path)
        if not stat.S_ISDIR(folder.st_mode) or not is_run_folder(Path(path)):
            return "gone"
        with suppress(FileNotFoundError):  # it may be starting
            if os.lstat(f"{path}{os.sep}{JOURNAL_NAME}").st_uid != user:
                return ""
    except (FileNotFoundError, NotADirectoryError):
        return "gone" if os.path.isdir(os.path.dirname(path)) else "away"  # noqa: PTH112, PTH120 - as above
    except OSError:
        return ""
    return "own" if folder.st_uid == user else ""


def _is_old(index: Path, name: str) -> bool:
    try:
        return time.time() - os.lstat(f"{index}{os.sep}{name}").st_mtime > _AWAY_SECONDS
    except OSError:
        return False


def _drop(index: Path, name: str, path: str) -> None:
    with suppress(OSError):  # another process was faster, or the index may not be written
        os.unlink(f"{index}{os.sep}{name}")  # noqa: PTH108 - as the other paths here
        # A run may have begun there since it was looked at, and have met the entry that is now dropped.
        if _state_of(path) == "own":
            _enter(path)
