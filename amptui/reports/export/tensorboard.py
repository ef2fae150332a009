"""The run as a TensorBoard event file: records and framing are the ``tensorboard`` package's own.

torch's ``SummaryWriter`` imports torch, takes four times as long and begins a new file each time, which is
there before it is whole: a second export would not replace the first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import gmtime, strftime
from typing import Any

from amptui.base import units
from amptui.base.errors import AmptuiError
from amptui.base.text import printable
from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.run_facts import detail_facts, run_facts
from amptui.records.findings import StepTimed, UpdatesMeasured
from amptui.records.run import (
    LOW_PRECISIONS,
    EpochFinished,
    Record,
    Validated,
    base_precision,
    is_emulated,
)
from amptui.records.samples import DeviceSample
from amptui.records.steps import Column, Steps
from amptui.telemetry.events import Event
from amptui.telemetry.numerics import headroom
from amptui.telemetry.optimizers import FIRST, MAX_OPTIMIZERS
from amptui.telemetry.view import SessionView

try:
    from tensorboard.compat.proto.event_pb2 import Event as EventProto
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError as error:
    raise AmptuiError(
        f"TensorBoard cannot be imported ({error})", hint="pip install 'amptui[tensorboard]'"
    ) from error

_FILE_VERSION = "brain.Event:2"
"""The first record in files of TensorBoard's own writers."""

_GPU_FIELDS = ("memory_used_bytes", "utilization_percent", "power_watts", "temperature_c", "sm_clock_mhz")
_HOST_FIELDS = ("cpu_percent", "memory_used_bytes", "process_rss_bytes")
_TORCH_FIELDS = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes")

Scalars = Mapping[str, float | None]


class EventFile:
    """Curves as scalars with the times of their records; at the end, the run and its events as text."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._writer = RecordWriter(self._file)
        self._time, self._step = 0.0, 0
        """Of the newest step of the run's first optimizer."""
        self._prefixes = {FIRST: ""}
        """Of the tags of each optimizer."""
        self._gpus: dict[str, int] = {}
        """Numbers by UUID, in order of appearance."""

    def add(self, records: Sequence[Record]) -> None:
        """Write the curves in ``records``."""
        if not self._file.tell():
            self._write_event(records[0].time, file_version=_FILE_VERSION)
        for record in records:
            if isinstance(record, DeviceSample):
                self._write(record.time, self._step, self._device(record))
            elif isinstance(record, StepTimed):
                emulated = _emulated_suffix(record.precision)
                clocks = {
                    f"phases/{phase.name}_{clock}_seconds{emulated}": getattr(phase, f"{clock}_seconds")
                    for phase in record.phases
                    for clock in ("host", "device")
                }
                self._write(record.time, record.step, clocks)
            elif isinstance(record, EpochFinished | Validated):
                if (validation := record.validation) is not None:
                    scalars: dict[str, float | None] = {
                        f"validation/{name}": value for name, value in validation.metrics.items()
                    }
                    scalars["validation/loss"] = validation.loss
                    scalars["validation/accuracy"] = validation.accuracy
                    self._write(record.time, record.step, scalars)
            elif isinstance(record, Steps | UpdatesMeasured):
                self._add_of_optimizer(record)

    def _add_of_optimizer(self, record: Steps | UpdatesMeasured) -> None:
        name = record.optimizer
        if len(self._prefixes) < MAX_OPTIMIZERS:
            self._prefixes.setdefault(name, f"{name}/")
        prefix = self._prefixes.get(name)
        if prefix is None:
            return
        if isinstance(record, UpdatesMeasured):
            ratios = {f"update_ratio/{layer}": ratio for layer, ratio in record.ratios.items()}
            self._write(record.time, record.step, ratios, prefix)
            return
        curves, times = _curves(record), record.times()
        for index, time in enumerate(times):
            scalars = {tag: column[index] for tag, column in curves.items()}
            self._write(time, record.first_step + index, scalars, prefix)
        if name == FIRST:
            self._time, self._step = times[-1], record.last_step

    def finish(self, view: SessionView, passed_over: str) -> None:
        """Write the texts."""
        if view.run is not None:
            groups = (run_facts(view.run), *detail_facts(view.run))
            facts = [f"{group.title}.{name}: {text}" for group in groups for name, text in group.pairs]
            self._write_text("run", facts)
        lines = [line for event in reversed(view.events) for line in _event_lines(event)]
        self._write_text("events", [*lines, *filter(None, [passed_over])])
        self._file.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _device(self, sample: DeviceSample) -> Scalars:
        scalars = {f"host/{name}": getattr(sample.host, name) for name in _HOST_FIELDS}
        for gpu in sample.gpus:
            number = self._gpus.setdefault(gpu.uuid, len(self._gpus))
            scalars |= {f"gpu{number}/{name}": getattr(gpu, name) for name in _GPU_FIELDS}
        if sample.allocator is not None:
            scalars |= {f"torch/{name}": getattr(sample.allocator, name) for name in _TORCH_FIELDS}
        return scalars

    def _write(self, time: float, step: int, scalars: Scalars, prefix: str = "") -> None:
        values = [
            Summary.Value(tag=printable(prefix + tag), simple_value=value)
            for tag, value in scalars.items()
            if value is not None
        ]
        if values:
            self._write_event(time, step=step, summary=Summary(value=values))

    def _write_text(self, tag: str, lines: Iterable[str]) -> None:
        # In Markdown, four spaces make a line code: nothing that a model printed becomes a link.
        text = "\n".join(f"    {printable(line)}" for line in lines)
        self._write_event(self._time, step=self._step, summary=text_pb(tag, text))

    def _write_event(self, time: float, **content: Any) -> None:
        self._writer.write(EventProto(wall_time=time, **content).SerializeToString())


def _curves(steps: Steps) -> Mapping[str, Column]:
    """By tag; times of emulated float8 are curves of their own."""
    emulated = _emulated_suffix(steps.precision)
    pairs = zip(steps.grad_max, steps.loss_scale, strict=True)
    return {
        "loss": steps.loss,
        **{f"loss_parts/{name}": column for name, column in steps.losses.items()},
        f"throughput/samples_per_second{emulated}": steps.rates(),
        f"throughput/step_seconds{emulated}": steps.step_seconds,
        "throughput/data_seconds": steps.data_seconds,
        "gradients/norm": steps.grad_norm,
        "gradients/max": steps.grad_max,
        "float16/headroom_doublings": [
            None if grad_max is None or scale is None else headroom(grad_max, scale)
            for grad_max, scale in pairs
        ],
        "learning_rate": steps.lr,
        **{f"learning_rate/group_{index}": lrs for index, lrs in enumerate(steps.group_lrs)},
        "amp/on": [float(base_precision(steps.precision) in LOW_PRECISIONS)] * steps.count,
        "amp/skipped": [*map(float, steps.skipped)],
        "amp/loss_scale": steps.loss_scale,
    }


def _emulated_suffix(precision: str) -> str:
    """Behind the tags of times in ``precision``: those of emulated float8 say nothing of FP8."""
    return "_fp8_emulated" if is_emulated(precision) else ""


def _event_lines(event: Event) -> Iterator[str]:
    """``12:04:31 UTC ⚠ step 612: overflow: step skipped``, its details indented below it."""
    sign = "" if event.severity == "info" else f"{units.SEVERITY_SIGNS[event.severity]} "
    step = "" if event.step is None else f"step {event.step:,}: "
    clock = strftime("%H:%M:%S UTC", gmtime(event.time))
    yield f"{clock} {sign}{step}{event_text(event)}"
    for line in event_details(event):
        yield f"    {line}"
