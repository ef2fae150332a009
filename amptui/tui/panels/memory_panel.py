"""Memory, what uses it, and NVML's other readings: the training GPU first, then torch, GPUs and the host."""

from collections.abc import Sequence
from functools import partial
from itertools import chain, count
from typing import NamedTuple

from amptui.base import units
from amptui.base.table import Column
from amptui.diagnosis.bottleneck import throttled_words
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.memory_use import MemorySides, memory_sentences, other_bytes, sides, signed_bytes
from amptui.records.findings import MemoryBreakdown
from amptui.records.samples import DeviceSample, GpuSample, HostSample
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas, Rect
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
    precision_word,
    quiet,
    wrapped,
    wrapped_phrases,
    write,
    write_folded,
    write_lines,
)
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.gauges import draw_stack
from amptui.tui.renderables.table import draw_table
from amptui.tui.style import Style, precision_style

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
    has_room = rest.width >= _MIN_WIDTH and rest.height >= 2 + _MIN_ROWS + len(view.memory)
    if view.memory and has_room:
        _draw_breakdowns(rest, view, screen)
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
    return _amount(f"{units.percent(fraction):>4}", of, 1)


def _lines(view: SessionView, device: DeviceSample, width: int, height: int) -> list[Line]:
    """Everything to show, the most important first; without room other GPUs lose their readings."""
    gpus = ordered_gpus(view)
    first = [line for gpu in gpus[:1] for line in _gpu(*gpu, width)]
    others = [_gpu(*gpu, width) for gpu in gpus[1:]]
    torch = [phrase("torch", Style.DIM)]
    if view.allocator is not None:
        allocator = view.allocator
        for amount, name in (
            (allocator.allocated_bytes, "allocated"),
            (allocator.peak_allocated_bytes, "peak"),
            (allocator.reserved_bytes, "reserved"),
        ):
            torch.append(_amount(f"{units.number_of_bytes(amount):>8}", name))
    whose = "process" if view.world_size == 1 else "rank 0"  # whose process samples itself
    memory = labelled(whose, f"{units.number_of_bytes(device.host.process_rss_bytes):>8}")
    host = [_host_bar(device.host, width), [memory, _percent(device.host.cpu_percent, "CPU")]]
    lines = [*wrapped_phrases(device.note, Style.DIM, width), *first]
    lines += flowed(torch, width) if view.allocator is not None else []
    if len(lines) + sum(map(len, others)) > height:
        others = [bar_and_readings[:1] for bar_and_readings in others]
    return [*lines, *chain.from_iterable(others), *host]


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


def _bar_line(label: Word, used_bytes: int | None, total_bytes: int | None, width: int) -> Line:
    amount = f"{units.bytes_of(used_bytes, total_bytes):>14}"
    bar_width = min(_WIDEST_BAR, width - len(label.text) - len(amount) - 2)
    fraction = None if used_bytes is None or not total_bytes else min(1.0, used_bytes / total_bytes)
    style = Style.WARNING if fraction is not None and fraction > _NEARLY_FULL else Style.GOOD
    bar = (Gauge(bar_width, fraction, style, "full"), Word(" ")) if bar_width >= _NARROWEST_BAR else ()
    return [Phrase((label, Word(" "), *bar, Word(amount)))]


def _reading(value: float | None, unit: str, digits: int) -> Phrase:
    text = units.count(None if value is None else round(value))
    return _amount(f"{text:>{digits}}", unit, 2)


def _amount(text: str, of: str, rank: int = 0) -> Phrase:
    return Phrase((Word(text), Word(f" {of}", Style.DIM)), rank)


# ----------------------------------------------------------------------------- what uses the memory

_MIN_WIDTH = 36
"""Cells that a kind and two precisions take."""

_FILLS = {
    "weights": "█#",
    "gradients": "▓%",
    "optimizer": "▒=",
    "buffers": "▤+",
    "cast copies": "▚x",
    "activations": "░-",
    "other": "·.",
}
"""The fill of each kind's part of a bar, with UTF-8 and without; in the order of the parts."""

