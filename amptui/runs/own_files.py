"""The files of run folders that amptui owns: no export and no saved weights take the place of one."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from amptui.runs.rundir import RunDir

_FOLDERS = r"checkpoints(\.before-\d+)?"

_FILES = (
    r"journal(\.before-\d+|\.after-step-\d+-\d+|\.\d+)?\.jsonl(\.\d+\.tmp)?"
    r"|run(\.before-\d+)?\.json|run\.\d+\.tmp|run\.(lock|sock)|output\.log|no-step"
)

_OWN_FOLDER = re.compile(_FOLDERS)

_OWN_NAME = re.compile(f"{_FOLDERS}|{_FILES}")


def is_own_name(name: str) -> bool:
    """Whether amptui has such a file or folder in a run folder."""
    return _OWN_NAME.fullmatch(name) is not None


def is_own_folder_name(name: str) -> bool:
    """Whether it has such a folder: checkpoints, perhaps of a run that was set aside."""
    return _OWN_FOLDER.fullmatch(name) is not None


def why_owned(path: Path, *, read: Iterable[Path] = (), created: Path | None = None) -> str:
    """Why the user may not have ``path`` written, in a few words; empty if it is none of amptui's files.

    Those are the journals in ``read``, and the files of any run folder, also those that are not there yet and
    other names of them: symbolic links anywhere, hard links to files of the folders of ``path`` and ``read``.
    ``created`` is a folder in which a run is about to start.
    """
    journals = tuple(read)
    real = Path(os.path.realpath(path))
    path_by_name = Path(os.path.realpath(path.parent)) / path.name  # which may be a link
    starts = None if created is None else Path(os.path.realpath(created))
    for place in dict.fromkeys((real, path_by_name)):
        for own in (place, *place.parents):
            names = _OWN_NAME if own is place else _OWN_FOLDER
            if names.fullmatch(own.name) and (own.parent == starts or is_run_folder(own.parent)):
                return f"{own.name} in {own.parent} belongs to a run"
    folders = dict.fromkeys((real.parent, path_by_name.parent, *(journal.parent for journal in journals)))
    for own in (*journals, *(own for folder in folders for own in _own_files(folder))):
        if _is_same(own, path):
            return f"it is {own}, which belongs to a run"
    return ""


def is_run_folder(folder: Path) -> bool:
    """Whether it is a run's folder; ``checkpoints`` alone is no sign, as other programs have such folders."""
    run = RunDir(folder)
    return any(map(os.path.lexists, (run.journal_path, run.run_json_path, run.lock_path)))


def _own_files(folder: Path) -> Iterator[Path]:
    """Those in ``folder``, if it is a run's and can be read."""
    if not is_run_folder(folder):
        return
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are what is looked at
    except OSError:
        return
    yield from (folder / name for name in names if _OWN_NAME.fullmatch(name))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)  # noqa: PTH121 - of two paths, none of which is the subject
    except OSError:
        return False
