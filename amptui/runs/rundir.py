"""The folder of one run: where it is, what it is called, the files in it, and whose they are."""

import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import FOLDER_MODE, is_another_users, names_in, replace_text

JOURNAL_NAME, LOCK_NAME = "journal.jsonl", "run.lock"

_OWN_FILE = re.compile(r"journal(\..+)?\.jsonl|run(\..+)?\.json|run\.(lock|sock)|output\.log")

_OTHERS_MAY_WRITE = 0o022

_CHOOSE = "choose another folder with --run-dir"


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run's folder."""

    path: Path

    @property
    def journal_path(self) -> Path:
        return self.path / JOURNAL_NAME

    @property
    def run_json_path(self) -> Path:
        """The options of the run, versions and hardware."""
        return self.path / "run.json"

    @property
    def output_path(self) -> Path:
        """What the run's process printed while a screen had the terminal."""
        return self.path / "output.log"

    @property
    def lock_path(self) -> Path:
        return self.path / LOCK_NAME

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def holds_a_run(self) -> bool:
        """Whether a run was started here, however it ended."""
        return any(map(os.path.lexists, (self.journal_path, self.run_json_path, self.checkpoints_path)))

    @property
    def holds_checkpoints(self) -> bool:
        """Whether there is any checkpoint, complete or not."""
        names = names_in(self.checkpoints_path)
        return any(name.startswith("step-") and name.endswith(".pt") for name in names)

    def set_aside(self) -> None:
        """Make room for a new start; the files here are kept as ``journal.before-1.jsonl`` and so on.

        Raises ``RunFolderError``.
        """
        paths = (self.run_json_path, self.checkpoints_path, self.journal_path)
        here = [path for path in paths if os.path.lexists(path)]
        number = next(n for n in count(1) if not any(os.path.lexists(_before(path, n)) for path in here))
        try:
            for path in here:
                path.rename(_before(path, number))
        except OSError as error:
            raise RunFolderError(f"cannot start again in {self.path}: {reason(error)}") from error

    def write_run_json(self, content: Mapping[str, Any]) -> None:
        """Replace ``run.json``. Raises ``RunFolderError``."""
        text = json.dumps(strictjson.plain(content), indent=2, allow_nan=False, ensure_ascii=True)
        try:
            replace_text(self.run_json_path, f"{text}\n")
        except OSError as error:
            raise RunFolderError(f"cannot write {self.run_json_path}: {reason(error)}") from error


def create_run_dir(requested: Path | None, model: str) -> RunDir:
    """A folder for a new run of ``model``: ``requested``, or a new one among the user's runs.

    Two processes may get the same folder at the same time; the run's lock then admits one. Raises
    ``RunFolderError`` if the folder cannot be created, is another user's, or already contains a run.
    """
    if requested is None:
        base = default_base()
        name = f"{folder_name(model)}-{time.strftime('%Y%m%d-%H%M%S')}"
        path, numbers = base / name, count(2)
        try:
            make_private(base)
            while True:
                try:
                    path.mkdir(FOLDER_MODE)
                except FileExistsError:
                    path = base / f"{name}-{next(numbers)}"
                else:
                    return RunDir(path)
        except OSError as error:
            raise _cannot_create(path, error) from error
    path = expanded(requested)
    try:
        path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        path = path.resolve()  # once: a model may change the current folder, and anybody a link
        if is_another_users(path):
            raise RunFolderError(f"the run folder {path} is another user's", hint=_CHOOSE)
    except OSError as error:
        raise _cannot_create(path, error) from error
    refuse_a_run(RunDir(path))
    return RunDir(path)


def open_run_dir(path: Path) -> RunDir:
    """The folder of a run to resume. Raises ``RunFolderError`` if it does not exist."""
    if not path.is_dir():
        raise RunFolderError(f"{path} is not a folder", hint="give the folder of a run")
    return RunDir(path.resolve())


def refuse_a_run(run_dir: RunDir) -> None:
    """Raise ``RunFolderError`` if a run was started in ``run_dir``."""
    if run_dir.holds_a_run:
        raise RunFolderError(f"{run_dir.path} already contains a run", hint=_CHOOSE)


