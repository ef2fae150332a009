"""Where NaN or Inf came from in somebody else's loop: the newest inputs, the weights, the buffers.

Nothing is hooked, and nothing is measured before a step was not finite, but once at the end of the run.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from amptui.engine.probes.buffers import BufferWatch
from amptui.engine.probes.gradients import MAX_NAMES, together
from amptui.engine.probes.module_trace import bad_inputs, largest_inputs, largest_of
from amptui.engine.readback import Readback
from amptui.records.findings import ModulesTraced, NonFiniteCause
from amptui.records.run import Record

_GAP_STEPS = 200
"""Steps between looks while trouble lasts."""


class NonFiniteOrigin:
    """Measures what one optimizer's model has read, without waiting for the device."""

    def __init__(self, device: torch.device, readback: Readback, emit: Callable[[Record], object]) -> None:
        self._device, self._readback, self._emit = device, readback, emit
        self._next_step = 0
        self._causes = set[NonFiniteCause]()

    def measure(
        self,
        model: nn.Module | None,
        inputs: Sequence[tuple[str, Tensor]],
        step: int,
        precision: str,
        *,
        is_last: bool = False,
    ) -> None:
        """Measure after ``step``, which was not finite, unless that was done not long ago; or at the end."""
        if model is None or (step < self._next_step and not is_last):
            return
        self._next_step = step + _GAP_STEPS
        # A script's class may refuse anything: then the cause stays unknown.
        with suppress(RuntimeError, TypeError, NotImplementedError):
            largest = largest_inputs((), dict(inputs))
            weights = largest_of((n, p) for n, p in model.named_parameters() if p.requires_grad)
            names = [name for name, _ in largest]
            # Inf is meant to be in a mask, but not in BatchNorm's running statistics.
            buffers = [name for name, _ in model.named_buffers()]
            watch = BufferWatch(model, {name for name in buffers if ".running_" not in f".{name}"})
            values = together([*(value for _, value in largest), *weights.values()], self._device)
            values.append(watch.measure().to(self._device, non_blocking=True))
            measurement = _Measurement(
                step=step,
                precision=precision,
                inputs=names,
                weights=[*weights],
                buffers=watch,
                is_last=is_last,
                read=frozenset(n for n in buffers if not model.get_submodule(n.rpartition(".")[0]).training),
            )
            self._readback.push(values, partial(self._deliver, measurement), timed=False)

    def _deliver(
        self, measurement: "_Measurement", row: Sequence[float] | None, _seconds: float | None
    ) -> None:
        if row is None:
            return
        split, now = len(row) - len(measurement.buffers.names), time.time()
        inputs = () if measurement.is_last else bad_inputs(measurement.inputs, row)
        measured = zip(measurement.weights, row[len(measurement.inputs) : split], strict=True)
        lost = [name for name, value in measured if not math.isfinite(value)]
        cause: NonFiniteCause = "input" if inputs else "weights" if lost else "unknown"
        statistics = measurement.buffers.record(row[split:], time=now, step=measurement.step)
        if statistics is not None:
            self._emit(statistics)
            if cause == "unknown" and (
                read := [n for n in statistics.names if measurement.is_last or n in measurement.read]
            ):
                cause, lost = "buffer", read
        if measurement.is_last and (not lost or cause in self._causes):
            return
        self._causes.add(cause)
        self._emit(
            ModulesTraced(
                time=now,
                step=measurement.step,
                precision=measurement.precision,
                loss_scale=None,
                asked=False,
                first=None,
                nearest=(),
                modules=0,
                seconds=None,
                lost=tuple(lost[:MAX_NAMES]),
                lost_count=len(lost),
                inputs=inputs,
                cause=cause,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """What was measured after a step, in the order of the row."""

    step: int
    precision: str
    inputs: Sequence[str]
    weights: Sequence[str]
    buffers: BufferWatch
    read: frozenset[str]
    """The buffers that the model reads: in training BatchNorm only writes its statistics."""
    is_last: bool
