"""Whose a run is: one of somebody else's is not resumed, and nothing replaces a run's own files."""

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from amptui.runs.rundir import RunDir, run_argument

_OTHERS_MAY_WRITE = 0o022


def is_own(run_dir: RunDir) -> bool:
    """Whether the user has written what the run asks for, and nobody else may."""
    status = run_dir.run_json_path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE


def resume_command(folder: Path) -> str:
    """The command that resumes the run in ``folder``."""
    return shlex.join(["amptui", "train", "--resume", run_argument(folder)])


_OWN_FOLDER = re.compile(r"checkpoints(\.before-\d+)?")

_OWN_FILE = re.compile(
    r"journal(\.before-\d+|\.after-step-\d+-\d+)?\.jsonl|run(\.before-\d+)?\.json|run\.(lock|sock)"
    r"|output\.log|no-step|\.amptui-[0-9a-f]+\.tmp"
)


def is_own_folder_name(name: str) -> bool:
    """Whether amptui has such a folder in a run folder: checkpoints, perhaps of a run that was set aside."""
    return _OWN_FOLDER.fullmatch(name) is not None


def is_own_name(name: str) -> bool:
    """Whether it has such a file or folder there."""
    return is_own_folder_name(name) or _OWN_FILE.fullmatch(name) is not None


def why_owned(path: Path, *, read: Iterable[Path] = (), created: Path | None = None) -> str:
    """Why the user may not have ``path`` written, in a few words; empty if it is none of amptui's files.

    Those are the journals in ``read``, and the files of any run folder, also those that are not there yet.
    ``created`` is a folder in which a run is about to start.
    """
    real = Path(os.path.realpath(path))
    starts = None if created is None else Path(os.path.realpath(created))
    for own in (real, *real.parents):
        if is_own_name(own.name) if own is real else is_own_folder_name(own.name):
            run = RunDir(own.parent)
            # Checkpoints alone are no sign of a run, as other programs have such folders.
            marks = (run.journal_path, run.run_json_path, run.lock_path)
            if own.parent == starts or any(map(os.path.lexists, marks)):
                return f"{own.name} in {own.parent} belongs to a run"
    for journal in read:
        with suppress(OSError):  # one of them is not there
            if journal.samefile(path):
                return f"it is {journal}, which belongs to a run"
    return ""
