"""Where NaN or Inf came from in somebody else's loop: the newest inputs, the weights, the buffers.

Nothing is hooked, and nothing is measured before a step was not finite, but once at the end of the run.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from amptui.device.readback import Readback
from amptui.probes.buffers import BufferWatch
from amptui.probes.gradients import MAX_NAMES, together
from amptui.probes.module_trace import bad_inputs, largest_inputs, largest_of
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

        def deliver(row: Sequence[float] | None, _seconds: float | None) -> None:
            if row is None:
                return
            split, now = len(row) - len(watch.names), time.time()
            bad = () if is_last else bad_inputs(largest, row)
            measured = zip(weights, row[len(largest) : split], strict=True)
            lost = [name for name, value in measured if not math.isfinite(value)]
            cause: NonFiniteCause = "input" if bad else "weights" if lost else "unknown"
            statistics = watch.record(row[split:], time=now, step=step)
            if statistics is not None:
                self._emit(statistics)
                if cause == "unknown" and (names := [n for n in statistics.names if is_last or n in read]):
                    cause, lost = "buffer", names
            if is_last and (not lost or cause in self._causes):
                return
            self._causes.add(cause)
            self._emit(
                ModulesTraced(
                    time=now,
                    step=step,
                    precision=precision,
                    loss_scale=None,
                    asked=False,
                    first=None,
                    nearest=(),
                    modules=0,
                    seconds=None,
                    lost=tuple(lost[:MAX_NAMES]),
                    lost_count=len(lost),
                    inputs=bad,
                    cause=cause,
                )
            )

        # A script's class may refuse anything: then the cause stays unknown.
        with suppress(RuntimeError, TypeError, NotImplementedError):
            largest = largest_inputs((), dict(inputs))
            weights = largest_of((n, p) for n, p in model.named_parameters() if p.requires_grad)
            # Inf is meant to be in a mask, but not in BatchNorm's running statistics.
            buffers = [name for name, _ in model.named_buffers()]
            watch = BufferWatch(model, {name for name in buffers if ".running_" not in f".{name}"})
            # In training BatchNorm only writes its statistics.
            read = {n for n in buffers if not model.get_submodule(n.rpartition(".")[0]).training}
            values = together([*(value for _, value in largest), *weights.values()], self._device)
            values.append(watch.measure().to(self._device, non_blocking=True))
            self._readback.push(values, deliver, timed=False)
