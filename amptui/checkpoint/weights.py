"""Files of plain weights: read into a new model with ``--init-weights``, written with ``--save-weights``."""

import os
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from amptui.base.errors import DataError, OutputError, UsageError
from amptui.base.runfiles import temporary_beside
from amptui.base.text import one_line
from amptui.checkpoint.states import load_plain, save_whole
from amptui.recipe.experiment import Experiment
from amptui.recipe.request import SAFETENSORS

_COMPILED = "_orig_mod."
"""What ``torch.compile(module)`` puts before the names of the module's parameters."""

_MAX_NAMES = 3
"""Names in an error's line at most."""


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the weights and buffers in ``path`` into ``model``; prefixes of compiled models are ignored.

    Raises UsageError where names or shapes differ from the model's, and DataError for a file that holds no
    plain ``state_dict``.
    """
    names = {_plain_name(name): name for name in model.state_dict()}
    file_state = {_plain_name(name): value for name, value in _read(path).items()}
    state = {names.get(plain, plain): value for plain, value in file_state.items()}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
        why = "; ".join(
            f"{len(keys):,} {kind}: {', '.join(keys[:_MAX_NAMES])}{', ...' if keys[_MAX_NAMES:] else ''}"
            for kind, keys in (("missing", missing), ("unexpected", unexpected))
            if keys
        )
    except RuntimeError as error:  # other shapes
        why = one_line(str(error)).removesuffix(".")
    if why:
        raise UsageError(f"{path} does not fit the model: {why}", hint="check the model and its options")


def save_weights(
    model: nn.Module, experiment: Experiment, path: Path, *, state: Mapping[str, Any] | None = None
) -> bool:
    """Write the model's ``state_dict`` to ``path``, whole or not at all; whether it is of averaged weights.

    Those are of the experiment's ``torch.optim.swa_utils.AveragedModel``, if it has one. Names are those of
    the model before it was compiled. ``state`` is the model's, if it no longer has it whole itself. Raises
    OutputError.
    """
    averaged = next((value for value in vars(experiment).values() if isinstance(value, AveragedModel)), None)
    if averaged is not None or state is None:
        state = (model if averaged is None else averaged.module).state_dict()
    plain = OrderedDict(
        (_plain_name(name), value.detach().cpu() if isinstance(value, Tensor) else value)
        for name, value in state.items()
    )
    # The versions of the modules' states, by their names: load_state_dict() converts older ones.
    versions = getattr(state, "_metadata", {})
    plain._metadata = {_plain_name(f"{name}.")[:-1]: version for name, version in versions.items()}  # type: ignore[attr-defined]
    unfinished = temporary_beside(path)
    try:
        if path.suffix == SAFETENSORS:
            from safetensors.torch import save_file

            # The format knows neither shared memory nor strides.
            dense = partial(torch.clone, memory_format=torch.contiguous_format)
            whole = {name: dense(value) for name, value in plain.items()}
            save_file(whole, unfinished, metadata={"format": "pt"})
            with unfinished.open("rb") as file:
                os.fsync(file)
        else:
            # Readable by whom the umask lets, as a file that the user saves.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            save_whole(plain, os.open(unfinished, flags, 0o666))
        unfinished.replace(path)
    except Exception as error:  # safetensors raises its own error for a full disk
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise OutputError(
            f"cannot write {path}: {why}", hint="`amptui train --resume --save-weights FILE` tries again"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return averaged is not None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.suffix == SAFETENSORS:
            from safetensors.torch import load_file

            weights: Any = load_file(path)
        else:
            weights = load_plain(path)
    except MemoryError:
        raise
    except Exception as error:  # a damaged archive, or the pickle in it, may raise anything
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        what = f"cannot read {path}: {why[:300]}"
        raise DataError(what, hint="save a plain state_dict: torch.save(model.state_dict(), FILE)") from error
    if not isinstance(weights, Mapping) or not any(isinstance(value, Tensor) for value in weights.values()):
        raise DataError(
            f"{path} holds no state_dict", hint="save one with torch.save(model.state_dict(), FILE)"
        )
    return weights


def _plain_name(name: str) -> str:
    return name.replace(_COMPILED, "")
