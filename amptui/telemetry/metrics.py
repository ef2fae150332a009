"""The history of every logged value that is no panel's curve: loss parts, validations, updates, GPU.

Each is kept in a quarter of the resolution of the panels' curves, because there may be many.
"""

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

from amptui.records.findings import UpdatesMeasured
from amptui.records.run import RunStarted, Validation
from amptui.records.samples import DeviceSample
from amptui.records.steps import Column, Steps
from amptui.telemetry.history import Track, Tracks
from amptui.telemetry.view import Metric, MetricKind, Series, training_gpu

MAX_NAMED = 128
"""So many loss parts and validation metrics are kept, the first that were logged: each takes 23 KiB."""

_COLUMNS = ("grad_norm", "grad_max", "lr", "step_seconds", "data_seconds")
"""The columns of steps that have no other history."""

_KINDS = get_args(MetricKind)

_NAMED = ("part", "own validation")
"""The kinds to which a user gives names."""


@dataclass(slots=True, eq=False)
class Metrics:
    """Histories by kind and name. Steps of a metric that were not measured cost nothing."""

    are_left_out: bool = False
    """Whether more than ``MAX_NAMED`` were logged."""
    _tracks: dict[str, Tracks] = field(default_factory=lambda: {kind: Tracks(512, 128) for kind in _KINDS})

    def add(self, steps: Steps) -> None:
        """Add the columns and the loss parts of steps."""
        first_step = steps.first_step
        for name in _COLUMNS:
            self._add("step", name, first_step, getattr(steps, name))
        for group, rates in enumerate(steps.group_lrs[1:], 2):  # the first is the step's
            self._add("step", f"lr {group}", first_step, rates)
        # The parts of the loss, and what else the training logs in each step.
        for name, column in steps.losses.items():
            self._add("part", name, first_step, column)

    def add_validation(self, step: int, result: Validation) -> None:
        """Add loss, accuracy and the experiment's own metrics, at the step of the validation."""
        self._add("validation", "loss", step, [result.loss])
        self._add("validation", "accuracy", step, [result.accuracy])
        for name, value in result.metrics.items():
            self._add("own validation", name, step, [value])

    def add_updates(self, record: UpdatesMeasured) -> None:
        """Add the update ratio of each layer."""
        for layer, ratio in record.ratios.items():
            self._add("update", layer, record.step, [ratio])

    def add_sample(self, sample: DeviceSample, run: RunStarted | None, step: int) -> None:
        """Add what NVML says of the training GPU, and torch's allocator, at the newest step."""
        if step < 1:
            return
        gpu = training_gpu(run, sample)
        if gpu is not None:
            for name in ("memory_used_bytes", "utilization_percent", "power_watts", "temperature_c"):
                self._add("device", name, step, [getattr(gpu, name)])
        if sample.allocator is not None:
            self._add("device", "allocated_bytes", step, [sample.allocator.allocated_bytes])

    def rewind(self, next_step: int) -> None:
        """Forget the values from ``next_step`` on: the run repeats these steps."""
        for tracks in self._tracks.values():
            tracks.rewind(next_step)

    def settle(self) -> None:
        """As :meth:`Track.settle`."""
        for tracks in self._tracks.values():
            tracks.settle()

    def view(self, lock: threading.Lock) -> tuple[Metric, ...]:
        """All of them, by kind and in the order in which they came.

        A history is computed when it is read, under the ``lock`` of who adds to it.
        """

        def read(track: Track) -> Series:
            with lock:
                return track.snapshot()

        return tuple(
            Metric(kind, name, partial(read, track))
            for kind in _KINDS
            for name, track in self._tracks[kind].by_name.items()
        )

    def _add(self, kind: MetricKind, name: str, first_step: int, values: Column) -> None:
        """Add the values of consecutive steps, which replace those from ``first_step`` on."""
        if values.count(None) == len(values):
            return
        tracks = self._tracks[kind]
        if name not in tracks.by_name and kind in _NAMED:
            named = sum(len(self._tracks[kind].by_name) for kind in _NAMED)
            if named == MAX_NAMED:
                self.are_left_out = True
                return
        tracks.add(name, first_step, values)
