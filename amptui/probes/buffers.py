"""NaN and Inf in a model's buffers: a forward pass may put them into statistics, which no scaler checks."""

import math
import time
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from amptui.probes.gradients import (
    MAX_NAMES,
    dense_elements,
    is_measurable,
    norm_of_each,
    row_with_gaps,
)
from amptui.probes.probe import BUFFERS_BUDGET, Cadence, Moment, Probe, Sender
from amptui.records.run import NonFinite, NonFiniteKind

BUFFERS_GAP_STEPS = 20
"""Steps between extra checks of the buffers while trouble lasts."""


class BufferWatch:
    """Finds NaN and Inf in a model's floating-point buffers, such as BatchNorm statistics.

    The Inf of a buffer among ``infinite_at_start`` (see ``infinite_names``) is meant to be there and is not
    reported. NaN always is. Nothing here waits for the device.
    """

    def __init__(self, model: nn.Module, infinite_at_start: Collection[str]) -> None:
        buffers = [(name, b) for name, b in model.named_buffers() if b.is_floating_point() or b.is_complex()]
        self.names = tuple(name for name, _ in buffers)
        """The buffers in the model's order."""
        split = [name.rpartition(".") for name in self.names]
        self._owners = [(model.get_submodule(path), key) for path, _, key in split]
        self._infinite_at_start = infinite_at_start
        self._bad: dict[str, NonFiniteKind] = {}

    @torch.no_grad()
    def measure(self) -> Tensor:
        """[len(names)] float32 on the buffers' device, for :meth:`record`.

        A value is NaN or Inf if its buffer holds one; any finite value only says that it does not.
        """
        # Looked up every time: a module may assign a new tensor instead of writing into the old one.
        present_now = [getattr(module, key, None) for module, key in self._owners]
        buffers = [
            dense_elements(buffer) if buffer is not None and is_measurable(buffer) else None
            for buffer in present_now
        ]
        present = [elements for elements in buffers if elements is not None]
        if not present:
            return torch.zeros(len(buffers))
        return row_with_gaps(norm_of_each(present, math.inf), buffers)

    def record(self, row: Sequence[float], *, time: float, step: int) -> NonFinite | None:
        """The record of all buffers with NaN or Inf in a delivered ``row``; None if there is no new one.

        ``time`` is Unix seconds. NaN comes before Inf; at most ``MAX_NAMES`` are named.
        """
        bad: dict[str, NonFiniteKind] = {}
        for name, largest in zip(self.names, row, strict=True):
            if math.isnan(largest):
                bad[name] = "nan"
            elif math.isinf(largest) and name not in self._infinite_at_start:
                bad[name] = "inf"
        before, self._bad = self._bad, bad
        if bad.keys() <= before.keys():
            return None
        worst = sorted(bad, key=lambda name: bad[name] == "inf")[:MAX_NAMES]
        kinds = tuple(bad[name] for name in worst)
        return NonFinite(
            time=time,
            step=step,
            what="buffer",
            kind=kinds[0],
            names=tuple(worst),
            count=len(bad),
            kinds=kinds,
        )


class BufferProbe(Probe):
    """Checks a model's buffers as often as ``BUFFERS_BUDGET`` allows, and after a step with NaN or Inf."""

    what = "buffer check"

    def __init__(self, model: nn.Module, infinite_at_start: Collection[str], sender: Sender) -> None:
        self._watch = BufferWatch(model, infinite_at_start)
        self._sender = sender
        self._cadence = Cadence(BUFFERS_BUDGET)
        self._trouble_step = -BUFFERS_GAP_STEPS

    def is_due(self) -> bool:
        return self._cadence.due()

    def after_backward(self, moment: Moment) -> None:
        self._check(moment.step)

    def check_after(self, trouble_step: int, step: int) -> None:
        """Check them after ``step``, if ``trouble_step``, the newest with NaN or Inf, is a new trouble's."""
        if trouble_step and trouble_step - self._trouble_step >= BUFFERS_GAP_STEPS:
            self._trouble_step = trouble_step
            self._check(step)

    def _check(self, step: int) -> None:
        def deliver(values: Sequence[float] | None, _other: float | None, _seconds: float | None) -> None:
            record = None if values is None else self._watch.record(values, time=time.time(), step=step)
            if record is not None:
                self._sender.emit(record)

        with self._sender.suppress_errors(self.what):
            began = time.perf_counter()
            if self._watch.names:
                self._sender.push(self._watch.measure(), None, deliver)
            self._cadence.charge_since(began)
