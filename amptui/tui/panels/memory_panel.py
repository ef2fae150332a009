"""Memory and NVML's other readings: the training GPU first, then torch, other GPUs and the host."""

from itertools import chain, count

from amptui.base import units
from amptui.diagnosis.bottleneck import throttled_words
from amptui.records.samples import AllocatorSample, DeviceSample, GpuSample, HostSample
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import memory_table
from amptui.tui.panels.phrases import (
    GAP,
    Gauge,
    Line,
    Phrase,
    Word,
    fitting,
    flowed,
    folded_room,
    labelled,
    phrase,
    quiet,
    wrapped_phrases,
    write_folded,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import Style

NO_SAMPLE = "no sample yet"

_STALE_SECONDS = 5.0
"""Samples come once a second: after five missed ones the figures are out of date."""

_NARROWEST_BAR, _WIDEST_BAR = 6, 40

_FOLDED_WIDTH, _MIN_AMOUNT = 40, 21
"""Of a GPU's name, bar and amount in one line; with little room the bar gives way, the rest does not."""

_NEARLY_FULL = 0.95
"""Above this fraction the next large tensor may not fit: the bar changes its colour."""


def headline(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """How old the figures are, if they are out of date."""
    age = screen.now - view.device.time if view.device is not None else 0.0
    if age < _STALE_SECONDS or view.state in ("finished", "failed"):
        return []
    return [phrase(f"sample {units.duration(age)} old", Style.WARNING)]


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """As many lines as fit, the most important first; below them, what uses the memory."""
    rest = canvas
    if view.device is not None:
        lines = _lines(view, view.device, canvas.width, canvas.height)[: canvas.height]
        write_lines(canvas, 0, lines)
        rest = canvas.rows(len(lines) + 1)
    if memory_table.has_room(rest, view):
        memory_table.draw(rest, view, screen)
    elif view.device is None:
        quiet(canvas, NO_SAMPLE)


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The training GPU, or the first one, or the host; and whether any GPU is throttled."""
    room = folded_room(canvas)
    gpus = ordered_gpus(view)
    if view.device is None:
        line = [phrase(NO_SAMPLE, Style.DIM)]
    elif not gpus:
        note = phrase(view.device.note, Style.DIM, 1)
        line = [*_host_bar(view.device.host, _room_beside(note, room)), note]
    else:
        throttled = next((words for _, gpu, _ in gpus if (words := throttled_words(gpu, 0))), "")
        beside = phrase(throttled, Style.WARNING, 1) if throttled else _busy(gpus[0][1])
        line = [*_gpu_bar(*gpus[0], _room_beside(beside, room)), beside]
    write_folded(canvas, "memory", line)


def _room_beside(beside: Phrase, room: int) -> int:
    """What a bar and its amount may take of ``room`` beside a phrase."""
    return max(_MIN_AMOUNT, min(_FOLDED_WIDTH, room - GAP - beside.width))


def ordered_gpus(view: SessionView) -> list[tuple[str, GpuSample, bool]]:
    """Name, sample and whether this is the training GPU; that one first.

    ``GPU0`` has NVML's index 0; a MIG instance is counted apart, so that it moves no index: ``MIG0``.
    """
    if view.device is None:
        return []
    numbers = {"GPU": count(), "MIG": count()}
    gpus = []
    for gpu in view.device.gpus:
        kind = "MIG" if gpu.uuid.startswith("MIG-") else "GPU"
        gpus.append((f"{kind}{next(numbers[kind])}", gpu, gpu is view.training_gpu))
    return sorted(gpus, key=lambda item: not item[2])


def _gpu_bar(name: str, gpu: GpuSample, trains: bool, width: int) -> Line:
    """``▸GPU0``, a bar and used of total, in ``width`` cells."""
    label = Word(f"{'▸' if trains else ' '}{name}", Style.TEXT if trains else Style.DIM)
    return _bar_line(label, gpu.memory_used_bytes, gpu.memory_total_bytes, width)


def _host_bar(host: HostSample, width: int) -> Line:
    """The host's memory, as a GPU's is shown."""
    return _bar_line(Word("host", Style.DIM), host.memory_used_bytes, host.memory_total_bytes, width)


def _busy(gpu: GpuSample) -> Phrase:
    return _percent(gpu.utilization_percent, "busy")


def _percent(percent: float | None, of: str) -> Phrase:
    """``93% busy``."""
    fraction = None if percent is None else percent / 100
    return Phrase((Word(f"{units.percent(fraction):>4}"), Word(f" {of}", Style.DIM)), 1)


def _lines(view: SessionView, device: DeviceSample, width: int, height: int) -> list[Line]:
    """Everything to show, the most important first; without room other GPUs lose their readings."""
    gpus = ordered_gpus(view)
    first = [line for gpu in gpus[:1] for line in _gpu(*gpu, width)]
    others = [_gpu(*gpu, width) for gpu in gpus[1:]]
    torch = _torch(view.allocator, width) if view.allocator is not None else []
    lines = [*wrapped_phrases(device.note, Style.DIM, width), *first, *torch]
    if len(lines) + sum(map(len, others)) > height:
        others = [bar_and_readings[:1] for bar_and_readings in others]
    return [*lines, *chain.from_iterable(others), *_host(view, device.host, width)]


def _gpu(name: str, gpu: GpuSample, trains: bool, width: int) -> list[Line]:
    """Bar, readings and, as a warning, why the GPU is throttled."""
    readings = [
        _busy(gpu),
        _reading(gpu.power_watts, "W", 3),
        _reading(gpu.temperature_c, "°C", 2),
        _reading(gpu.sm_clock_mhz, "MHz", 5),
    ]
    throttled = wrapped_phrases(throttled_words(gpu, width), Style.WARNING, width)
    return [_gpu_bar(name, gpu, trains, width), fitting(readings, width), *throttled]


def _torch(allocator: AllocatorSample, width: int) -> list[Line]:
    """PyTorch's allocator: allocated now, peak since the switch, and reserved."""
    amounts = (
        (allocator.allocated_bytes, "allocated"),
        (allocator.peak_allocated_bytes, "peak"),
        (allocator.reserved_bytes, "reserved"),
    )
    words = [
        Phrase((Word(f"{units.number_of_bytes(amount):>8}"), Word(f" {name}", Style.DIM)))
        for amount, name in amounts
    ]
    return flowed([phrase("torch", Style.DIM), *words], width)


def _host(view: SessionView, host: HostSample, width: int) -> list[Line]:
    whose = "process" if view.world_size == 1 else "rank 0"  # whose process samples itself
    memory = labelled(whose, f"{units.number_of_bytes(host.process_rss_bytes):>8}")
    return [_host_bar(host, width), [memory, _percent(host.cpu_percent, "CPU")]]


def _bar_line(label: Word, used_bytes: int | None, total_bytes: int | None, width: int) -> Line:
    amount = f"{units.bytes_of(used_bytes, total_bytes):>14}"
    bar_width = min(_WIDEST_BAR, width - len(label.text) - len(amount) - 2)
    fraction = None if used_bytes is None or not total_bytes else min(1.0, used_bytes / total_bytes)
    style = Style.WARNING if fraction is not None and fraction > _NEARLY_FULL else Style.GOOD
    bar = (Gauge(bar_width, fraction, style, "full"), Word(" ")) if bar_width >= _NARROWEST_BAR else ()
    return [Phrase((label, Word(" "), *bar, Word(amount)))]


def _reading(value: float | None, unit: str, digits: int) -> Phrase:
    text = units.count(None if value is None else round(value))
    return Phrase((Word(f"{text:>{digits}}"), Word(f" {unit}", Style.DIM)), 2)
