"""Why a training could not go on, in one line: what, where and the mend."""

import traceback
from pathlib import Path
from types import TracebackType

import torch

from amptui import units
from amptui.errors import AmptuiError, DeviceError, ExperimentError

_OWN_FOLDER = Path(__file__).parent.parent
_TORCH_FOLDER = Path(torch.__file__).parent


def explain(error: BaseException, *, doing: str, batch_size: int | None) -> AmptuiError:
    """The one line for ``error``, raised while the trainer was ``doing`` something: ``"in step 500"``."""
    if isinstance(error, AmptuiError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        return _out_of_memory(doing, batch_size)
    if isinstance(error, MemoryError):
        return DeviceError(f"out of host memory {doing}", mend="use a smaller --batch-size")
    message, mend = known_mend(_message(error))
    name = type(error).__name__
    told = f"{name}: {message[:500]}" if message else name
    return ExperimentError(f"{told} ({_place(error.__traceback__)}{doing})", mend=mend)


def known_mend(message: str) -> tuple[str, str]:
    """What to tell of an error's ``message``, and the mend; all of it and nothing where none is known.

    CUDA's autocast refuses ``binary_cross_entropy`` in five lines (``ATen/autocast_mode.cpp``).
    """
    refused = "unsafe to autocast"
    before, found, _ = message.partition(refused)
    if not found or "binary_cross_entropy" not in before:
        return message, ""
    return before + refused, "use BCEWithLogitsLoss and leave the sigmoid out"


def _message(error: BaseException) -> str:
    """What ``error`` says in one line; nothing where it fails even in that."""
    try:
        return " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a person's exception may raise anything, and the run must still end
        return ""


def _out_of_memory(doing: str, batch_size: int | None) -> DeviceError:
    at = f" at batch size {batch_size}" if batch_size else ""
    halved = f"--batch-size {batch_size // 2}" if batch_size and batch_size > 1 else "a smaller batch"
    return DeviceError(f"CUDA out of memory {doing}{at}{_peak()}", mend=f"try {halved}, or AMP")


def _peak() -> str:
    """How much of the GPU was allocated at most; nothing where code on a CPU raised the error itself."""
    if not torch.cuda.is_available():
        return ""
    peak = torch.cuda.memory_stats().get("allocated_bytes.all.peak")
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return f" (peak {units.number_of_bytes(peak)} allocated of {units.number_of_bytes(total)})"


def _place(trace: TracebackType | None) -> str:
    """``file.py:12, `` of the innermost line of the person's own code, if there is one."""
    own = [
        frame
        for frame in traceback.extract_tb(trace)
        if not Path(frame.filename).is_relative_to(_OWN_FOLDER)
        and not Path(frame.filename).is_relative_to(_TORCH_FOLDER)
        and not frame.filename.startswith("<")
        and "site-packages" not in frame.filename
        and "/lib/python" not in frame.filename
    ]
    return f"{own[-1].filename}:{own[-1].lineno}, " if own else ""
