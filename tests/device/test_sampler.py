"""The sampling thread: what it emits, what a broken source costs, and how it ends."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amptui.device.nvml import NullProbe
from amptui.device.sampler import Sampler
from amptui.records.run import Note, Record
from amptui.records.samples import AllocatorSample, DeviceSample, GpuSample

GPU = GpuSample(uuid="GPU-0", name="Fake GPU", memory_used_bytes=1, memory_total_bytes=2)
ALLOCATOR = AllocatorSample(precision="fp16", allocated_bytes=1, reserved_bytes=2, peak_allocated_bytes=3)
LONG = 60.0
"""Seconds after which a test has failed; nothing here takes as long."""


class Records:
    """What was emitted, to be waited for."""

    def __init__(self) -> None:
        self.samples: queue.Queue[DeviceSample] = queue.Queue()
        self.notes: list[tuple[str, str]] = []

    def put(self, record: Record) -> None:
        if isinstance(record, Note):
            self.notes.append((record.severity, record.text))
        else:
            assert isinstance(record, DeviceSample)
            self.samples.put(record)

    def sample(self) -> DeviceSample:
        return self.samples.get(timeout=LONG)


class StubProbe(NullProbe):
    """A probe of one GPU, whose answers are what ``look`` returns."""

    def __init__(self, look: Callable[[], GpuSample] = lambda: GPU) -> None:
        super().__init__("", "")
        self.threads: set[threading.Thread] = set()
        self.closed = threading.Event()
        self._look = look

    def sample(self) -> tuple[GpuSample, ...]:
        self.threads.add(threading.current_thread())
        return (self._look(),)

    def close(self) -> None:
        self.threads.add(threading.current_thread())
        self.closed.set()


@contextmanager
def sampling(
    records: Records,
    open_probe: Callable[[], NullProbe] = StubProbe,
    *,
    interval_seconds: float = 0.02,
    read_allocator: Callable[[], AllocatorSample | None] = lambda: None,
) -> Iterator[Sampler]:
    sampler = Sampler(
        records.put, open_probe=open_probe, read_allocator=read_allocator, interval_seconds=interval_seconds
    )
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop(LONG)


def test_the_first_sample_comes_at_once_with_everything_in_it() -> None:
    records = Records()
    began = time.time()
    with sampling(records, interval_seconds=3600, read_allocator=lambda: ALLOCATOR) as sampler:
        sample = records.sample()
        assert sampler.stop(LONG), "the end does not wait for the interval"
    assert began <= sample.time <= time.time()
    assert sample.gpus == (GPU,)
    assert sample.allocator == ALLOCATOR
    assert sample.host.memory_total_bytes
    assert sample.note == ""
    assert records.samples.empty()
    assert records.notes == []


def test_the_probe_is_used_in_one_thread_and_nothing_runs_after_the_end() -> None:
    records, probe, opened_in = Records(), StubProbe(), set[threading.Thread]()

    def open_probe() -> NullProbe:
        opened_in.add(threading.current_thread())
        return probe

    with sampling(records, open_probe, interval_seconds=0.001) as sampler:
        for _ in range(5):
            assert records.sample().gpus == (GPU,)
        assert sampler.stop(LONG)
        emitted = records.samples.qsize()
    assert records.samples.qsize() == emitted
    assert probe.closed.is_set()
    assert probe.threads == opened_in != {threading.current_thread()}


def fail() -> Any:
    raise RuntimeError("out of\nluck")


@pytest.mark.parametrize(
    ("open_probe", "read_allocator", "told", "note"),
    [
        (lambda: StubProbe(fail), lambda: None, "GPU sampling failed", "no GPU data: sampling failed"),
        (fail, lambda: None, "opening NVML failed", "no GPU data: opening NVML failed"),
        (StubProbe, fail, "reading torch's allocator failed", ""),
    ],
)
def test_what_is_broken_is_told_once_and_the_rest_goes_on(
    open_probe: Any, read_allocator: Any, told: str, note: str
) -> None:
    records = Records()
    with sampling(records, open_probe, read_allocator=read_allocator):
        samples = [records.sample() for _ in range(3)]
    assert records.notes == [("warning", f"{told}: RuntimeError: out of luck")]
    assert all(sample.host.memory_total_bytes and sample.allocator is None for sample in samples)
    assert {sample.gpus for sample in samples} == {(GPU,) if read_allocator is fail else ()}
    assert {sample.note for sample in samples} == {note}


HANG = """
import pathlib, queue, sys, time
from amptui.device.sampler import Sampler

call, log = sys.argv[1], pathlib.Path(sys.argv[2])
records = queue.Queue()
sampler = Sampler(records.put, interval_seconds=0.02)
sampler.start()
while not log.exists() or call not in log.read_text():
    time.sleep(0.01)
began = time.monotonic()
print(sampler.stop(0.1), time.monotonic() - began < 30, records.qsize())
"""


@pytest.mark.ci
@pytest.mark.parametrize("call", ["nvmlInitWithFlags -", "nvmlDeviceGetPowerUsage 1"])
def test_a_program_ends_while_a_call_into_the_driver_hangs(
    run_python: Callable[..., str], fake_nvml_dir: Path, tmp_path: Path, call: str
) -> None:
    log = str(tmp_path / "calls")
    faults = call.replace(" ", "@") + "=hang"
    said = run_python(["-c", HANG, call, log], fake_nvml_dir, faults=faults, log=log)
    assert said == "False True 0\n"


WATCH_ONE = """
import queue
from amptui.device.sampler import watch_gpu

records = queue.Queue()
stop = watch_gpu("GPU-00000000-0000-0000-0000-000000000001", records.put)
while not (sample := records.get(timeout=60)).gpus:
    pass
stop()
print([(gpu.uuid[-1], gpu.sm_clock_mhz, gpu.clocks_event_reasons) for gpu in sample.gpus])
"""


def test_a_rank_watches_its_own_gpu(run_python: Callable[..., str], fake_nvml_dir: Path) -> None:
    said = run_python(["-c", WATCH_ONE], fake_nvml_dir, reasons="0x40")
    assert said == "[('1', 1980.0, ('thermal (hw)',))]\n"
