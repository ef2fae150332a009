"""Explains an error of the training in one line: what failed, where, and a hint."""

import ctypes
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from amptui.base import units
from amptui.base.amp_errors import known_hint
from amptui.base.errors import AmptuiError, DeviceError, DeviceLostError, ExperimentError
from amptui.device.accelerator import current_device, memory_use, properties
from amptui.records.run import LOW_PRECISIONS

_OWN_FOLDER = Path(__file__).parent.parent
_TORCH_FOLDER = Path(torch.__file__).parent

_FROM_WORKER = re.compile(r"Caught \w+ in ([^\n]+)\.\nOriginal Traceback[^\n]*\n")
"""The start of the message with which torch's ``ExceptionWrapper`` passes on a DataLoader worker's error."""

_FRAME = re.compile(r'  File "(.+)", line (\d+)')

_OUT_OF_MEMORY = re.compile(
    r"(CUDA|HIP) error: out of memory|MPS backend out of memory|\b(CU|HIP)[A-Z]+_(STATUS_)?ALLOC_FAILED\b|"
    r"UR_RESULT_ERROR_OUT_OF_(DEVICE|HOST)_MEMORY"
)
"""Out-of-memory errors that do not come from torch's allocator: pinned memory, cuBLAS, cuDNN, cuFFT."""

_OTHER_DEVICE = re.compile(r"\b(HIP|XPU|MPS|level_zero)")
"""How torch, or a library below it, names a device without memory that is not NVIDIA's."""

_LOST = re.compile(
    "(CUDA|HIP) error: (device-side assert|an illegal memory access|an illegal instruction|"
    "misaligned address|unspecified launch failure|the launch timed out|uncorrectable ECC error|"
    "hardware stack error|"
    "invalid program counter|operation not supported on global/shared address space)|"
    "UR_RESULT_ERROR_DEVICE_LOST"
)
"""Errors of kernels after which every CUDA call fails ("inconsistent state" in the CUDA runtime API)."""

_COMPILER = ("torch._dynamo.", "torch._inductor.")
"""The modules of what ``torch.compile`` raises."""

_BOILERPLATE = re.compile(
    r"\s*(Search for `cuda|CUDA kernel errors might be asynchronously|For debugging consider passing|"
    r"Compile with `TORCH_USE_CUDA_DSA`|Device-side assertion tracking).*",
    re.DOTALL,
)
"""What torch appends to every CUDA error (``c10/cuda/CUDAException.cpp``)."""


def explain(
    error: BaseException, *, doing: str, batch_size: int | None, precision: str | None = None
) -> AmptuiError:
    """An error with one line and a hint for ``error``, raised while ``doing`` something: ``"in step 500"``.

    The hint for an out-of-memory error uses ``batch_size`` and ``precision``; None before the first step.
    """
    if isinstance(error, AmptuiError):
        return error
    if is_out_of_memory(error):
        return _out_of_memory(_message(error), doing, batch_size, precision)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in _message(error):
        hint = "use a smaller --batch-size" if batch_size else "use a smaller model or fewer data"
        return DeviceError(f"out of host memory {doing}", hint=hint)
    if is_device_lost(error):
        return _device_lost(error, doing)
    name, text, frames = type(error).__name__, _text(error), list(traceback.extract_tb(error.__traceback__))
    origin = _FROM_WORKER.match(text)
    if origin:
        # A DataLoader worker sends its traceback in the message, which follows the last frame.
        lines = text[origin.end() :].splitlines()
        places = [(number, place) for number, line in enumerate(lines) if (place := _FRAME.match(line))]
        last = places[-1][0] if places else 0
        start = next((n for n in range(last, len(lines)) if not lines[n].startswith(" ")), last)
        text = "\n".join(lines[start:]).removeprefix(name).removeprefix(": ")
        frames = [traceback.FrameSummary(place[1], int(place[2]), "") for _, place in places]
        doing = f"in {origin[1]}, {doing}"
    message, hint = known_hint(text)
    if type(error).__module__.startswith(_COMPILER):
        hint = "torch.compile failed: train without --compile, or resume with --compile off"
    what = f"{name}: {message[:500]}" if message else name
    return ExperimentError(f"{what} ({_user_line(frames)}{doing})", hint=hint)


