"""The accelerator that torch trains on: the only file that knows CUDA, ROCm, XPU and MPS apart.

What torch offers for all of them is used as it is, everywhere: ``torch.accelerator``, ``torch.Stream`` and
``torch.Event``. Here is the rest: what each kind of device cannot do, and what torch has only in a module
of its own for each (``torch.cuda``, ``torch.xpu``, ``torch.mps``). ROCm is a build of torch whose device type
is ``cuda`` as well.
"""

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a kind of device can do; by default as little as possible, with which any device can train."""

    title: str
    """What people call it: ``CUDA``."""
    timed_events: bool = False
    """Events time the device's work, and the host reads values later, from pinned memory, without waiting.

    Without them a value is read where it was computed: the host waits for the device in each step.
    """
    peak_memory: bool = False
    """The allocator knows its peak, and not only what it holds now."""
    float64: bool = False
    float8: bool = False
    """Whether torch multiplies float8 on some of them."""
    triton: bool = False
    """``torch.compile`` makes its kernels with Triton; elsewhere it needs a C++ compiler."""
    graph_capture: bool = False
    """``torch.compile`` can record kernels as CUDA graphs."""
    tf32: bool = False
    """Whether TF32 exists; which GPUs have it is a question of their compute capability."""
    amp: Literal["fp16", "bf16"] = "fp16"
    """What AMP means unless somebody says otherwise."""


_CPU = Capabilities(title="CPU", float64=True, float8=True, amp="bf16")

_ASYNCHRONOUS: dict[str, Any] = {
    "timed_events": True,
    "peak_memory": True,
    "float64": True,
    "triton": True,
}

_NVIDIA = Capabilities(title="CUDA", **_ASYNCHRONOUS, float8=True, graph_capture=True, tf32=True)

_ROCM = Capabilities(title="ROCm", **_ASYNCHRONOUS, graph_capture=True)
"""An MI300 multiplies float8, but in formats of its own (``float8_e4m3fnuz``), and amptui was never run on
one."""

_XPU = Capabilities(title="XPU", **_ASYNCHRONOUS | {"float64": False}, amp="bf16")
"""Some of Intel's GPUs have no float64 (Arc A), and there torch's GradScaler fails (pytorch issue 147731).
That torch multiplies float8 on others is new and untested here."""

_MPS = Capabilities(title="MPS")
"""Its events are timed by waiting for the whole device (``aten/src/ATen/mps/MPSEvent.mm``), there is one
stream (``MPSGuardImpl.h``), Metal has no float64, torch pins no memory for it, and converts nothing to float8
there (pytorch issue 148420)."""

TRAINABLE = ("cpu", "cuda", "xpu", "mps")
"""The types of devices that the command line takes."""

PINNING = frozenset({"cuda", "xpu"})
"""Those for which copies from page-locked host memory do not wait."""


def capabilities(device: torch.device) -> Capabilities:
    """What devices of the type of ``device`` can do."""
    if device.type == "cuda":
        return _NVIDIA if torch.version.hip is None else _ROCM
    kinds = {"cpu": _CPU, "xpu": _XPU, "mps": _MPS}
    return kinds.get(device.type) or Capabilities(title=device.type)


# ----------------------------------------------------------------------------- which there are


def default_device() -> torch.device:
    """The first accelerator that torch can use, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if accelerator is None else torch.device(accelerator.type, 0)


def is_available(device_type: str) -> bool:
    """Whether torch can use a device of this type here."""
    if device_type == "mps":  # torch.mps has a function for that only in newer releases
        return torch.backends.mps.is_available()
    check = _own_function(torch.device(device_type), "is_available")
    return device_type == "cpu" or (check is not None and bool(check()))


def device_count(device_type: str) -> int:
    """How many accelerators of this type torch can use."""
    count = _own_function(torch.device(device_type), "device_count")
    return int(count()) if count is not None and is_available(device_type) else 0


def enter_device(device: torch.device) -> None:
    """Make ``device`` the current device, which is per thread."""
    enter = _own_function(device, "set_device")
    if enter is not None:  # on MPS there is only one
        enter(device)


def current_device() -> torch.device:
    """The accelerator that this thread's work goes to, else the CPU."""
    device = default_device()
    read = _own_function(device, "current_device")
    return device if read is None else torch.device(device.type, read())


