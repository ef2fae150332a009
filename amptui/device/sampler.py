"""The sampling threads: one DeviceSample per interval, even if NVML hangs."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from amptui.device.host import HostProbe
from amptui.device.nvml import NullProbe, open_probe
from amptui.records.run import Note, Record
from amptui.records.samples import AllocatorSample, DeviceSample, GpuSample, HostSample

_Value = TypeVar("_Value")


class _Reading(NamedTuple):
    """One answer of the probe."""

    gpus: tuple[GpuSample, ...]
    note: str


class Sampler:
    """Emits a `DeviceSample` at once and then every interval, from a daemon thread.

    NVML may take seconds to start, and a call for a GPU that has fallen off the bus may never return.
    So the probe is opened, queried and closed in a second daemon thread; while that one is late, samples
    have GPUs without data and a note that says so.

    ``read_allocator`` is called in the sampling thread; ``emit`` is called in both.
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
        self._threads: tuple[threading.Thread, ...] = ()
        self._reported: set[str] = set()
        self._changed = threading.Condition()  # guards what follows
        self._stopping = False
        self._is_requested = False
        self._answer: _Reading | None = None

    def start(self) -> None:
        """Start to sample; a sampler can be started once."""
        if self._threads:
            raise RuntimeError("a sampler is started once")
        for name, work in (
            ("device-sampler", self._sample_until_stopped),
            ("gpu-probe", self._answer_until_stopped),
        ):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads += (thread,)

    def stop(self, timeout: float = 1.0) -> bool:
        """Stop sampling and wait at most ``timeout`` seconds for it.

        False if a call into the driver is still running: its thread ends with the call or the process, and
        emits nothing more.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _sample_until_stopped(self) -> None:
        """The sampling thread."""
        host = HostProbe()
        newest = _Reading((), "waiting for NVML")
        while not self._stopping:
            began = time.monotonic()
            answer = self._ask_gpus()
            if answer is None:  # the last known GPUs while the probe is late; none before the first answer
                gpus = tuple(GpuSample(uuid=gpu.uuid, name=gpu.name) for gpu in newest.gpus)
                answer = _Reading(gpus, "NVML does not answer" if gpus else newest.note)
            newest = answer
            sample = DeviceSample(
                time=time.time(),
                gpus=newest.gpus,
                host=self._or_else("host sampling", host.sample, HostSample()),
                allocator=self._or_else("reading torch's allocator", self._read_allocator, None),
                note=newest.note,
            )
            if not self._stopping:
                self._emit(sample)
            left_seconds = self._interval_seconds - (time.monotonic() - began)
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, max(0.0, left_seconds))

    def _answer_until_stopped(self) -> None:
        """The probe's thread: one answer for each time it is asked."""
        nothing = NullProbe("no GPU data: opening NVML failed")
        probe = self._or_else("opening NVML", self._open_probe, nothing)
        failed = _Reading((), "no GPU data: sampling failed")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._is_requested)
            if self._stopping:
                break
            reading = self._or_else("GPU sampling", lambda: _Reading(probe.sample(), probe.note), failed)
            with self._changed:
                self._answer, self._is_requested = reading, False
                self._changed.notify_all()
        self._or_else("closing NVML", probe.close, None)

    def _ask_gpus(self) -> _Reading | None:
        """The probe's answer, or None if it takes longer than an interval or the sampler stops."""
        with self._changed:
            if self._answer is None:  # else it came late: asking again would keep every later one late
                self._is_requested = True
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping or self._answer is not None, self._interval_seconds)
            answer, self._answer = self._answer, None
            return answer

    def _or_else(self, what: str, call: Callable[[], _Value], otherwise: _Value) -> _Value:
        """What ``call`` returns; if it raises, ``otherwise``, and a Note the first time."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a fault in one source must not cost the others' figures
            if what not in self._reported and not self._stopping:
                self._reported.add(what)
                text = " ".join(f"{what} failed: {type(error).__name__}: {error}".split())
                self._emit(Note(time=time.time(), severity="warning", text=text))
            return otherwise


def watch_gpu(uuid: str, take: Callable[[Record], object]) -> Callable[[], object]:
    """Sample one GPU about once a second, in threads, until the returned function is called."""
    sampler = Sampler(take, open_probe=partial(open_probe, uuid))
    sampler.start()
    return sampler.stop