_OF_THE_PEAK = ("activations", "other")
"""Known only if the peak is: missing, they are not zero."""

_KIND_WIDTH, _DTYPE_WIDTH = 14, 9
"""A fill, a blank and ``cast copies``; ``bfloat16``."""

_COLUMN = 11
"""A blank and ``▲ AMP fp16``."""

_CHANGE = 14
"""A blank and ``fp16 changes``; amounts stand apart from the columns before them."""

_LABELS = {"other": "other: data, batch"}
"""Longer names, used if the column of dtypes leaves room."""

_NOTES = {
    "cast copies": "half-precision weights, which autocast caches during a step",
    "activations": "saved for the backward pass, and temporary tensors: a lower bound, "
    "as not all gradients exist at the peak",
    "other": "the rest of the peak: data kept on the device, the batch and workspaces",
}
"""Explains the kinds whose name does not."""

_NAME_WIDTH, _AMOUNT_WIDTH = 11, 9
"""Left and right of a bar."""

_MIN_ROWS = 3
"""Rows of the table, below its head."""

_SENTENCE_LINES = 3
"""Lines of one sentence."""


class _Row(NamedTuple):
    """One kind in one dtype, in every precision; None if not measured or absent."""

    kind: str
    dtype: str
    sizes: tuple[int | None, ...]


def _draw_breakdowns(canvas: Canvas, view: SessionView, screen: ScreenState) -> None:
    """The newest breakdown of each precision, on a canvas with room for it."""
    rows = _rows(view.memory, by_dtype=_has_dtypes(canvas.width))
    y = _draw_bars(canvas, view.memory, rows)
    text: list[str] = []
    for sentence in memory_sentences(view.memory, view.numerics.xray, screen.accepts, view.comparison.low):
        room = canvas.height - y - 1 - min(_MIN_ROWS, len(rows)) - len(text)
        text += wrapped(sentence, canvas.width, lines=min(_SENTENCE_LINES, max(0, room)))
    # Sentences replace the smallest rows, but never the largest.
    spare = canvas.height - y - 1 - len(rows) - len(text)
    height = 1 + len(rows) if spare >= 0 else max(1 + _MIN_ROWS, 1 + len(rows) + spare)
    y += spare > 1
    table = canvas.part(Rect(0, y, canvas.width, height))
    y += _draw_table(table, view.memory, rows, sides(view.memory, view.comparison.low)) + (spare > 0)
    for line in text:
        canvas.text(0, y, line)
        y += 1
    # What the kinds mean, if all of it fits.
    kinds = [kind for kind in _NOTES if any(row.kind == kind for row in rows)]
    notes = [line for kind in kinds for line in wrapped(f"{kind}: {_NOTES[kind]}", canvas.width, lines=2)]
    if y + 1 + len(notes) <= canvas.height:
        for note_y, line in enumerate(notes, y + 1):
            canvas.text(0, note_y, line, Style.DIM)


def _rows(memory: Sequence[MemoryBreakdown], *, by_dtype: bool) -> list[_Row]:
    """The rows in the order of the bars' parts; without ``by_dtype`` one row per kind."""
    sums: list[dict[tuple[str, str], int]] = [{} for _ in memory]
    for breakdown, sizes in zip(memory, sums, strict=True):
        for kind in breakdown.kinds:
            key = (kind.kind, kind.dtype if by_dtype else "")
            sizes[key] = sizes.get(key, 0) + kind.size_bytes
    keys = dict.fromkeys(key for sizes in sums for key in sizes)
    rows = [_Row(*key, tuple(sizes.get(key) for sizes in sums)) for key in keys]
    others = tuple(other_bytes(breakdown) for breakdown in memory)
    if any(others):
        rows.append(_Row("other", "", others))
    order = tuple(_FILLS)
    return sorted((row for row in rows if any(row.sizes)), key=lambda row: order.index(row.kind))


# -------------------------------------------------------------------------------------- bars


