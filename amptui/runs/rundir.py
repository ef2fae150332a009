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

    Raises ``RunFolderError`` when it cannot be created or written, or holds a run already.
    """
    if requested is None:
        return _new_among(default_base(), model)
    path = requested.expanduser()
    run_dir = RunDir(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        holds_a_run = run_dir.journal_path.exists()
    except OSError as error:
        raise _cannot_create(path, error) from error
    if holds_a_run:
        raise RunFolderError(f"{path} holds a run already", mend="choose another folder with --run-dir")
    if not os.access(path, os.W_OK | os.X_OK):
        raise RunFolderError(f"cannot write in the run folder {path}", mend=_CHOOSE)
    return run_dir


def default_base() -> Path:
    """Where runs are kept: ``$XDG_STATE_HOME/amptui/runs``, by default in ``~/.local/state``."""
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    if not state_home.is_absolute():
        state_home = Path.home() / ".local" / "state"
    return state_home / "amptui" / "runs"


def folder_name(model: str) -> str:
    """``model`` as one part of a path: letters, digits, ``.``, ``_`` and ``-`` of its last part."""
    last = re.split(r"[/\\:]", model.rstrip("/\\:"))[-1].removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:64] or "run"


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


def _cannot_create(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot create the run folder {path}: {reason(error)}", mend=_CHOOSE)


def reason(error: OSError) -> str:
    """Why the system refused, in its words: ``no space left on device``."""
    return (error.strerror or str(error)).lower()
