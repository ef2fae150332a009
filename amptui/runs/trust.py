"""Whose a run is: which files one of somebody else may not choose, and which of a run's nothing replaces."""

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.masking import masked
from amptui.models import CATALOGUE
from amptui.recipe.request import TrainRequest
from amptui.runs.rundir import RunDir, default_base, default_data_dir, read_run_json, run_argument

_OTHERS_MAY_WRITE = 0o022


def is_own(folder: Path) -> bool:
    """Whether the run in ``folder`` is the user's own.

    It is among the saved runs, this user created it, and nobody else may write its folder or ``run.json``.
    """
    try:
        base = default_base().resolve()
        paths = (folder.resolve(), RunDir(folder).run_json_path)
        statuses = [path.stat(follow_symlinks=False) for path in paths]
        # A saved run may be a link to another disk, and there may be links to it.
        places = (folder.absolute().parent.resolve(), folder.resolve().parent)
    except (OSError, RunFolderError):
        return False
    user = os.geteuid()
    return base in places and all(s.st_uid == user and not s.st_mode & _OTHERS_MAY_WRITE for s in statuses)


def named_files(request: TrainRequest) -> dict[str, tuple[str, list[str]]]:
    """What the options name besides the defaults of this user and the models of amptui.

    By field: what resuming the run does with it, ``writes /home/me/weights.pt``, and the words of a command
    line that name it.
    """
    files: dict[str, tuple[str, list[str]]] = {}
    model, weights, data = request.model, request.save_weights, request.data_dir
    if model not in CATALOGUE:
        files["model"] = f"executes {model}", [_model_argument(request)]
    if weights is not None:
        files["save_weights"] = f"writes {weights}", [f"--save-weights={weights}"]
    defaults = [Path()]  # it was never named
    with suppress(RunFolderError):  # without a home there is no default
        defaults.append(default_data_dir())
    if data not in defaults:
        files["data_dir"] = f"reads data in {data}", [f"--data-dir={data}"]
    settings = [f"{name}={text}" for name, text in request.settings.items()]
    outside = [f"{name}={text}" for name, text in request.settings.items() if _may_name_a_file(text)]
    if outside:  # the command line names all settings or none
        files["settings"] = f"uses {', '.join(outside)}", [f"--set={setting}" for setting in settings]
    return files


def resume_command(folder: Path) -> str:
    """The command that resumes the run in ``folder``; with all that it names if it is not the user's own."""
    words = ["amptui", "train", "--resume", run_argument(folder)]
    if not is_own(folder):
        with suppress(RunFolderError, KeyError, TypeError, ValueError, AttributeError):
            request = TrainRequest.from_json(read_run_json(folder)["asked"])
            words.insert(2, _model_argument(request))
            files = named_files(request)
            files.pop("model", None)
            words += masked([word for _, named in files.values() for word in named])  # a failure records it
    return shlex.join(words)


def _model_argument(request: TrainRequest) -> str:
    """MODEL on the command line, where it must not look like an option."""
    return f"./{request.model}" if request.model.startswith("-") else request.model


def _may_name_a_file(text: str) -> bool:
    """Whether a setting leads out of the current folder or to something in it.

    Only the experiment knows what its settings mean, and it is not loaded yet.
    """
    try:
        float(text)
    except ValueError:
        return os.sep in text or text.startswith("~") or os.path.lexists(text)
    return False


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
