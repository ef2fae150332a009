"""States and weights as plain tensors: copied to host memory, saved, and loaded without running code."""

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from amptui.base.errors import DataError, OutputError, UsageError
from amptui.base.runfiles import temporary_beside
from amptui.base.text import one_line
from amptui.device.accelerator import PINNING
from amptui.recipe.request import SAFETENSORS

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""What ``torch.load(weights_only=True)`` reads besides tensors and containers."""

_WRITE_BYTES = 2**22

Keys = tuple[str | int, ...]
"""Where a tensor is in a state: ``("model", name)``, or ``("optimizer", "state", number, name)``."""


class Part(NamedTuple):
    """What one rank has of a tensor."""

    keys: Keys
    shape: Sequence[int]
    """Of the whole tensor."""
    offsets: Sequence[int]
    tensor: Tensor


class NotPlainError(TypeError):
    """A state holds an object that a file cannot store without running code on reading it."""


# ------------------------------------------------------------------------ containers


def replaced(state: Any, by: Callable[[Keys, Tensor], Any], keys: Keys = ()) -> Any:
    """The same, in plain containers, with what ``by`` returns for each tensor. Raises NotPlainError."""
    if isinstance(state, Tensor):
        return by(keys, state)
    if type(state) in _PLAIN:
        return state
    if isinstance(state, np.generic):
        return replaced(state.item(), by, keys)
    if isinstance(state, Mapping):
        return {replaced(key, by, keys): replaced(value, by, (*keys, key)) for key, value in state.items()}
    for kind in (list, tuple, set):
        if isinstance(state, kind):
            return kind(replaced(part, by, (*keys, index)) for index, part in enumerate(state))
    raise _not_plain(keys, state)


def plain_tensor(keys: Keys, tensor: Tensor) -> Tensor:
    """``tensor`` itself. Raises NotPlainError if it is of a subclass, which needs code to be read."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise _not_plain(keys, tensor)
    return tensor


def _not_plain(keys: Keys, value: object) -> NotPlainError:
    where = ".".join(map(str, keys))
    return NotPlainError(f"{where} is a {type(value).__name__}, which a checkpoint cannot store")


# ------------------------------------------------------------------------ copies


def host_copy(state: Any) -> tuple[Any, Callable[[], None]]:
    """A copy of ``state`` in host memory, and what waits until its copies from GPUs are complete.

    Tensors that are the same, such as tied weights, are the same in the copy. Empty ones on the meta device
    stay. Raises NotPlainError.
    """
    tensors: dict[object, Tensor] = {}

    def collect(keys: Keys, tensor: Tensor) -> Tensor:
        if not plain_tensor(keys, tensor).is_meta:
            tensors[_key(tensor)] = tensor  # kept alive, so that no other tensor gets its address
        return tensor

    state = replaced(state, collect)
    devices = {tensor.device for tensor in tensors.values() if tensor.device.type in PINNING}
    copies = {}
    for key, tensor in tensors.items():
        if tensor.device in devices and _is_plain(tensor):
            room = torch.empty_like(tensor, device="cpu", pin_memory=True, requires_grad=False)
            copies[key] = room.copy_(tensor.detach(), non_blocking=True)
        else:
            copies[key] = tensor.detach().cpu().clone()

    def wait() -> None:
        for device in devices:
            # Unlike a device's synchronize(), an event's is no error in torch's sync debug mode.
            event = torch.Event(device, enable_timing=False)
            event.record(torch.accelerator.current_stream(device.index))
            event.synchronize()

    def copied(_keys: Keys, tensor: Tensor) -> Tensor:
        return tensor if tensor.is_meta else copies[_key(tensor)]

    return replaced(state, copied), wait


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is nothing but strided numbers."""
    return tensor.layout == torch.strided and not tensor.is_quantized


def _key(tensor: Tensor) -> object:
    """Equal for two tensors only if they are the same numbers in the same memory."""
    if not _is_plain(tensor) or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


# ------------------------------------------------------------------------ files


class DiskFile:
    """A file for ``torch.save`` that keeps an error of the disk for the end of the ``with`` block.

    torch's writer is C++ code. Depending on the version, an exception from this file may end the process, so
    it raises none. A block that ends without an error returns when everything is on the disk.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._error: OSError | None = None
        self.size_bytes = 0
        """What was to be written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if self._error is not None:
                    raise self._error
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def write(self, data: bytes) -> int:
        """Write all of ``data``, unless an earlier write failed."""
        left = memoryview(data).cast("B")
        self.size_bytes += len(left)
        try:
            while left and self._error is None:
                # In pieces, so that not all pages of the file wait for a slow disk at once.
                left = left[os.write(self._descriptor, left[:_WRITE_BYTES]) :]
        except OSError as error:
            self._error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


def save_whole(content: object, descriptor: int) -> int:
    """``torch.save`` to ``descriptor``, and close it; the bytes, which are on the disk. Raises OSError."""
    with DiskFile(descriptor) as file:
        torch.save(content, file)  # type: ignore[arg-type]  # torch needs no more of a file
    return file.size_bytes


def load_plain(file: BinaryIO | Path) -> Any:
    """What ``torch.save`` wrote of tensors and plain containers, in host memory; no code in it is run.

    Raises ValueError for anything else, without torch's advice to load it by running its code, and whatever
    torch raises for a damaged archive.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        forbidden_global = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden_global is None:
        raise ValueError("it is damaged, or no file of torch.save")
    raise ValueError(
        f"it holds more than tensors ({forbidden_global[1]}), which loading would have to execute"
    )


_COMPILED = "_orig_mod."
"""What ``torch.compile(module)`` puts before the names of the module's parameters."""


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the weights and buffers in ``path`` into ``model``; prefixes of compiled models are ignored.

    Raises UsageError where names or shapes differ from the model's, and DataError for a file that holds no
    plain ``state_dict``.
    """
    names = {_plain_name(name): name for name in model.state_dict()}
    file_state = {_plain_name(name): value for name, value in _read(path).items()}
    state = {names.get(plain, plain): value for plain, value in file_state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        why = one_line(str(error)).removesuffix(".")
        what = f"{path} does not fit the model: {why}"
        raise UsageError(what, hint="check the model and its options") from error


def save_weights(
    model: nn.Module, experiment: object, path: Path, *, state: Mapping[str, Any] | None = None
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
