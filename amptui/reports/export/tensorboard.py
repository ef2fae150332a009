"""The run as a TensorBoard event file, written without torch or TensorFlow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import gmtime, strftime

from amptui.base import strictjson, units
from amptui.base.errors import AmptuiError
from amptui.base.text import printable
from amptui.diagnosis.event_words import event_details, event_text
from amptui.diagnosis.labels import data_label
from amptui.records.findings import StepTimed
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import (
    AMP_PRECISIONS,
    EpochFinished,
    LossScaleChanged,
    Record,
    RunStarted,
    Validated,
    base_precision,
)
from amptui.records.samples import DeviceSample
from amptui.records.steps import StepRecord, Steps
from amptui.reports.export.recorded_run import RecordedRun
from amptui.telemetry.events import Event
from amptui.telemetry.numerics import FIRST_SCALE, headroom
from amptui.telemetry.optimizers import MAX_OPTIMIZERS

try:
    from tensorboard.compat.proto.event_pb2 import Event as EventProto
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError as error:
    raise AmptuiError(
        f"TensorBoard cannot be imported ({error})", hint="pip install 'amptui[tensorboard]'"
    ) from error

_FILE_VERSION = "brain.Event:2"
"""The first record in files of TensorBoard's own writers."""

Scalars = Mapping[str, float | None]


