"""The sampling thread: one DeviceSample per interval, of the GPUs, torch's allocator and the host."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from amptui.base.cores import memory_limits
from amptui.device.nvml import NullProbe, open_probe
from amptui.records.run import Note, Record
from amptui.records.samples import AllocatorSample, DeviceSample, HostSample

_Value = TypeVar("_Value")


class Sampler:
    """Emits a `DeviceSample` when NVML has started, and then every interval, from a daemon thread.

    NVML may take seconds to start, and a call for a GPU that has fallen off the bus may never return: then no
    sample follows, and the screen says how old the last one is.

    ``read_allocator`` and ``emit`` are called in the sampling thread.
    """

    def __init__(
        self,
        emit: Callable[[Record], object],
        *,
        open_probe: Callable[[], NullProbe] = open_probe,
        read_allocator: Callable[[], AllocatorSample | None] = lambda: None,
        interval_seconds: float = 1.0,
    ) -> None:
        self._emit = emit
        self._open_probe = open_probe
        self._read_allocator = read_allocator
        self._interval_seconds = interval_seconds
        self._thread = threading.Thread(target=self._sample_until_stopped, name="device-sampler", daemon=True)
        self._reported: set[str] = set()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start to sample; a sampler can be started once."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> bool:
        """Stop sampling and wait at most ``timeout`` seconds for it.

        False if a call into the driver is still running: the thread ends with the call or the process, and
        emits nothing more.
        """
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _sample_until_stopped(self) -> None:
        probe = self._or_else("opening NVML", self._open_probe, NullProbe("no GPU data: opening NVML failed"))
        host = HostSample()
        while not self._stopping.is_set():
            began = time.monotonic()
            gpus = self._or_else("GPU sampling", probe.sample, None)
            host = self._or_else("host sampling", partial(sample_host, host), HostSample())
            sample = DeviceSample(
                time=time.time(),
                gpus=gpus or (),
                host=host,
                allocator=self._or_else("reading torch's allocator", self._read_allocator, None),
                note=probe.note if gpus is not None else "no GPU data: sampling failed",
            )
            if not self._stopping.is_set():
                self._emit(sample)
            self._stopping.wait(max(0.0, self._interval_seconds - (time.monotonic() - began)))
        self._or_else("closing NVML", probe.close, None)

    def _or_else(self, what: str, call: Callable[[], _Value], otherwise: _Value) -> _Value:
        """What ``call`` returns; if it raises, ``otherwise``, and a Note the first time."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a fault in one source must not cost the others' figures
            if what not in self._reported and not self._stopping.is_set():
                self._reported.add(what)
                text = " ".join(f"{what} failed: {type(error).__name__}: {error}".split())
                self._emit(Note(time=time.time(), severity="warning", text=text))
            return otherwise


def sample_host(last: HostSample, root: Path = Path("/")) -> HostSample:
    """CPU, memory and this process's memory, under the tightest limit: a container's or the machine's.

    psutil counts CPU time from the last call *of the same thread*: the first has no figure, nor has the next
    if there was nothing in the ``last``. ``root`` is the folder in which ``proc`` and ``sys`` are looked for.
    """
    machine, cpu_percent = psutil.virtual_memory(), psutil.cpu_percent()
    total_bytes, folder = min(memory_limits(root), default=(machine.total, root))
    if total_bytes < machine.total:
        # Kubernetes and Docker leave out the file cache, too: it grows with every file that is read.
        used_bytes = None
        with suppress(OSError, ValueError, LookupError):
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            current_bytes = int((folder / "memory.current").read_text())
            used_bytes = max(0, current_bytes - int(statistics["inactive_file"]))
    else:  # "available" and not "free": the kernel frees the page cache when memory is needed
        used_bytes, total_bytes = machine.total - machine.available, machine.total
    return HostSample(
        cpu_percent=None if last.memory_total_bytes is None else cpu_percent,
        memory_used_bytes=used_bytes,
        memory_total_bytes=total_bytes,
        process_rss_bytes=psutil.Process().memory_info().rss,
    )


def watch_gpu(uuid: str, take: Callable[[Record], object]) -> Callable[[], object]:
    """Sample one GPU about once a second, in a thread, until the returned function is called."""
    sampler = Sampler(take, open_probe=partial(open_probe, uuid))
    sampler.start()
    return sampler.stop
