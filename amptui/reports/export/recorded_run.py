"""A whole journal: the session's view, and the curves that only an export draws."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Literal

from amptui.records.run import EpochFinished, Record, RunStarted, Validated
from amptui.records.samples import DeviceSample
from amptui.records.steps import Steps
from amptui.telemetry.history import Track
from amptui.telemetry.optimizers import FIRST, MAX_OPTIMIZERS
from amptui.telemetry.session import Session
from amptui.telemetry.stretch import Stretch, stretches
from amptui.telemetry.view import EMPTY_SERIES, Series, SessionView

MAX_PARTS = 8
"""Loss components with a curve; a chart of more would be unreadable."""

_OF_STEPS = ("grad_norm", "lr")


class RecordedRun:
    """Collects the records of a journal in order; read the properties after the last one.

    With ``read_again``, which returns the records once more, it only counts the steps, and its views are made
    of them when one is asked for. Curves and validations are not known then.
    """

    def __init__(
        self, name: str, folder: str, *, read_again: Callable[[], Iterable[Record]] | None = None
    ) -> None:
        self.name = name
        """The run's name, from its files."""
        self.steps = 0
        """Steps in the journal; a step that was repeated after a resume counts twice."""
        self.started: RunStarted | None = None
        self.validations: list[EpochFinished | Validated] = []
        """The records with a validation."""
        self.passed_over = ""
        """What of the journal could not be read, in one line."""
        self._session = Session(folder)
        self._read_again = read_again
        self._device: defaultdict[str, _Curve] = defaultdict(_Curve)
        self._by_optimizer: dict[str, _StepCurves] = {FIRST: _StepCurves()}
        self._step = 0

    @property
    def view(self) -> SessionView:
        """The view at the end of the journal, its first optimizer in front."""
        if self._read_again is not None:
            self._session.fold(self._read_again())
            self._read_again = None
        return self._session.view(FIRST)

    @property
    def other_views(self) -> list[SessionView]:
        """The same with each of the other optimizers in front."""
        return [self._session.view(each.name) for each in self.view.optimizers if each.name != FIRST]

    def parts(self, optimizer: str = FIRST) -> dict[str, Series]:
        """The parts of the loss by name, one value per step."""
        own = self._by_optimizer.get(optimizer, _StepCurves())
        return {name: curve.series for name, curve in own.parts.items()}

    def step_curve(self, name: Literal["grad_norm", "lr"], optimizer: str = FIRST) -> Series:
        """One value per step."""
        own = self._by_optimizer.get(optimizer, _StepCurves())
        return own.curves[name].series if name in own.curves else EMPTY_SERIES

    def device_curve(self, name: Literal["gpu_memory", "allocated", "power", "busy"]) -> Series:
        """A device sample counts for the newest step of the first optimizer at that time."""
        return self._device[name].series if name in self._device else EMPTY_SERIES

    def add(self, records: Sequence[Record]) -> None:
        """Add the next records."""
        if self._read_again is not None:
            self.steps += sum(record.count for record in records if isinstance(record, Steps))
            return
        self._session.fold(records)
        blocks: list[Steps] = []
        for record in records:
            if isinstance(record, Steps):
                blocks.append(record)
                continue
            if isinstance(record, RunStarted | DeviceSample):
                self._add_steps(blocks)
                blocks = []
            self._add(record)
        self._add_steps(blocks)

    def _add(self, record: Record) -> None:
        if isinstance(record, RunStarted):
            self.started = record
            for curve in self._device.values():
                curve.resuming = True
            for own in self._by_optimizer.values():
                own.expect_resume()
        elif isinstance(record, DeviceSample):
            self._add_sample(record)
        elif isinstance(record, EpochFinished | Validated) and record.validation is not None:
            self.validations.append(record)

    def _add_steps(self, blocks: Sequence[Steps]) -> None:
        self.steps += sum(block.count for block in blocks)
        for name in dict.fromkeys(block.optimizer for block in blocks):
            own = [block for block in blocks if block.optimizer == name]
            if name not in self._by_optimizer and len(self._by_optimizer) == MAX_OPTIMIZERS:
                continue
            curves = self._by_optimizer.setdefault(name, _StepCurves())
            for stretch in stretches(own):
                curves.add(stretch)
            if name == FIRST:
                self._step = own[-1].last_step

    def _add_sample(self, sample: DeviceSample) -> None:
        if not self._step:
            return
        gpu = SessionView(run=self.started, device=sample).training_gpu
        found = {
            "allocated": sample.allocator.allocated_bytes if sample.allocator else None,
            "gpu_memory": gpu.memory_used_bytes if gpu else None,
            "power": gpu.power_watts if gpu else None,
            "busy": gpu.utilization_percent if gpu else None,
        }
        for name, value in found.items():
            if value is not None:
                self._device[name].put(self._step, [value])


class _StepCurves:
    """The curves of one optimizer's steps."""

    def __init__(self) -> None:
        self.curves: defaultdict[str, _Curve] = defaultdict(_Curve)
        self.parts: dict[str, _Curve] = {}

    def expect_resume(self) -> None:
        for curve in (*self.curves.values(), *self.parts.values()):
            curve.resuming = True

    def add(self, stretch: Stretch) -> None:
        for name in _OF_STEPS:
            self.curves[name].put(stretch.first_step, stretch.column(name))
        for name in dict.fromkeys(name for block in stretch.blocks for name in block.losses):
            if name in self.parts or len(self.parts) < MAX_PARTS:
                columns = (block.losses.get(name, [None] * block.count) for block in stretch.blocks)
                self.parts.setdefault(name, _Curve()).put(stretch.first_step, [*chain.from_iterable(columns)])


class _Curve:
    """A track that accepts gaps, and earlier steps again after a resume."""

    def __init__(self) -> None:
        self._track: Track | None = None
        self.resuming = False

    @property
    def series(self) -> Series:
        return EMPTY_SERIES if self._track is None else self._track.snapshot()

    def put(self, first_step: int, values: Sequence[float | None]) -> None:
        """Add the values of the steps from ``first_step`` on; out-of-order ones are ignored."""
        if self._track is None:
            self._track = Track.empty(first_step=first_step)
        if self.resuming:
            self._track.rewind(first_step)
            self.resuming = False
        gap = first_step - self._track.next_step
        if gap >= 0:
            self._track.skip(gap)
            self._track.extend(values)
