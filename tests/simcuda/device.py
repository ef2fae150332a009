"""The pretended GPU as a program on it sees it: what it counts, every wait of the host, and its settings.

An entry point of ``torch.backends`` calls :func:`load` at the end of torch's import, in child processes too.
"""

import atexit
import ctypes
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RUNTIME, KERNELS, NCCL = "libsimcudart.so", "libsimkernels.so", "libsimnccl.so"

_ON_WAIT = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_double, ctypes.c_int)
_ON_FAULT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


@dataclass(frozen=True)
class Wait:
    """One time that the host waited for the device, or would have."""

    what: str
    """The function of CUDA, or the operator that waits in CUDA."""
    microseconds: float
    """How long; 0 where the device had nothing left to do."""
    stack: tuple[tuple[str, int, str], ...]
    """File, line and function, innermost first."""

    @property
    def place(self) -> str:
        """The innermost frame of the project's own code: ``device/readback.py:146 DeviceReadback._wait``."""
        for file, line, name in self.stack:
            if "/amptui/" in file or "/models/" in file:
                return f"{file.rpartition('/amptui/')[2]}:{line} {name}"
        return f"{self.stack[0][0]}:{self.stack[0][1]}" if self.stack else "no Python frame"

    def __str__(self) -> str:
        return f"{self.what} at {self.place}"


def is_present() -> bool:
    return RUNTIME in os.environ.get("LD_PRELOAD", "")


class _Device:
    """The libraries of this process, and what was recorded through them."""

    def __init__(self) -> None:
        folder = next(
            Path(path).parent for path in os.environ["LD_PRELOAD"].split(os.pathsep) if RUNTIME in path
        )
        self.runtime = ctypes.CDLL(str(folder / RUNTIME), mode=ctypes.RTLD_GLOBAL)
        self.runtime.sim_set.argtypes = (ctypes.c_char_p, ctypes.c_double)
        self.runtime.sim_get.argtypes, self.runtime.sim_get.restype = (ctypes.c_char_p,), ctypes.c_double
        self.kernels = ctypes.CDLL(str(folder / KERNELS))
        self.waits: list[Wait] = []
        self.faults: list[str] = []
        self._callbacks = _ON_WAIT(self._wait), _ON_FAULT(self._fault)
        self.runtime.sim_on_wait(self._callbacks[0])
        self.runtime.sim_on_fault(self._callbacks[1])
        self.log = os.environ.get("SIMCUDA_LOG")
        # What torch's own statics call when the process ends finds no Python to be heard by.
        atexit.register(self._fall_silent)

    def _fall_silent(self) -> None:
        self.runtime.sim_on_wait(None)
        self.runtime.sim_on_fault(None)

    def _wait(self, what: bytes, microseconds: float, _pending: int) -> None:
        collects = gc.isenabled()
        gc.disable()  # what a collection frees may call CUDA, in the middle of this call of it
        try:
            self._record(what, microseconds)
        finally:
            if collects:
                gc.enable()

    def _record(self, what: bytes, microseconds: float) -> None:
        stack = []
        try:
            frame = sys._getframe(2)
        except ValueError:
            frame = None  # a thread of torch's, with no Python in it
        while frame is not None:
            stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
            frame = frame.f_back
        self.waits.append(Wait(what.decode(), microseconds, tuple(stack)))
        self._write("wait", str(self.waits[-1]))

    def _fault(self, what: bytes) -> None:
        self.faults.append(what.decode())
        self._write("fault", what.decode())

    def _write(self, kind: str, text: str) -> None:
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"{os.getpid()} {kind} {text}\n")


def load() -> None:
    """Put the pretended operators in place of CUDA's, if this process runs on the pretended GPU."""
    if is_present():
        _loaded()


@cache
def _loaded() -> _Device:
    return _Device()


def take_waits() -> list[Wait]:
    waits = _loaded().waits
    taken = waits[:]
    del waits[: len(taken)]
    return taken


def take_faults() -> list[str]:
    """What a real device would have punished, now or later, since the last call."""
    faults = _loaded().faults
    taken = faults[:]
    del faults[: len(taken)]
    return taken


def take_operators() -> Counter[str]:
    """How often each operator was sent to the device since the last call; copies to and from it count too."""
    buffer = ctypes.create_string_buffer(1 << 20)
    _loaded().kernels.sim_take_counts(buffer, ctypes.c_int64(len(buffer)))
    lines = (line.split("\t") for line in buffer.value.decode().splitlines())
    return Counter({name: int(count) for name, count in lines})


def read(name: str) -> float:
    """A setting or a count by its name in ``src/device.cpp``."""
    return float(_loaded().runtime.sim_get(name.encode()))


def configure(**values: float) -> None:
    """Change settings: ``kernel_us``, ``memory_mib``, ``failing_mallocs``, ``broken`` and others."""
    for name, value in values.items():
        _loaded().runtime.sim_set(name.encode(), value)


@contextmanager
def configured(**values: float) -> Iterator[None]:
    before = {name: read(name) for name in values}
    configure(**values)
    try:
        yield
    finally:
        configure(**before)


def watched(run: Callable[[], object]) -> list[Wait]:
    take_waits()
    run()
    return take_waits()
