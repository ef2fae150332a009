"""Plans a training: its options, its folder, whether it goes on there; imports nothing heavy."""

import importlib.util
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amptui.base.errors import RunFolderError, UsageError
from amptui.base.prompt import complain
from amptui.ranks.world import refuse_unsupported
from amptui.recipe.request import SAFETENSORS, ModelSpec, TrainRequest, option_of, parse_model
from amptui.runs.find import resumable
from amptui.runs.lock import RunLock, refuse_running_elsewhere
from amptui.runs.rundir import (
    RunDir,
    create_run_dir,
    expanded,
    is_own,
    read_run_json,
    reason,
    why_owned,
)

RANK_VARIABLE = "AMPTUI_RANK"
"""The environment's variable in which a rank's process is told what to train."""

_MAY_CHANGE = (
    *("epochs", "steps", "device", "checkpoint_every", "data_dir", "interactive"),
    *("cudnn_benchmark", "compile_mode", "save_weights", "workers", "nproc", "max_restarts"),
    "hang_timeout",
)
"""What may change when a run is resumed: its length, devices and files, who watches, what speeds it up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is about to start or resume."""

    request: TrainRequest
    """Whether screens show the run is its ``interactive``; else it writes lines."""
    spec: ModelSpec
    run_dir: RunDir
    json: bool = False
    """Whether these are every record as JSON."""
    quiet: bool = False
    """The terminal gets no bell and no notification."""

    def text(self) -> str:
        """As JSON, for a rank."""
        fields = {"asked": self.request.as_json(), "run_dir": str(self.run_dir.path.absolute())}
        flags = {"resume": self.request.resume, "interactive": self.request.interactive}
        return json.dumps({**fields, **flags, "json": self.json, "quiet": self.quiet})

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Inverse of :meth:`text`."""
        fields: dict[str, Any] = json.loads(text)
        run_dir = RunDir(Path(fields.pop("run_dir")))
        request = replace(
            TrainRequest.from_json(fields.pop("asked")),
            checkpoint_dir=run_dir.checkpoints_path,
            resume=fields.pop("resume"),
            interactive=fields.pop("interactive"),
        )
        return cls(request, parse_model(request.model), run_dir, **fields)


def plan_new(request: TrainRequest, run_dir: Path | None) -> Plan:
    """A new run; creates its folder. Raises UsageError and RunFolderError."""
    spec = parse_model(request.model)
    refuse_unsupported(request, request.nproc)
    if request.nproc == 1 and request.max_restarts:
        raise UsageError("--max-restarts is for the ranks of --nproc", hint="leave out --max-restarts")
    if request.nproc == 1 and request.hang_timeout is not None:
        raise UsageError("--hang-timeout is for the ranks of --nproc", hint="leave out --hang-timeout")
    _check_weights(request, run_dir)
    folder = create_run_dir(run_dir, spec.name)
    saved_request = replace(request, model=spec.anywhere, checkpoint_dir=folder.checkpoints_path)
    return Plan(saved_request, spec, folder)


def plan_resumed(given: Mapping[str, Any], text: str, *, trust: bool = False) -> Plan:
    """The run that ``text`` names, resumed from its newest checkpoint with its original options.

    ``given`` holds the fields of ``TrainRequest`` that the command line sets now. Raises UsageError if they
    differ in more than ``_MAY_CHANGE``, and RunFolderError if the run cannot be resumed, or is not the user's
    own: without ``trust`` nobody else says which file runs, is read or is written.
    """
    folder = resumable(text, say=complain)
    try:
        saved = TrainRequest.from_json(read_run_json(folder.path)["asked"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"{folder.run_json_path} does not hold the options of the run"
        raise RunFolderError(what, hint="start a new run") from error
    if not trust and not is_own(folder):
        what = f"{folder.run_json_path} is another user's, or others may write it"
        raise RunFolderError(what, hint="add --trust to run what it says")
    if "model" in given:
        given = {**given, "model": parse_model(given["model"]).anywhere}
    for name, value in given.items():
        before = getattr(saved, name)
        if name not in _MAY_CHANGE and value != before:
            then, now = _as_option(name, before), _as_option(name, value)
            what = f"{folder.path.name} was started with {then}, not {now}"
            raise UsageError(what, hint="leave out that option, or start a new run without --resume")
    changed = {name: value for name, value in given.items() if name in _MAY_CHANGE}
    request = replace(saved, **changed, checkpoint_dir=folder.checkpoints_path, resume=True)
    if request.nproc > 1:
        refuse_unsupported(request, request.nproc)
    _check_weights(request, folder.path)
    return Plan(request, parse_model(request.model), folder)


def _check_weights(request: TrainRequest, run_dir: Path | None) -> None:
    """Raise UsageError where a file of weights cannot be read or written, before the run leaves any trace.

    The folder of the run itself may be missing: it is created next.
    """
    initial = None if request.resume else request.init_weights  # the checkpoint holds newer ones
    for option, text in (("--init-weights", initial), ("--save-weights", request.save_weights)):
        if text is not None and text.endswith(SAFETENSORS) and not importlib.util.find_spec("safetensors"):
            raise UsageError(f"{option} {text} needs safetensors", hint="pip install safetensors")
    if initial is not None:
        trouble, path = "", Path(initial)
        try:
            if stat.S_ISREG(path.stat().st_mode):
                path.open("rb").close()
            else:
                trouble = "not a file"
        except OSError as error:
            trouble = reason(error)
        if trouble:
            raise UsageError(f"--init-weights {initial}: {trouble}", hint="check the path")
    if request.save_weights is not None and (trouble := _why_unwritable(Path(request.save_weights), run_dir)):
        raise UsageError(f"--save-weights {request.save_weights}: {trouble}", hint="name another file")


def _why_unwritable(path: Path, run_dir: Path | None) -> str:
    """Why no file can take the place of ``path``; empty if one can, as far as that is known now."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "not a file"  # the new file would replace a device
    except FileNotFoundError:
        pass
    except OSError as error:
        return reason(error)
    if trouble := why_owned(path):
        return trouble
    next_created = expanded(run_dir).absolute() if run_dir is not None else None
    if path.parent.is_dir():
        return "" if os.access(path.parent, os.W_OK | os.X_OK) else "its folder cannot be written"
    is_created = next_created is not None and path.parent in (next_created, *next_created.parents)
    return "" if is_created else "no such folder"


def can_go_on(run_dir: Path) -> bool:
    """Whether a run can be resumed there; one that died before its first checkpoint is set aside.

    Raises RunFolderError if it is running or the folder cannot be written.
    """
    folder = RunDir(expanded(run_dir))
    if not folder.path.is_dir() or not folder.holds_a_run:
        return False
    if not folder.holds_checkpoints:
        refuse_running_elsewhere(folder.path)
        with RunLock.take(folder.path):
            folder.set_aside()
    return folder.holds_a_run


def _as_option(name: str, value: object) -> str:
    """An option and its value as on the command line: ``--lr 0.01``."""
    option = option_of(name)
    if value is True:
        return option
    if value is None or value is False or value == {}:
        return f"no {option}"
    if isinstance(value, Mapping):
        value = ", ".join(f"{key}={part}" for key, part in value.items())
    return f"{value}" if name == "model" else f"{option} {value}"
