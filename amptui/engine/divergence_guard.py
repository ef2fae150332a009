"""Detects a diverged run and ends it, or pauses it and asks the user."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from amptui import units
from amptui.control import Control, PrecisionRequest
from amptui.engine.checkpoint.writer import CheckpointWriter
from amptui.engine.precision import Precision
from amptui.engine.probes.gradients import dense_elements, norm_of_each
from amptui.engine.readback import Readback
from amptui.engine.reporting import StepReporter
from amptui.errors import ExperimentError
from amptui.records import PauseCause

HOPELESS_STEPS = 10
"""A run does not learn if its first losses, this many and all of applied steps, are not finite."""

SUSPECT_STEPS = 5
"""The weights are checked after this many non-finite losses in a row, and again after as many more. A single
one may be a bad batch. Meanwhile the modules are traced, to find where the NaN starts before the run ends."""

MIN_LOSS_SCALE = 2.0**-24
"""40 halvings below the initial scale. After 126 more it is 0, and the next step makes every weight NaN."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """Why a run paused by itself; both are empty for a pause by the user."""

    cause: PauseCause = ""
    reason: str = ""


class DivergenceGuard:
    """Checks losses and loss scale between two steps, and the weights if losses are not finite."""

    def __init__(
        self,
        reporter: StepReporter,
        control: Control,
        readback: Readback,
        keeper: CheckpointWriter,
        *,
        interactive: bool,
    ) -> None:
        self._reporter = reporter
        self._control = control
        self._readback = readback
        self._keeper = keeper
        self._interactive = interactive
        self._found = Standstill()
        self._parameters = reporter.gradients.parameters
        self._suspect_at = SUSPECT_STEPS
        self._lost_parameters = 0
        """Parameters that contained NaN at the last check."""
        self._loss_accepted = False
        """Whether the user was asked about them."""
        self.floor_accepted = False
        """Whether the user was asked about the collapsed loss scale."""

    def look(self, precision: Precision) -> None:
        """If training in ``precision`` cannot continue, find a reason to pause or raise ExperimentError."""
        if self._reporter.nonfinite_losses:
            self._look_at_weights()
        else:
            self._suspect_at, self._lost_parameters, self._loss_accepted = SUSPECT_STEPS, 0, False
        if precision.scales and not self._lost_parameters:
            self._look_at_scale()

    def look_last(self) -> None:
        """Raise ExperimentError if weights became NaN in the last steps and the user was not asked."""
        if self._reporter.nonfinite_losses and not self._loss_accepted:
            self._suspect_at = self._reporter.nonfinite_losses
            self._interactive = False  # the run is over: it is too late to ask
            self._look_at_weights()
            self._readback.flush()
            self._look_at_weights()

    @property
    def wants_pause(self) -> bool:
        """Whether :meth:`take_found` has a reason to return."""
        return self._found.cause != ""

    def take_found(self) -> Standstill:
        """Return the reason to pause, and forget it."""
        found, self._found = self._found, Standstill()
        return found

    def _look_at_weights(self) -> None:
        """Check the weights after non-finite losses, and act on the result."""
        reporter = self._reporter
        if reporter.nonfinite_losses >= self._suspect_at:
            self._suspect_at = reporter.nonfinite_losses + SUSPECT_STEPS
            self._readback.push([_count_nan(self._parameters)], self._take_count, timed=False)
            self._readback.drain()  # a CPU has the result at once
        if reporter.bad_applied_steps >= HOPELESS_STEPS or (
            self._lost_parameters and not reporter.finite_losses
        ):
            raise ExperimentError(
                f"the loss has been {reporter.last_loss} since step 1{self._nan_weights()}",
                hint="check the inputs and the loss, or use a smaller --lr",
            )
        if not self._lost_parameters or self._loss_accepted:
            return
        since = reporter.trouble_step - reporter.nonfinite_losses + 1
        what = f"the loss has been {reporter.last_loss} since step {units.count(since)}{self._nan_weights()}"
        if not self._interactive:
            self._keeper.wait()  # an earlier checkpoint may still be being written
            way_back = self._keeper.way_back or "there is no earlier checkpoint: use a smaller --lr"
            raise ExperimentError(what, hint=way_back)
        self._loss_accepted = True
        self._found = Standstill("weights", what)

    def _look_at_scale(self) -> None:
        scale = self._reporter.loss_scale
        if scale is None:
            return
        if scale >= MIN_LOSS_SCALE:
            self.floor_accepted = False
            return
        skips = self._reporter.consecutive_skips
        what = f"the loss scale fell to {scale:.1e} after {skips} skipped steps in a row"
        if not self._interactive:
            raise ExperimentError(what, hint="use --precision bf16 or fp32")
        if not self.floor_accepted and self._control.newest(PrecisionRequest) is None:
            self.floor_accepted = True
            self._found = Standstill("loss scale", what)

    def _take_count(self, row: Sequence[float] | None, _seconds: float | None) -> None:
        if row is not None and self._reporter.nonfinite_losses:
            self._lost_parameters = int(row[0])

    def _nan_weights(self) -> str:
        lost, parameters = self._lost_parameters, len(self._parameters)
        return f", and {lost:,} of {parameters:,} parameters contain NaN" if lost else ""


@torch.no_grad()
def _count_nan(parameters: Sequence[Tensor]) -> Tensor:
    """How many of ``parameters`` contain NaN, 0-d on their device; the host does not wait.

    Parameters without a gradient do not count: they may never have been initialized.
    """
    trained = [dense_elements(p.detach()) for p in parameters if p.grad is not None]
    present = [elements for elements in trained if elements is not None]
    if not present:
        return torch.zeros(())
    return torch.stack(norm_of_each(present, math.inf)).isnan().sum()