class EventFile:
    """Curves as scalars with the times of their records; at the end, the run and its events as text.

    Values that rarely change, such as the loss scale, are written when they change and at the end.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._writer = RecordWriter(self._file)
        self._begun = False
        self._by_optimizer: dict[str, _OptimizerScalars] = {"": _OptimizerScalars("")}
        self._gpus: dict[str, int] = {}
        """Numbers by UUID, in order of appearance."""

    def add(self, records: Sequence[Record]) -> None:
        """Write the curves in ``records``."""
        for record in records:
            if not self._begun:
                self._begin(record.time)
            if isinstance(record, Steps):
                for step in record.one_by_one():
                    self._add_step(step)
            elif isinstance(record, DeviceSample):
                self._write(record.time, self._first.step, dict(self._device(record)))
            elif isinstance(record, EpochFinished | Validated):
                self._write(record.time, record.step, _validation(record))
            elif isinstance(record, StepTimed):
                self._write(record.time, record.step, _phases(record))
            elif isinstance(record, LossScaleChanged) and (own := self._of(record.optimizer)) is not None:
                own.float16_scale = record.current

    def finish(self, recording: RecordedRun) -> None:
        """Write the last values of curves that rarely change, and the texts."""
        for own in self._by_optimizer.values():
            self._write(own.time, own.step, own.ends())
        view = recording.view
        if view.run is not None:
            self._write_text("run", _run_lines(view.run))
        lines = [line for event in reversed(view.events) for line in _event_lines(event)]
        self._write_text("events", [*lines, *filter(None, [recording.passed_over])])
        self._file.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _begin(self, time: float) -> None:
        self._begun = True
        self._writer.write(EventProto(wall_time=time, file_version=_FILE_VERSION).SerializeToString())

    @property
    def _first(self) -> "_OptimizerScalars":
        return self._by_optimizer[""]

    def _of(self, optimizer: str) -> "_OptimizerScalars | None":
        """The scalars of an optimizer, which may be new; None if there are too many."""
        if optimizer not in self._by_optimizer and len(self._by_optimizer) < MAX_OPTIMIZERS:
            self._by_optimizer[optimizer] = _OptimizerScalars(f"{optimizer}/")
        return self._by_optimizer.get(optimizer)

    def _add_step(self, record: StepRecord) -> None:
        if (own := self._of(record.optimizer)) is None:
            return
        ends, begins = own.changes(record)
        self._write(own.time, own.step, ends)
        self._write(record.time, record.step, {**own.of_step(record), **begins})
        own.follow(record)

    def _device(self, sample: DeviceSample) -> Iterator[tuple[str, float | None]]:
        for gpu in sample.gpus:
            number = self._gpus.setdefault(gpu.uuid, len(self._gpus))
            for name in _GPU_FIELDS:
                yield f"gpu{number}/{name}", getattr(gpu, name)
        for name in ("cpu_percent", "memory_used_bytes", "process_rss_bytes"):
            yield f"host/{name}", getattr(sample.host, name)
        if sample.allocator is not None:
            for name in ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes"):
                yield f"torch/{name}", getattr(sample.allocator, name)

    def _write(self, time: float, step: int, scalars: Scalars) -> None:
        known = ((tag, value) for tag, value in scalars.items() if value is not None)
        self._write_values(time, step, [Summary.Value(tag=printable(t), simple_value=v) for t, v in known])

    def _write_text(self, tag: str, lines: Iterable[str]) -> None:
        # In Markdown, four spaces make a line code: nothing that a model printed becomes a link.
        text = "\n".join(f"    {printable(line)}" for line in lines)
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)
        self._write_values(self._first.time, self._first.step, [value])

    def _write_values(self, time: float, step: int, values: list[Summary.Value]) -> None:
        if values:
            event = EventProto(wall_time=time, step=step, summary=Summary(value=values))
            self._writer.write(event.SerializeToString())


class _OptimizerScalars:
    """The scalars of one optimizer's steps; ``prefix`` of its tags is empty for the run's first."""

    def __init__(self, prefix: str) -> None:
        self.step = 0
        self.time = 0.0
        self.float16_scale = FIRST_SCALE
        """The loss scale that ``fp16`` would use in a step in another precision."""
        self._prefix = prefix
        self._steady: dict[str, tuple[float, int]] = {}
        """The newest value by tag, and the step that it was written for."""

    def of_step(self, record: StepRecord) -> Scalars:
        """Values that change in every step."""
        return self._named(_step_scalars(record, self.float16_scale))

    def changes(self, record: StepRecord) -> tuple[Scalars, Scalars]:
        """Values that rarely change: old ones up to the previous step, new ones from this step on."""
        ends, begins = {}, {}
        for tag, value in self._named(_steady_scalars(record)).items():
            before = self._steady.get(tag)
            if value is None or (before is not None and before[0] == value):
                continue
            if before is not None and before[1] != self.step:
                ends[tag] = before[0]
            begins[tag] = value
            self._steady[tag] = value, record.step
        return ends, begins

    def follow(self, record: StepRecord) -> None:
        """The step was written."""
        self.step, self.time = record.step, record.time
        if record.loss_scale is not None:
            self.float16_scale = record.loss_scale

    def ends(self) -> Scalars:
        """The last values of curves that rarely change."""
        return {tag: value for tag, (value, step) in self._steady.items() if step != self.step}

    def _named(self, scalars: Scalars) -> Scalars:
        return {f"{self._prefix}{tag}": value for tag, value in scalars.items()}


_GPU_FIELDS = ("memory_used_bytes", "utilization_percent", "power_watts", "temperature_c", "sm_clock_mhz")


def _step_scalars(record: StepRecord, float16_scale: float) -> Scalars:
    """Values that change in every step."""
    seconds = record.step_seconds
    rate = record.samples / seconds if seconds and not record.skipped else None
    in_float16 = record.loss_scale is not None
    scale = float16_scale if record.loss_scale is None else record.loss_scale
    room = None
    if record.grad_max is not None and base_precision(record.precision) not in OTHER_PRECISIONS:
        room = headroom(record.grad_max, scale)
    return {
        "loss": record.loss,
        **{f"loss_parts/{name}": value for name, value in record.losses.items()},
        "throughput/samples_per_second": rate,
        "throughput/step_seconds": seconds,
        "throughput/data_seconds": record.data_seconds,
        "gradients/norm": record.grad_norm,
        "gradients/max": record.grad_max,
        f"float16/headroom_doublings{'' if in_float16 else '_if_float16_ran'}": room,
    }


def _steady_scalars(record: StepRecord) -> Scalars:
    """Values that rarely change."""
    return {
        "learning_rate": record.lr,
        **{f"learning_rate/group_{index}": lr for index, lr in enumerate(record.group_lrs)},
        "amp/on": float(base_precision(record.precision) in AMP_PRECISIONS),
        "amp/skipped": float(record.skipped),
        "amp/loss_scale": record.loss_scale,
    }


def _validation(record: EpochFinished | Validated) -> Scalars:
    found = record.validation
    if found is None:
        return {}
    metrics = {f"validation/{name}": value for name, value in found.metrics.items()}
    return {**metrics, "validation/loss": found.loss, "validation/accuracy": found.accuracy}


def _phases(record: StepTimed) -> Scalars:
    scalars: dict[str, float | None] = {}
    for phase in record.phases:
        scalars[f"phases/{phase.name}_host_seconds"] = phase.host_seconds
        scalars[f"phases/{phase.name}_device_seconds"] = phase.device_seconds
    return scalars


def _run_lines(run: RunStarted) -> Iterator[str]:
    """Model, device, data and settings, one per line."""
    groups = {"config": run.config, "versions": run.versions, "hardware": run.hardware}
    yield f"model: {run.model}, {units.count(run.parameters)} parameters"
    yield f"device: {run.device_name} ({run.device})"
    yield f"data: {data_label(run.data)}"
    for title, values in groups.items():
        for name, value in values.items():
            yield f"{title}.{name}: {strictjson.plain(value)}"


def _event_lines(event: Event) -> Iterator[str]:
    """``12:04:31 UTC ⚠ step 612: overflow: step skipped``, its details indented below it."""
    sign = "" if event.severity == "info" else f"{units.SEVERITY_SIGNS[event.severity]} "
    step = "" if event.step is None else f"step {event.step:,}: "
    clock = strftime("%H:%M:%S UTC", gmtime(event.time))
    yield f"{clock} {sign}{step}{event_text(event)}"
    for line in event_details(event):
        yield f"    {line}"
