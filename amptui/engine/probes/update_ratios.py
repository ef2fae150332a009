"""When to measure how far an optimizer step moves the weights, and the way of the result to a record.

The weights are copied just before a step and compared just after it. No step waits for the device; one that
is not measured pays nothing.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler
from amptui.engine.failure import explain
from amptui.engine.probes.budget import UPDATES_BUDGET, Cadence
from amptui.engine.probes.update_probe import Measured, UpdateProbe, WeightsBefore, record_of
from amptui.engine.readback import open_readback
from amptui.records.run import Note, Record

GAP_STEPS = 20
"""Steps from one measurement to the next at least: a record takes about 1 KB of the journal."""

_CAPACITY = 8


class UpdateRatios:
    """Measures the steps of one optimizer as often as ``UPDATES_BUDGET`` allows; the training thread's.

    ``optimizer``: under which name they are recorded.
    """

    def __init__(
        self, device: torch.device, emit: Callable[[Record], object], *, optimizer: str = ""
    ) -> None:
        self._device = device
        self._emit = emit
        self._optimizer = optimizer
        self._cadence = Cadence(UPDATES_BUDGET)
        self._probe: UpdateProbe | None = None
        self._newest_step = -GAP_STEPS
        self._before: WeightsBefore | None = None
        self._copy_seconds = 0.0
        self._readback = open_readback(device, clock=time.perf_counter, capacity=_CAPACITY)
        self._row_length = 0
        self._trouble = ""
        """Why the first measurement that failed did so, until that is emitted."""
        self._has_failed = False
        self.until = 1
        """The last step that is measured, as planned so far."""
        self.is_open = False
        """Whether the weights from before the step that is being made were copied."""

    def follow(self, model: nn.Module, *, enabled: bool) -> None:
        """Measure steps that change ``model`` from now on; not ``enabled``: none, as where it is sharded.

        A rank that has a part of the weights would have to meet the others in the middle of a step.
        """
        self._probe = UpdateProbe(model) if enabled else None
        self.forget()

    def forget(self) -> None:
        """Hold nothing of a step that was not completed: the copies, and with them the model."""
        self._before, self.is_open = None, False

    def look(self, step: int) -> None:
        """After ``step``: emit what has arrived, and plan whether to measure the next one."""
        self.drain()
        if self._probe is not None and step + 1 - self._newest_step >= GAP_STEPS and self._cadence.due():
            self.until = step + 1

    def copy(self, optimizer: Optimizer) -> None:
        """Copy the weights that ``optimizer`` is about to change."""
        self.forget()
        if self._probe is None:
            return
        began = time.perf_counter()
        with self._measuring():
            self._before, self.is_open = self._probe.copy(optimizer), True
            self._owner = weakref.ref(optimizer, lambda _optimizer: self.forget())  # gone within its step
        self._copy_seconds = time.perf_counter() - began
        if not self.is_open:
            self._cadence.charge_since(began)

    def measure(self, step: int, found_inf: Tensor | None) -> None:
        """Compare the weights after ``step``; ``found_inf`` is the scaler's, which skips it if not 0."""
        before, self._before, self.is_open = self._before, None, False
        if before is None:
            return
        began, self._newest_step = time.perf_counter(), step
        with self._measuring():
            row, measured = before.compare()
            if measured:
                self._push(row, measured, step, found_inf)
        self._cadence.charge_since(began - self._copy_seconds)

    def drain(self) -> None:
        """Emit what has arrived."""
        self._readback.drain()
        if self._trouble:
            self._emit(Note(time=time.time(), severity="warning", text=f"no update ratios: {self._trouble}"))
            self._trouble = ""

    def flush(self) -> None:
        """Emit everything; waits for the device."""
        self._readback.flush()
        self.drain()

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Without the autocast that may be on here; an error, a lack of memory for example, ends no step."""
        kind = self._device.type
        try:
            # To enter a context of autocast would tell our own hooks that a forward pass begins.
            is_enabled = torch.is_autocast_enabled(kind)
            torch.set_autocast_enabled(kind, False)
            try:
                yield
            finally:
                torch.set_autocast_enabled(kind, is_enabled)
        except Exception as error:  # a tensor subclass may raise anything; the run must go on
            if is_from_signal_handler(error):
                raise
            if not self._has_failed:
                self._has_failed = True
                self._trouble = explain(error, doing="beside a step", batch_size=None).what

    def _push(self, row: Tensor, measured: tuple[Measured, ...], step: int, found_inf: Tensor | None) -> None:
        if len(row) > self._row_length:
            if self._row_length:
                # More is trained than before. To lengthen the ring would wait for what is under way.
                self._readback = open_readback(self._device, clock=time.perf_counter, capacity=_CAPACITY)
            self._row_length = len(row)

        def deliver(values: Sequence[float] | None, _seconds: float | None) -> None:
            if values is None or (found_inf_is_sent and values[-1]):
                return  # lost; or the scaler skipped the step, and there was no update
            norms = values[:-1] if found_inf_is_sent else values
            record = record_of(norms, measured, time=time.time(), step=step, optimizer=self._optimizer)
            if record.ratios:
                self._emit(record)

        found_inf_is_sent = found_inf is not None
        self._readback.push([row] if found_inf is None else [row, found_inf], deliver, timed=False)
