"""Detects a diverged run and ends it, or pauses it and asks the user."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from amptui.base import units
from amptui.base.errors import ExperimentError
from amptui.checkpoint.writer import CheckpointWriter
from amptui.device.readback import Readback
from amptui.monitor.reporting import StepReporter
from amptui.probes.gradients import GradientProbe, dense_elements, norm_of_each, row_with_gaps
from amptui.recipe.precision import Precision
from amptui.records.control import Control
from amptui.records.run import PauseCause

HOPELESS_STEPS = 10
"""A run does not learn if its first losses, this many and all of applied steps, are not finite."""

SUSPECT_STEPS = 5
"""Steps from the first loss or gradient that is not finite, itself counted, until the weights are checked. A
single one may be a bad batch. Meanwhile the modules of the steps after the first are traced, so that a run
does not end before it is known where the NaN starts."""

MIN_LOSS_SCALE = 2.0**-24
"""40 halvings below the initial scale. After 126 more it is 0, and the next step makes every weight NaN."""


class PauseReason(NamedTuple):
    """Why a run paused by itself; a pause by the user has neither cause nor reason."""

    cause: PauseCause = ""
    reason: str = ""


class DivergenceGuard:
    """Checks the reporter's losses and loss scale between two steps, and the weights if those look bad.

    Outside ``fp16`` no scaler skips a step: one Inf among the gradients makes weights NaN or Inf for good.
    The loss may hide it: that of an embedding does, if the row comes up only now and then.
    """

    def __init__(
        self,
        reporter: StepReporter,
        control: Control,
        readback: Readback,
        writer: CheckpointWriter,
        *,
        interactive: bool,
    ) -> None:
        self._reporter = reporter
        self._control = control
        self._readback = readback
        self._writer = writer
        self._interactive = interactive
        self.pause_reason: PauseReason | None = None
        """Why it wants a pause, until that was taken."""
        self._gradients = reporter.gradients
        self._parameters = reporter.gradients.parameters
        writer.finite_names = reporter.gradients.names
        self._lost_count = 0
        """How many parameters have lost their values."""
        self._suspect_step = 0
        self._accepted_lost = 0
        """How many lost parameters the user was asked about and went on with."""
        self.floor_accepted = False
        """Whether the user was asked about a collapsed loss scale that has not recovered since."""
        self.ask_for_count: Callable[[], object] = self.count_weights
        """Has lost parameters counted; of a sharded model all ranks do that, after a step they agree on."""

    def check(self, precision: Precision) -> None:
        """Find a reason to pause, or raise ExperimentError, if training in ``precision`` cannot continue."""
        suspect, reporter = self._reporter.suspect, self._reporter
        if suspect is not None and reporter.delivered - suspect.delivered >= SUSPECT_STEPS - 1:
            self._check_weights(suspect.step)
        self._judge_weights()
        scale, skips = reporter.loss_scale, reporter.consecutive_skips
        is_lost = self._lost_count and reporter.nonfinite_losses
        if not precision.scales or scale is None or is_lost:
            return
        if scale >= MIN_LOSS_SCALE:
            self.floor_accepted = False
            return
        what = f"the loss scale fell to {scale:.1e} after {skips} skipped steps in a row"
        if not self._interactive:
            raise ExperimentError(what, hint="use --precision bf16 or fp32")
        if not self.floor_accepted and self._control.newest("precision") is None:
            self.floor_accepted = True
            self.pause_reason = PauseReason("loss scale", what)

    def check_last(self) -> None:
        """Raise ExperimentError if the last steps made weights NaN and the user does not know yet."""
        suspect = self._reporter.suspect
        if self._accepted_lost:
            return
        self._interactive = False  # the run is over: there is nothing to ask
        if suspect is not None:
            self._check_weights(suspect.step)
        self._readback.flush()
        self._judge_weights()

    def _check_weights(self, suspect_step: int) -> None:
        self._suspect_step, self._reporter.suspect = suspect_step, None
        self.ask_for_count()

    def count_weights(self) -> None:
        """Count lost parameters: one pass over the weights, with no wait for the device."""
        self._readback.push([_count_lost(self._gradients)], self._take_count, timed=False)
        self._readback.drain()  # on a CPU the result is there at once

    def _judge_weights(self) -> None:
        """Act on the result of the last check."""
        reporter, lost_count = self._reporter, self._lost_count
        if reporter.nonfinite_losses and (
            reporter.bad_applied_steps >= HOPELESS_STEPS or (lost_count and not reporter.finite_losses)
        ):
            raise ExperimentError(
                f"the loss has been {reporter.last_loss} since step 1{self._lost_weights()}",
                hint="check the inputs and the loss, or use a smaller --lr",
            )
        if lost_count <= self._accepted_lost:
            return
        if reporter.nonfinite_losses:
            since = reporter.trouble_step - reporter.nonfinite_losses + 1
            what = f"the loss has been {reporter.last_loss} since step {units.count(since)}"
        else:
            what = f"the loss or a gradient of step {units.count(self._suspect_step)} was not finite"
        what += self._lost_weights()
        if not self._interactive:
            self._writer.wait()  # an earlier checkpoint may still be being written
            no_checkpoint = "there is no earlier checkpoint: check the data, or use a smaller --lr"
            raise ExperimentError(what, hint=self._writer.resume_hint or no_checkpoint)
        self._accepted_lost = lost_count
        self.pause_reason = PauseReason("weights", what)

    def _take_count(self, row: Sequence[float] | None, _seconds: float | None) -> None:
        if row is not None:
            self._lost_count = int(row[0])
            self._accepted_lost = self._accepted_lost if self._lost_count else 0

    def _lost_weights(self) -> str:
        lost = f", and {self._lost_count:,} of {len(self._parameters):,} parameters contain NaN or Inf"
        return lost if self._lost_count else ""


@torch.no_grad()
def _count_lost(gradients: GradientProbe) -> Tensor:
    """0-d: how many parameters hold NaN or Inf; the host does not wait.

    Left out is a parameter without a gradient, which has no part in the loss and may never have been
    initialized.
    """
    trained = [parameter for parameter in gradients.parameters if parameter.grad is not None]
    if not trained:
        return torch.zeros(())
    elements = [dense_elements(parameter.detach()) for parameter in trained]
    present = [values for values in elements if values is not None]
    row = torch.zeros(len(elements), device=trained[0].device)
    if present:
        row = row_with_gaps(norm_of_each(present, math.inf), elements)
    return (~gradients.largest_anywhere(row).isfinite()).sum()
