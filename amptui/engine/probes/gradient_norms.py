"""Decides in which steps all gradients are measured, and measures them."""

import time
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from amptui.engine.probes.budget import GRADIENTS_BUDGET, Cadence
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.readback import MAX_STEPS_BETWEEN_LOOKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from amptui.engine.reporting import StepReporter


SEARCH_STEPS = 20
"""The first steps with a scaler: its search for a scale starts at 65,536 and takes fewer skips than this."""

STEPS_AFTER_TROUBLE = 5
"""After a skip or a growth, another skip follows within these steps or not soon: they measure gradients."""


class GradientNorms:
    """The gradients of one optimizer's model, measured as often as their budget allows, and after trouble.

    ``enabled``: whether to measure them at all before something is wrong with them.
    """

    def __init__(
        self, device: torch.device, probe: GradientProbe | None = None, *, enabled: bool = True
    ) -> None:
        self._device = device
        self._enabled = enabled
        self._foresees = enabled and device.type == "cuda"
        """Whether steps are measured that may be skipped: on CUDA that is known when gradients are gone."""
        self._is_sharded = False
        self._cadence = Cadence(GRADIENTS_BUDGET)
        self._known_trouble = 0
        self._next_growth: int | None = None
        """The step after which the loss scale grows, as far as is known."""
        self.until = int(enabled)
        """Up to which step all gradients are measured."""
        self.scaled_steps = 0
        """Steps made with a loss scaler."""
        self.probe = GradientProbe(nn.Module()) if probe is None else probe
        self.suppress_errors: Callable[[str], AbstractContextManager[None]] = _without_memory
        """The context of a measurement, by its name: what keeps its errors from the training."""

    def follow(self, model: nn.Module, *, is_sharded: bool) -> None:
        """Measure those of ``model`` from now on, of which each process may hold only a part."""
        self.probe, self._is_sharded = GradientProbe(model), is_sharded

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
        self._cadence.measured(began)
        return row


def _without_memory(_what: str) -> AbstractContextManager[None]:
    """Lets a lack of memory pass: a step without a norm is no reason to see nothing more."""
    return suppress(torch.OutOfMemoryError)