def _draw_bars(canvas: Canvas, memory: Sequence[MemoryBreakdown], rows: Sequence[_Row]) -> int:
    """A title and a bar for each precision, all to one scale; return the line after them."""
    has_peak = any(breakdown.peak_allocated_bytes for breakdown in memory)
    title = "where the peak memory is" if has_peak else "memory of a step without activations"
    steps = ", ".join(
        f"{precision_label(breakdown.precision)} step {units.count(breakdown.step)}" for breakdown in memory
    )
    write(canvas, 0, 0, fitting([phrase(title), phrase(steps, Style.DIM, 1)], canvas.width))
    totals = [sum(row.sizes[i] or 0 for row in rows) for i in range(len(memory))]
    width = canvas.width - _NAME_WIDTH - _AMOUNT_WIDTH - 1
    for i, breakdown in enumerate(memory):
        name = precision_word(breakdown.precision, _NAME_WIDTH - 1)
        canvas.text(0, 1 + i, name.text, name.style)
        style = precision_style(breakdown.precision)
        parts = ((row.sizes[i] or 0, _fill(canvas, row), style) for row in rows)
        draw_stack(canvas, _NAME_WIDTH, 1 + i, width, parts, whole=max(totals))
        amount = units.number_of_bytes(breakdown.peak_allocated_bytes or totals[i])
        canvas.text(canvas.width - _AMOUNT_WIDTH, 1 + i, amount, width=_AMOUNT_WIDTH, align="right")
    return 1 + len(memory)


def _fill(canvas: Canvas, row: _Row) -> str:
    return _FILLS[row.kind][canvas.ascii_only]


# ------------------------------------------------------------------------------------- table


def _has_dtypes(width: int) -> bool:
    """Whether there is room for these beside the kinds and two precisions."""
    return width >= _KIND_WIDTH + _DTYPE_WIDTH + 2 * _COLUMN


def _draw_table(
    canvas: Canvas, memory: Sequence[MemoryBreakdown], rows: Sequence[_Row], pair: MemorySides
) -> int:
    """As many rows as there are lines, the smallest left out first; return the number of lines."""
    has_dtypes = _has_dtypes(canvas.width)
    largest = sorted(rows, key=lambda row: -max(size or 0 for size in row.sizes))
    rows = [row for row in rows if row in largest[: max(0, canvas.height - 1)]]

    def draw_kind(canvas: Canvas, x: int, y: int, _width: int, row: _Row) -> None:
        canvas.text(x, y, _fill(canvas, row), Style.DIM)
        canvas.text(x + 2, y, _LABELS.get(row.kind, row.kind) if has_dtypes else row.kind)

    def size(place: int, row: _Row) -> str:
        amount = row.sizes[place]
        return "–" if amount is None else units.number_of_bytes(amount)

    columns: list[Column[_Row]] = [Column(title="", draw=draw_kind, width=_KIND_WIDTH)]
    if has_dtypes:
        dtype: Column[_Row] = Column(
            title="", cell=lambda row: (row.dtype, Style.DIM), align="left", width=_DTYPE_WIDTH, gap=0
        )
        columns.append(dtype)
    for place, breakdown in enumerate(memory):
        title = precision_word(breakdown.precision, _COLUMN - 1)
        columns.append(
            Column(title=title, cell=partial(size, place), priority=place, width=_COLUMN - 1, gap=1)
        )
    if pair.full is not None and pair.low is not None:
        i, j = memory.index(pair.full), memory.index(pair.low)
        columns.append(
            Column(
                title=f"{pair.low.precision} changes",
                cell=lambda row: _change(row.kind, row.sizes[i], row.sizes[j]),
                priority=len(memory),
                width=_CHANGE - 1,
                gap=1,
            )
        )
    return draw_table(canvas, columns, rows)


def _change(kind: str, before: int | None, after: int | None) -> Word:
    """``-744 MiB``, what the lower precision saved or added for a kind; empty if not measured."""
    unknown = before is None or after is None
    if (before is None and after is None) or (unknown and kind in _OF_THE_PEAK):
        return Word("")
    change = (after or 0) - (before or 0)
    return Word(signed_bytes(change), Style.GOOD if change < 0 else Style.WARNING if change else Style.DIM)