# ----------------------------------------------------------------------------- what each is


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a device says of itself."""

    name: str
    """The product's: ``NVIDIA H200``; empty for a CPU, which torch does not ask."""
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    """NVIDIA's: (9, 0)."""
    architecture: str = ""
    """AMD's: ``gfx942``."""
    uuid: str | None = None
    """NVML's name of an NVIDIA GPU."""


def properties(device: torch.device) -> Properties:
    """What ``device`` says of itself; starts its driver."""
    if device.type == "cpu":
        return Properties(name="")
    if device.type == "mps":
        read_name: Callable[[], str] = getattr(torch.backends.mps, "get_name", str)
        name = read_name() or f"Apple GPU ({platform.machine()})"
        return Properties(name=name, memory_bytes=int(torch.mps.recommended_max_memory()))
    read = getattr(torch.get_device_module(device), "get_device_properties", None)
    if read is None:
        return Properties(name=device.type)
    facts: Any = read(device)
    memory: int | None = getattr(facts, "total_memory", None)
    plain = Properties(name=str(getattr(facts, "name", device.type)), memory_bytes=memory)
    if device.type != "cuda":
        return plain
    if torch.version.hip is not None:
        architecture = str(facts.gcnArchName).partition(":")[0]
        return Properties(name=plain.name, memory_bytes=memory, architecture=architecture)
    return Properties(
        name=plain.name,
        memory_bytes=memory,
        compute_capability=(facts.major, facts.minor),
        uuid=f"GPU-{facts.uuid}",
    )


def runtime_versions() -> dict[str, str]:
    """The versions of what torch was built for, by name: ``cuda`` or ``rocm``; none in a build for CPUs."""
    numbers = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    return {name: number for name, number in numbers.items() if number}


# ----------------------------------------------------------------------------- memory


class MemoryUse(NamedTuple):
    """What torch's allocator holds of a device, in bytes."""

    allocated: int
    reserved: int
    peak_allocated: int | None
    """Since :func:`restart_peak`; None where the allocator does not know."""


def memory_use(device: torch.device) -> MemoryUse | None:
    """What torch's allocator holds of ``device``; None for one without an allocator, such as a CPU."""
    if device.type == "mps":
        held = int(torch.mps.current_allocated_memory()), int(torch.mps.driver_allocated_memory())
        return MemoryUse(*held, None)
    if not capabilities(device).peak_memory:
        return None
    stats = torch.get_device_module(device).memory_stats(device)
    return MemoryUse(
        allocated=stats["allocated_bytes.all.current"],
        reserved=stats["reserved_bytes.all.current"],
        peak_allocated=stats["allocated_bytes.all.peak"],
    )


def restart_peak(device: torch.device) -> None:
    """Count the peak of allocated memory from here on."""
    reset = _own_function(device, "reset_peak_memory_stats")
    if reset is not None:
        reset(device)


def free_bytes(device: torch.device) -> int | None:
    """The memory that no process uses; None where that cannot be known."""
    if device.type == "mps":
        return max(0, int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory()))
    read = _own_function(device, "mem_get_info")
    return None if read is None else int(read(device)[0])


def empty_cache(device: torch.device) -> None:
    """Give what torch's allocator keeps for later back to the device."""
    empty = _own_function(device, "empty_cache")
    if empty is not None:
        empty()


def _own_function(device: torch.device, name: str) -> Callable[..., Any] | None:
    """A function of the module that torch has for devices of this type; None where it lacks it."""
    if device.type == "cpu":
        return None
    function: Callable[..., Any] | None = getattr(torch.get_device_module(device), name, None)
    return function


# ----------------------------------------------------------------------------- random numbers


def random_states(device: torch.device) -> tuple[Tensor, ...]:
    """The states of the generators of all accelerators of its type, in host memory; none for a CPU."""
    read = _own_function(device, "get_rng_state")
    return () if read is None else tuple(read(index) for index in range(device_count(device.type)))


def set_random_states(device: torch.device, states: Iterable[Tensor]) -> None:
    """Set the generators of the first accelerators of its type."""
    for index, state in enumerate(states):
        torch.get_device_module(device).set_rng_state(state, index)


# ----------------------------------------------------------------------------- graphs and scalers


def capture_check(device: torch.device) -> Callable[[], bool]:
    """Asks whether this thread's stream is being recorded as a graph; always False where none can be."""
    return _own_function(device, "is_current_stream_capturing") or bool


def older_scalers() -> tuple[type, ...]:
    """Classes that older scripts make instead of ``torch.amp.GradScaler``: subclasses that do the same."""
    return (torch.cuda.amp.GradScaler,)