def traceback_text(error: BaseException) -> str:
    """The traceback of ``error`` from the first line of the user's code on; all of it if there is none."""
    calls = error.__traceback__
    while calls is not None and not _is_users(calls.tb_frame.f_code.co_filename):
        calls = calls.tb_next
    if calls is None and not isinstance(error, SyntaxError):  # its message names the line
        calls = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, calls))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch's allocator or a CUDA library ran out of GPU memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(_message(error)) is not None


def is_device_lost(error: BaseException) -> bool:
    """Whether a kernel failed, after which every CUDA call in this process raises the same error."""
    return isinstance(error, RuntimeError) and _LOST.search(_message(error)) is not None


def never_free(owner: object) -> None:
    """Keep ``owner`` and everything it references until the process exits.

    After a kernel has failed, freeing pinned memory that was used in a copy aborts the process: torch records
    an event, which raises in a destructor (``ATen/core/CachingHostAllocator.h``).
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


def _text(error: BaseException) -> str:
    """The message of ``error``; empty if ``str()`` raises."""
    try:
        return _BOILERPLATE.sub("", str(error))
    except Exception:  # noqa: BLE001 - a user's exception may raise anything, and the run must still end
        return ""


def _message(error: BaseException) -> str:
    """The message of ``error`` in one line."""
    return " ".join(_text(error).split())


def _out_of_memory(message: str, doing: str, batch_size: int | None, precision: str | None) -> DeviceError:
    other = _OTHER_DEVICE.search(message)
    whose = "CUDA" if other is None else other[1].replace("level_zero", "XPU")
    at = f" at batch size {batch_size}" if batch_size else ""
    ways = [f"--batch-size {batch_size // 2}"] if batch_size and batch_size > 1 else []
    if precision is not None and precision not in LOW_PRECISIONS:
        ways.append("AMP")
    hint = "check what else uses the GPU (nvidia-smi), or use a smaller model"
    return DeviceError(
        f"{whose} out of memory {doing}{at}{_peak()}",
        hint=f"try {', or '.join(ways)}" if ways else hint,
    )


def _device_lost(error: BaseException, doing: str) -> DeviceLostError:
    """A kernel's error. CUDA reports it some calls later, so the traceback may point elsewhere."""
    message = _message(error)
    ways = ["look for a label or an index out of range"] if "device-side assert" in message else []
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        at = f"{_user_line(traceback.extract_tb(error.__traceback__))}{doing}"
    else:
        at = f"noticed {doing}"
        ways.append("run again with CUDA_LAUNCH_BLOCKING=1 to find the line that caused it")
    return DeviceLostError(f"{message[:500]} ({at})", hint=", or ".join(ways))


def _peak() -> str:
    """The peak allocated GPU memory; empty without a GPU."""
    device = current_device()
    use, total = memory_use(device), properties(device).memory_bytes
    if use is None:
        return ""
    peak, held = use.peak_allocated, units.number_of_bytes(use.peak_allocated or use.allocated)
    return f" ({'' if peak is None else 'peak '}{held} allocated of {units.number_of_bytes(total)})"


def _user_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """``file.py:12, `` for the innermost line of the user's code, if there is one."""
    for frame in reversed(frames):
        if _is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno}, "
    return ""


def _is_users(name: str) -> bool:
    """Whether the file ``name`` is neither a library's nor amptui's."""
    library = name.startswith("<") or "site-packages" in name or "/lib/python" in name
    return not (library or any(map(Path(name).is_relative_to, (_OWN_FOLDER, _TORCH_FOLDER))))
