"""Decides in which steps all gradients are measured, and measures them."""

import time
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from amptui.device.accelerator import capabilities
from amptui.device.readback import MAX_STEPS_BETWEEN_LOOKS
from amptui.probes.budget import GRADIENTS_BUDGET, Cadence
from amptui.probes.gradients import GradientProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from amptui.monitor.reporting import StepReporter


SEARCH_STEPS = 20
"""Scaled steps until GradScaler has found its scale: from 65,536 that takes fewer skips than this."""

STEPS_AFTER_TROUBLE = 5
"""Steps whose gradients are measured after a skip or a growth of the scale: if another skip follows soon, it
is within these."""


class GradientNorms:
    """Measures a model's gradients as often as ``GRADIENTS_BUDGET`` allows, and in the steps after trouble.

    Without ``enabled`` only what a step itself has to know is measured.
    """

    def __init__(
        self, device: torch.device, probe: GradientProbe | None = None, *, enabled: bool = True
    ) -> None:
        self._device = device
        self._enabled = enabled
        self._foresees = enabled and capabilities(device).timed_events
        """Whether to measure before a skip is known: on a GPU the gradients are gone by then."""
        self._is_sharded = False
        self._cadence = Cadence(GRADIENTS_BUDGET)
        self._known_trouble = 0
        self._next_growth: int | None = None
        """The step after which the loss scale will grow, if no step before it is skipped."""
        self.until = int(enabled)
        """The last step whose gradients are measured, as planned so far."""
        self.scaled_steps = 0
        """Steps made with a loss scaler."""
        self.probe = GradientProbe(nn.Module()) if probe is None else probe
        # Without memory the step has no norm, and later ones are measured as usual.
        self.suppress_errors: Callable[[str], AbstractContextManager[None]]
        self.suppress_errors = lambda _what: suppress(torch.OutOfMemoryError)
        """Makes the context of a measurement, by its name, which keeps its errors from the training."""

    def follow(self, model: nn.Module, owner: object, *, is_sharded: bool) -> None:
        """Measure the gradients of ``model`` from now on; ``is_sharded``: only a part of them is here.

        Once ``owner``, the optimizer, is gone, nothing of the model is held.
        """
        self.probe, self._is_sharded = GradientProbe(model, owner), is_sharded

    def are_due(self, step: int, *, is_scaled: bool) -> bool:
        """Whether to measure after a backward pass of the step that follows ``step``."""
        if is_scaled and self._foresees and self.scaled_steps < SEARCH_STEPS:
            self.until = max(self.until, step + SEARCH_STEPS - self.scaled_steps)
        return step < self.until

    def look(self, step: int, reporter: "StepReporter", growth_interval: int | None = None) -> int:
        """After ``step``: decide how long to measure; return after how many steps to look again.

        ``growth_interval`` is that of the steps' loss scaler; None if they have none, or it is not known.
        """
        if not self._enabled:
            return MAX_STEPS_BETWEEN_LOOKS
        if reporter.trouble_step > self._known_trouble:
            self._known_trouble = reporter.trouble_step
            self.until = step + STEPS_AFTER_TROUBLE
        elif self._cadence.due():
            self.until = max(self.until, step + 1)
        if growth_interval is None or not self._foresees:
            return MAX_STEPS_BETWEEN_LOOKS
        if self._next_growth is not None and self._next_growth <= step:
            self.until = max(self.until, self._next_growth + STEPS_AFTER_TROUBLE)
        self._next_growth = reporter.next_growth(growth_interval, step)
        return MAX_STEPS_BETWEEN_LOOKS if self._next_growth is None else max(1, self._next_growth - step)

    def measure(self) -> Tensor | None:
        """One row of the probe's; None if that fails, or if ranks would have to measure it together."""
        began, row = time.perf_counter(), None
        with self.suppress_errors("gradient norms"), torch.autocast(self._device.type, enabled=False):
            row = None if self._is_sharded else self.probe.measure()
        self._cadence.charge_since(began)
        return row
