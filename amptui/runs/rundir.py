"""The folder of one run: where it is, what it is called, and the files that have their names there."""

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from amptui import wire
from amptui.errors import RunFolderError


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run's folder."""

    path: Path

    @property
    def journal_path(self) -> Path:
        """The run's records."""
        return self.path / "journal.jsonl"

    @property
    def run_json_path(self) -> Path:
        """What was asked, versions and hardware."""
        return self.path / "run.json"

    @property
    def lock_path(self) -> Path:
        """The file whose lock the living run holds."""
        return self.path / "run.lock"

    @property
    def checkpoints_path(self) -> Path:
        """The folder of what the run can go on from."""
        return self.path / "checkpoints"

    @property
    def holds_a_run(self) -> bool:
        """Whether a run was begun here, however it ended."""
        return any(map(os.path.lexists, (self.journal_path, self.run_json_path, self.checkpoints_path)))

    @property
    def holds_checkpoints(self) -> bool:
        """Whether there is one to go on from, whole or not."""
        return self.checkpoints_path.is_dir() and any(self.checkpoints_path.glob("step-*.pt"))

    def set_aside(self) -> None:
        """Make room for a run that begins again; what is here stays as ``journal.before-1.jsonl`` and so on.

        Raises ``RunFolderError``.
        """
        here = [
            path for path in (self.run_json_path, self.checkpoints_path, self.journal_path) if path.exists()
        ]
        number = next(n for n in count(1) if not any(_before(path, n).exists() for path in here))
        try:
            for path in here:
                path.rename(_before(path, number))
        except OSError as error:
            raise RunFolderError(f"cannot begin again in {self.path}: {reason(error)}") from error

    def write_run_json(self, content: Mapping[str, Any]) -> None:
        """Write ``run.json`` in one step: readers see the old file or the new one, never half of it.

        Raises ``RunFolderError``.
        """
        text = json.dumps(wire.plain(content), indent=2, allow_nan=False, ensure_ascii=True)
        beside = self.run_json_path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with beside.open("w", encoding="ascii") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.run_json_path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise RunFolderError(f"cannot write {self.run_json_path}: {reason(error)}") from error


def create_run_dir(requested: Path | None, model: str) -> RunDir:
    """A folder for a new run of ``model``: ``requested``, or a new one among the user's runs.

    Two that ask for the same folder at once may both get it: the run's lock lets one of them in. Raises
    ``RunFolderError`` when the folder cannot be created or written, or holds a run already.
    """
    if requested is None:
        return _new_among(default_base(), model)
    path = expanded(requested)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_create(path, error) from error
    refuse_a_run(RunDir(path))
    return _writable(RunDir(path))


def open_run_dir(path: Path) -> RunDir:
    """The folder of a run that goes on. Raises ``RunFolderError`` where there is none that can be written."""
    if not path.is_dir():
        raise RunFolderError(f"{path} is no folder", mend="give the folder of a run")
    return _writable(RunDir(path))


def refuse_a_run(run_dir: RunDir) -> None:
    """Raise ``RunFolderError`` if a run was begun in ``run_dir``."""
    if run_dir.holds_a_run:
        raise RunFolderError(f"{run_dir.path} holds a run already", mend=_CHOOSE)


def read_run_json(path: Path) -> dict[str, Any]:
    """What ``run.json`` says in the run's folder ``path``. Raises ``RunFolderError``."""
    file = RunDir(path).run_json_path
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} is damaged: not JSON") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{file} is damaged: not an object")
    return content


def default_base() -> Path:
    """Where runs are kept: ``$XDG_STATE_HOME/amptui/runs``, by default in ``~/.local/state``.

    Raises ``RunFolderError`` for a user without a home.
    """
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    if not state_home.is_absolute():
        state_home = home() / ".local" / "state"
    return state_home / "amptui" / "runs"


def home() -> Path:
    """The user's. Raises ``RunFolderError`` where there is none: a user without a name, as in a container."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise RunFolderError("this user has no home folder", mend="set HOME") from error


def said(folder: Path) -> str:
    """What a person writes to mean the run there: its name if it is kept among others, else its folder."""
    with suppress(RunFolderError):
        if folder.parent == default_base():
            return folder.name
    return str(folder)


def kept_runs() -> list[RunDir]:
    """The user's runs, the one that was written last first. Raises ``RunFolderError``."""
    base = default_base()
    try:
        folders = [RunDir(path) for path in base.iterdir()] if base.is_dir() else []
    except OSError as error:
        raise RunFolderError(f"cannot read {base}: {reason(error)}") from error
    runs = [folder for folder in folders if os.path.isdir(folder.path) and folder.holds_a_run]  # noqa: PTH112
    return sorted(runs, key=lambda run: (written(run) or 0.0, run.path), reverse=True)


def written(run_dir: RunDir) -> float | None:
    """When the run last wrote a record, in Unix seconds; None for one without a journal."""
    try:
        return run_dir.journal_path.stat().st_mtime
    except OSError:
        return None


def folder_name(model: str) -> str:
    """``model`` as one part of a path: letters, digits, ``.``, ``_`` and ``-`` of its last part."""
    last = re.split(r"[/\\:]", model.rstrip("/\\:"))[-1].removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:64] or "run"


def expanded(path: Path) -> Path:
    """``path`` with ``~`` written out; as it is where nobody's home is meant."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _before(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.before-{number}{path.suffix}")


def _new_among(base: Path, model: str) -> RunDir:
    name = f"{folder_name(model)}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, numbers = base / name, count(2)
    try:
        base.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
            except FileExistsError:
                path = base / f"{name}-{next(numbers)}"
            else:
                return RunDir(path)
    except OSError as error:
        raise _cannot_create(path, error) from error


_CHOOSE = "choose another folder with --run-dir"


def _writable(run_dir: RunDir) -> RunDir:
    if not os.access(run_dir.path, os.W_OK | os.X_OK):
        raise RunFolderError(f"cannot write in the run folder {run_dir.path}", mend=_CHOOSE)
    return run_dir


def _cannot_create(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot create the run folder {path}: {reason(error)}", mend=_CHOOSE)


def reason(error: OSError) -> str:
    """Why the system refused, in its words: ``no space left on device``."""
    return (error.strerror or str(error)).lower()
