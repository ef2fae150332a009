"""Decides in which steps of somebody else's loop gradients are measured, and measures them."""

import time

import torch
from torch import Tensor, nn

from amptui.engine.probes.budget import GRADIENTS_BUDGET, SEARCH_STEPS, STEPS_AFTER_TROUBLE, Cadence
from amptui.engine.probes.gradients import GradientProbe


class GradientNorms:
    """The gradients of one optimizer's model, measured as often as their budget allows, and after trouble."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self._is_sharded = False
        self._cadence = Cadence(GRADIENTS_BUDGET)
        self._known_trouble = 0
        self.until = int(self._cadence.due())
        """Up to which step all gradients are measured."""
        self.scaled_steps = 0
        self.probe = GradientProbe(nn.Module())

    def follow(self, model: nn.Module, *, is_sharded: bool) -> None:
        """Measure those of ``model`` from now on, of which each process may hold only a part."""
        self.probe, self._is_sharded = GradientProbe(model), is_sharded

    def are_due(self, step: int, *, is_scaled: bool) -> bool:
        """Whether to measure after a backward pass of the step that follows ``step``."""
        if is_scaled and self._on_cuda and self.scaled_steps < SEARCH_STEPS:
            self.until = max(self.until, step + 1)
        return step < self.until

    def look(self, step: int, trouble_step: int) -> None:
        """After ``step``: decide how long to measure; ``trouble_step`` is the newest with trouble or 0."""
        if trouble_step > self._known_trouble:
            self._known_trouble = trouble_step
            self.until = step + STEPS_AFTER_TROUBLE
        elif self._cadence.due():
            self.until = max(self.until, step + 1)

    def measure(self) -> Tensor | None:
        """One row of the probe's; None if ranks would have to measure it together, or if memory ran out."""
        began, row = time.perf_counter(), None
        try:
            with torch.autocast(self._device.type, enabled=False):
                row = None if self._is_sharded else self.probe.measure()
        except torch.OutOfMemoryError:  # a step without a norm is no reason to see nothing more
            pass
        self._cadence.measured(began)
        return row