def read_run_json(path: Path) -> dict[str, Any]:
    """The content of ``run.json`` in the run's folder ``path``. Raises ``RunFolderError``."""
    file = RunDir(path).run_json_path
    try:
        with file.open("rb") as opened:
            content = json.loads(opened.read(strictjson.MAX_LINE_BYTES))
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} is corrupt: not JSON") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{file} is corrupt: not a JSON object")
    return content


def is_of_a_script(run_dir: RunDir) -> bool:
    """Whether the run is of somebody's own script, as its ``run.json`` says: what it trains is not ours."""
    with suppress(RunFolderError):
        request = read_run_json(run_dir.path).get("asked")
        return isinstance(request, dict) and "script" in request
    return False


def default_base() -> Path:
    """The folder of all runs: ``$XDG_STATE_HOME/amptui/runs``, by default in ``~/.local/state``.

    Raises ``RunFolderError`` for a user without a home.
    """
    return xdg_folder("XDG_STATE_HOME", ".local/state") / "amptui" / "runs"


def default_data_dir() -> Path:
    """The folder of data sets: ``$XDG_CACHE_HOME/amptui``, by default in ``~/.cache``.

    Raises ``RunFolderError`` for a user without a home.
    """
    return xdg_folder("XDG_CACHE_HOME", ".cache") / "amptui"


def xdg_folder(variable: str, default: str) -> Path:
    """The folder named by the environment's ``variable``, by default ``default`` in the user's home.

    Raises ``RunFolderError`` if there is no home, as for an unnamed user in a container.
    """
    folder = Path(os.environ.get(variable, ""))
    if folder.is_absolute():  # the XDG base directory specification says to ignore a relative path
        return folder
    try:
        return Path.home() / default
    except RuntimeError as error:
        raise RunFolderError("this user has no home folder", hint="set HOME") from error


def run_argument(folder: Path) -> str:
    """RUN for the command line: the name of a saved run, else the folder."""
    with suppress(RunFolderError):
        base = default_base()
        if folder.parent in (base, base.resolve()):
            return folder.name
    return str(folder)


def written(run_dir: RunDir) -> float | None:
    """When the run last wrote a record, in Unix seconds; None for one without a journal."""
    try:
        return os.lstat(run_dir.journal_path).st_mtime
    except OSError:
        return None


def folder_name(model: str) -> str:
    """``model`` as a file name: letters, digits, ``.``, ``_`` and ``-`` of its last part."""
    last = re.split(r"[/\\:]", model.rstrip("/\\:"))[-1].removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:64] or "run"


def expanded(path: Path) -> Path:
    """``path`` with ``~`` expanded; unchanged if there is no such home."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _before(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.before-{number}{path.suffix}")


def make_private(folder: Path) -> None:
    """Create ``folder`` and its missing parents for this user alone, as XDG requires. Raises OSError."""
    try:
        folder.mkdir(FOLDER_MODE, exist_ok=True)
    except FileNotFoundError:
        make_private(folder.parent)
        folder.mkdir(FOLDER_MODE, exist_ok=True)


def _cannot_create(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot create the run folder {path}: {reason(error)}", hint=_CHOOSE)


def reason(error: OSError) -> str:
    """The system's reason, in lower case: ``no space left on device``."""
    return (error.strerror or str(error)).lower()


def is_own(run_dir: RunDir) -> bool:
    """Whether the user has the folder, and has written what the run asks for, and nobody else may."""
    status = run_dir.run_json_path.stat()
    is_safe = status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE
    return is_safe and not is_another_users(run_dir.path)


def resume_command(folder: Path) -> str:
    """The command that resumes the run in ``folder``."""
    return shlex.join(["amptui", "train", "--resume", run_argument(folder)])


def why_owned(path: Path, *, read: Iterable[Path] = ()) -> str:
    """Why the user may not have ``path`` written, in a few words; empty if it is none of amptui's files.

    Those are the journals in ``read``, and what a run has in its folder beside checkpoints.
    """
    real = Path(os.path.realpath(path))
    if _OWN_FILE.fullmatch(real.name) and RunDir(real.parent).holds_a_run:
        return f"{real.name} in {real.parent} belongs to a run"
    for journal in read:
        with suppress(OSError):  # one of them is not there
            if journal.samefile(path):
                return f"it is {journal}, which belongs to a run"
    return ""
