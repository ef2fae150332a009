"""The device: the loss scale, memory and what uses it, and NVML's other readings, the training GPU first."""

from collections.abc import Sequence
from functools import partial
from itertools import chain, count
from typing import TypeAlias

from amptui.base import units
from amptui.base.table import Cell, Column
from amptui.diagnosis.finding_fields import signed_bytes
from amptui.diagnosis.labels import MEMORY_KINDS, precision_label, throttled_words
from amptui.diagnosis.probe_words import idle_words, last_change
from amptui.diagnosis.words import long_words
from amptui.records.findings import MemoryBreakdown
from amptui.records.samples import DeviceSample, GpuSample, HostSample
from amptui.telemetry.memory import judge_memory_use, other_bytes, sides
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels.phrases import (
    GAP,
    Block,
    Gauge,
    Line,
    Phrase,
    Word,
    fitting,
    fitting_lines,
    flowed,
    folded_room,
    labelled,
    phrase,
    precision_word,
    quiet,
    whole_words,
    wrapped_phrases,
    write_folded,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.table import draw_table
from amptui.tui.style import GRADE_STYLES, Style

NO_SAMPLE = "no sample yet"

_STALE_SECONDS = 5.0
"""Samples come once a second: after five missed ones the figures are out of date."""

_NARROWEST_BAR, _WIDEST_BAR = 6, 40

_FOLDED_WIDTH, _MIN_AMOUNT = 40, 21
"""Of a GPU's name, bar and amount in one line; with little room the bar gives way, the rest does not."""

_NEARLY_FULL = 0.95
"""Above this fraction the next large tensor may not fit: the bar changes its colour."""


def device_panels(view: SessionView) -> tuple[str, ...]:
    """What there is to show of the device: ``scale``, ``memory``, both or neither."""
    has = {"scale": view.scaler.scale is not None, "memory": bool(ordered_gpus(view))}
    return tuple(name for name, there in has.items() if there)


def headline(view: SessionView, screen: ScreenState) -> list[Phrase]:
    """How old the figures are, if they are out of date."""
    age = screen.now - view.device.time if view.device is not None else 0.0
    if age < _STALE_SECONDS or view.state in ("finished", "failed"):
        return []
    return [phrase(f"sample {units.duration(age)} old", Style.WARNING)]


def draw(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """As many lines as fit, the most important first; below them, what uses the memory.

    Beside the other panels the loss scale is above them.
    """
    lines = [] if screen.focus or view.scaler.scale is None else _scale_lines(view, canvas.width)
    if view.device is not None:
        lines += _lines(view, view.device, canvas.width, canvas.height - len(lines))
    write_lines(canvas, 0, lines[: canvas.height])
    rest = canvas.rows(min(len(lines) + 1, canvas.height)) if lines else canvas
    if view.memory and screen.focus and rest.height >= 2 + _MIN_ROWS:
        _draw_breakdowns(rest, view)
    elif not lines:
        quiet(canvas, NO_SAMPLE)


def draw_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The training GPU, or the first one, or the host; and whether any GPU is throttled."""
    line, gpus = [phrase(NO_SAMPLE, Style.DIM)], ordered_gpus(view)
    if view.device is not None:
        beside = phrase(view.device.note, Style.DIM, 1)
        if gpus:
            throttled = next((words for _, gpu, _ in gpus if (words := throttled_words(gpu, 0))), "")
            beside = phrase(throttled, Style.WARNING, 1) if throttled else _busy(gpus[0][1])
        width = max(_MIN_AMOUNT, min(_FOLDED_WIDTH, folded_room(canvas) - GAP - beside.width))
        bar = _gpu_bar(*gpus[0], width) if gpus else _bar(Word("host", Style.DIM), view.device.host, width)
        line = [*bar, beside]
    write_folded(canvas, "memory", line)


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


def _lines(view: SessionView, device: DeviceSample, width: int, height: int) -> list[Line]:
    """Everything to show, the most important first; without room other GPUs lose their readings."""
    blocks = []
    for name, gpu, trains in ordered_gpus(view):
        readings = [_busy(gpu)]
        for value, unit, digits in (
            (gpu.power_watts, "W", 3),
            (gpu.temperature_c, "°C", 2),
            (gpu.sm_clock_mhz, "MHz", 5),
        ):
            reading = units.count(None if value is None else round(value))
            readings.append(_amount(f"{reading:>{digits}}", unit, 2))
        throttled = wrapped_phrases(throttled_words(gpu, width), Style.WARNING, width)
        blocks.append([_gpu_bar(name, gpu, trains, width), fitting(readings, width), *throttled])
    lines = [*wrapped_phrases(device.note, Style.DIM, width), *chain.from_iterable(blocks[:1])]
    if (allocator := view.allocator) is not None:
        sizes = {
            "allocated": allocator.allocated_bytes,
            "peak": allocator.peak_allocated_bytes,
            "reserved": allocator.reserved_bytes,
        }
        torch = [_amount(f"{units.number_of_bytes(size):>8}", name) for name, size in sizes.items()]
        lines += flowed([phrase("torch", Style.DIM), *torch], width)
    others = blocks[1:]
    if len(lines) + sum(map(len, others)) > height:
        others = [bar_and_readings[:1] for bar_and_readings in others]
    whose = "process" if view.world_size == 1 else "rank 0"  # whose process samples itself
    memory = labelled(whose, f"{units.number_of_bytes(device.host.process_rss_bytes):>8}")
    host = _bar(Word("host", Style.DIM), device.host, width)
    return [*lines, *chain.from_iterable(others), host, [memory, _percent(device.host.cpu_percent, "CPU")]]


def _gpu_bar(name: str, gpu: GpuSample, trains: bool, width: int) -> Line:
    """``▸GPU0``, a bar and used of total, in ``width`` cells."""
    label = Word(f"{'▸' if trains else ' '}{name}", Style.TEXT if trains else Style.DIM)
    return _bar(label, gpu, width)


def _bar(label: Word, sample: GpuSample | HostSample, width: int) -> Line:
    used_bytes, total_bytes = sample.memory_used_bytes, sample.memory_total_bytes
    amount = f"{units.bytes_of(used_bytes, total_bytes):>14}"
    bar_width = min(_WIDEST_BAR, width - len(label.text) - len(amount) - 2)
    fraction = None if used_bytes is None or not total_bytes else min(1.0, used_bytes / total_bytes)
    style = Style.WARNING if fraction is not None and fraction > _NEARLY_FULL else Style.GOOD
    bar = (Gauge(bar_width, fraction, style), Word(" ")) if bar_width >= _NARROWEST_BAR else ()
    return [Phrase((label, Word(" "), *bar, Word(amount)))]


def _busy(gpu: GpuSample) -> Phrase:
    return _percent(gpu.utilization_percent, "busy")


def _percent(percent: float | None, of: str) -> Phrase:
    """``93% busy``."""
    return _amount(f"{units.percent(None if percent is None else percent / 100):>4}", of, 1)


def _amount(text: str, of: str, rank: int = 0) -> Phrase:
    return Phrase((Word(text), Word(f" {of}", Style.DIM)), rank)


# ----------------------------------------------------------------------------- what uses the memory

_KINDS = ("weights", "gradients", "optimizer", "buffers", "activations", "other", "peak", "sum")
"""In the order of the rows."""

_DTYPE_WIDTH = 9
"""``bfloat16``."""

_SIZE_WIDTH, _CHANGE_WIDTH = 10, 13
"""``AMP fp16``; ``fp16 changes``. A blank is before each."""

_MIN_ROWS = 4
"""Rows of the table, below its head."""

_SENTENCE_LINES = 3
"""Lines of one sentence."""

_Row: TypeAlias = tuple[str, str, tuple[int | None, ...]]
"""One kind in one dtype, and its size in every precision; None if not measured or absent."""


def _draw_breakdowns(canvas: Canvas, view: SessionView) -> None:
    """The newest breakdown of each precision: the table, what it means, what the kinds are."""
    memory, width = view.memory, canvas.width
    rows = _rows(memory)
    title = "where the peak memory is" if rows[-1][0] == "peak" else "memory of a step without activations"
    steps = ", ".join(f"{precision_label(it.precision)} step {units.count(it.step)}" for it in memory)
    canvas.text(0, 0, whole_words(f"{title}: {steps}", width), Style.DIM)
    use = judge_memory_use(memory, view.comparison.low)
    sentence = (
        [] if use is None else wrapped_phrases(long_words(use), Style.TEXT, width, lines=_SENTENCE_LINES)
    )
    # The sentence replaces the smallest rows, but never the largest.
    shown = max(_MIN_ROWS, min(len(rows), canvas.height - 3 - len(sentence)))
    largest = sorted(rows, key=lambda row: -max(size or 0 for size in row[2]))[:shown]
    table = canvas.rows(1, 1 + shown)
    y = 1 + draw_table(table, _columns(view), [row for row in rows if row in largest])
    # What the kinds mean, if all of it fits.
    kinds = {kind: MEMORY_KINDS[kind] for kind, _, _ in rows if kind in MEMORY_KINDS}
    notes: list[Line] = [[]]
    for kind, note in kinds.items():
        notes += wrapped_phrases(f"{kind}: {note}", Style.DIM, width)
    blocks = [Block([[], *sentence], 0), Block(notes, 1, len(notes))]
    write_lines(canvas, y, fitting_lines(blocks, canvas.height - y))


def _rows(memory: Sequence[MemoryBreakdown]) -> list[_Row]:
    """The rows in their order; the last is the peak, or the sum where no peak was measured."""
    sums: dict[tuple[str, str], list[int | None]] = {}
    for i, breakdown in enumerate(memory):
        kinds = [(it.kind, it.dtype, it.size_bytes) for it in breakdown.kinds]
        for kind, dtype, size in [*kinds, ("other", "", other_bytes(breakdown))]:
            sizes = sums.setdefault((kind, dtype), [None] * len(memory))
            sizes[i] = size if size is None else size + (sizes[i] or 0)
    if any(it.peak_allocated_bytes for it in memory):
        sums["peak", ""] = [it.peak_allocated_bytes for it in memory]
    else:
        sums["sum", ""] = [sum(size or 0 for size in sizes) for sizes in zip(*sums.values(), strict=True)]
    rows = [(kind, dtype, tuple(sizes)) for (kind, dtype), sizes in sums.items() if any(sizes)]
    return sorted(rows, key=lambda row: _KINDS.index(row[0]))


def _columns(view: SessionView) -> list[Column[_Row]]:
    """The kind and its dtype, a size for each precision, and what the lower precision changed."""

    def kind(row: _Row) -> Cell:
        name = "other: data, batch" if row[0] == "other" else row[0]
        return name, Style.STRONG if row[0] in ("peak", "sum") else Style.TEXT

    def size(place: int, row: _Row) -> str:
        amount = row[2][place]
        return "–" if amount is None else units.number_of_bytes(amount)

    def change(i: int, j: int, row: _Row) -> Cell:
        """``-744 MiB``; empty if not measured: activations and the rest are known only if the peak is."""
        before, after = row[2][i], row[2][j]
        unknown = before is None or after is None
        if (before is None and after is None) or (unknown and row[0] in ("activations", "other", "peak")):
            return ""
        moved = (after or 0) - (before or 0)
        return signed_bytes(moved), Style.GOOD if moved < 0 else Style.WARNING if moved else Style.DIM

    memory = view.memory
    columns: list[Column[_Row]] = [
        Column(title="", cell=kind, align="left"),
        Column(title="", cell=lambda row: (row[1], Style.DIM), align="left", width=_DTYPE_WIDTH, gap=0),
    ]
    for place, breakdown in enumerate(memory):
        title = precision_word(breakdown.precision)
        columns.append(
            Column(title=title, cell=partial(size, place), priority=place, width=_SIZE_WIDTH, gap=1)
        )
    full, low = sides(memory, view.comparison.low)
    if full is not None and low is not None:
        columns.append(
            Column(
                title=f"{low.precision} changes",
                cell=partial(change, memory.index(full), memory.index(low)),
                priority=len(memory),
                width=_CHANGE_WIDTH,
                gap=1,
            )
        )
    return columns


# --------------------------------------------------------------------------------- the loss scale


def _scale(view: SessionView) -> Phrase:
    """The scale after the last fp16 step, in the colour of the trouble that it is in."""
    scale, finding = view.scaler.scale, view.numerics.scaler
    if finding.is_trouble and not idle_words(view):
        return phrase(units.count(scale), GRADE_STYLES[finding.grade])
    return phrase(units.count(scale), Style.DIM if idle_words(view) else Style.STRONG)


def _next_doubling(view: SessionView) -> Phrase:
    """``doubles in 760 steps``: applied steps without overflow until the scale does; or why it is idle."""
    scaler, idle = view.scaler, idle_words(view)
    if idle or scaler.growth_tracker is None or not scaler.growth_interval or view.numerics.scaler.is_trouble:
        return phrase(idle, Style.DIM, 2)
    width, left = len(units.count(scaler.growth_interval)), scaler.growth_interval - scaler.growth_tracker
    return labelled("doubles in", f"{units.count(max(0, left)):>{width}} steps", 2)


def _skipped(view: SessionView) -> list[Phrase]:
    """The steps that the scaler skipped of all, if any; what that means the verdict says."""
    if not view.scaler.skipped:
        return []
    skipped, of = view.scaler.skipped, f" of {units.count(view.scaler.skipped + view.scaler.applied)}"
    words = Word("skipped ", Style.DIM), Word(units.count(skipped), Style.WARNING), Word(of, Style.DIM)
    return [Phrase(words, 1)]


def _scale_lines(view: SessionView, width: int) -> list[Line]:
    """The scale and its next doubling, skipped steps, and its last change."""
    scale = Phrase((Word("loss scale ", Style.DIM), *_scale(view).words))
    moves = wrapped_phrases(last_change(view.scaler.last_change), Style.DIM, width)
    return [*flowed([scale, _next_doubling(view)], width), *flowed(_skipped(view), width), *moves]


def draw_scale_line(canvas: Canvas, view: SessionView, _screen: ScreenState) -> None:
    """The scale, its next doubling, and the skipped steps."""
    phrases = [_scale(view), *_skipped(view), _next_doubling(view)] if view.scaler.scale is not None else []
    write_folded(canvas, "loss scale", phrases)
