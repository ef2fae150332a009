"""The run as a TensorBoard event file: records and framing are the ``tensorboard`` package's own.

torch's ``SummaryWriter`` imports torch, takes four times as long and begins a new file each time, which is
there before it is whole: a second export would not replace the first.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from amptui.base.errors import AmptuiError
from amptui.base.text import printable
from amptui.records.findings import UpdatesMeasured
from amptui.records.run import LOW_PRECISIONS, EpochFinished, Record, Validated
from amptui.records.samples import DeviceSample
from amptui.records.steps import Column, Steps
from amptui.telemetry.numerics import headroom

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
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


def write_events(path: Path, records: Iterator[Record]) -> None:
    """Write the curves in ``records`` as scalars with the times of the records."""
    with path.open("wb") as file:
        writer = RecordWriter(file)

        def write(time: float, **content: Any) -> None:
            writer.write(Event(wall_time=time, **content).SerializeToString())

        first = next(records)
        write(first.time, file_version=_FILE_VERSION)
        for time, step, scalars in _points(chain([first], records)):
            values = [
                Summary.Value(tag=printable(tag), simple_value=value)
                for tag, value in scalars.items()
                if value is not None
            ]
            if values:
                write(time, step=step, summary=Summary(value=values))


def _points(records: Iterable[Record]) -> Iterator[tuple[float, int, Scalars]]:
    """What each record adds to the curves: when, at which step, and the values by tag."""
    newest_step = 0  # of the run's first optimizer
    numbers: dict[str, int] = {}  # of GPUs by UUID, in order of appearance
    for record in records:
        if isinstance(record, DeviceSample):
            scalars = {f"host/{name}": getattr(record.host, name) for name in _HOST_FIELDS}
            for gpu in record.gpus:
                number = numbers.setdefault(gpu.uuid, len(numbers))
                scalars |= {f"gpu{number}/{name}": getattr(gpu, name) for name in _GPU_FIELDS}
            if record.allocator is not None:
                scalars |= {f"torch/{name}": getattr(record.allocator, name) for name in _TORCH_FIELDS}
            yield record.time, newest_step, scalars
        elif isinstance(record, EpochFinished | Validated) and record.validation is not None:
            validation = record.validation
            named = {**validation.metrics, "loss": validation.loss, "accuracy": validation.accuracy}
            yield record.time, record.step, {f"validation/{name}": value for name, value in named.items()}
        elif isinstance(record, UpdatesMeasured):
            prefix = _prefix(record)
            ratios = {f"{prefix}update_ratio/{layer}": ratio for layer, ratio in record.ratios.items()}
            yield record.time, record.step, ratios
        elif isinstance(record, Steps):
            curves = _curves(record)
            for index, time in enumerate(record.times()):
                at_step = {tag: column[index] for tag, column in curves.items()}
                yield time, record.first_step + index, at_step
            newest_step = newest_step if record.optimizer else record.last_step


def _prefix(record: Steps | UpdatesMeasured) -> str:
    """Of the tags of one of several optimizers."""
    return f"{record.optimizer}/" if record.optimizer else ""


def _curves(steps: Steps) -> Mapping[str, Column]:
    """By tag."""
    pairs = zip(steps.grad_max, steps.loss_scale, strict=True)
    curves = {
        "loss": steps.loss,
        **{f"loss_parts/{name}": column for name, column in steps.losses.items()},
        "throughput/samples_per_second": steps.rates(),
        "throughput/step_seconds": steps.step_seconds,
        "throughput/data_seconds": steps.data_seconds,
        "gradients/norm": steps.grad_norm,
        "gradients/max": steps.grad_max,
        "float16/headroom_doublings": [
            None if grad_max is None or scale is None else headroom(grad_max, scale)
            for grad_max, scale in pairs
        ],
        "learning_rate": steps.lr,
        **{f"learning_rate/group_{index}": lrs for index, lrs in enumerate(steps.group_lrs)},
        "amp/on": [float(steps.precision in LOW_PRECISIONS)] * steps.count,
        "amp/skipped": [*map(float, steps.skipped)],
        "amp/loss_scale": steps.loss_scale,
    }
    return {_prefix(steps) + tag: column for tag, column in curves.items()}
