"""Detects a diverged run and ends it, or pauses it and asks the user."""

import math
from collections.abc import Callable, Collection, Sequence
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
from amptui.records.control import Control, PrecisionRequest
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
        self._meant_infinite: frozenset[int] = frozenset()
        """Which parameters hold Inf from the start: a mask that is a parameter, say."""
        self._lost_counts = _Lost()
        self._suspect_step = 0
        self._accepted_lost = 0
        """How many lost parameters the user was asked about and went on with."""
        self.floor_accepted = False
        """Whether the user was asked about a collapsed loss scale that has not recovered since."""
        self.ask_for_count: Callable[[], object] = self.count_weights
        """Has lost parameters counted; of a sharded model all ranks do that, after a step they agree on."""
        largest = _largest(self._gradients, self._parameters)
        readback.push([] if largest is None else [largest], self._take_start, timed=False)

    def check(self, precision: Precision) -> None:
        """Find a reason to pause, or raise ExperimentError, if training in ``precision`` cannot continue."""
        suspect, reporter = self._reporter.suspect, self._reporter
        if suspect is not None and reporter.delivered - suspect.delivered >= SUSPECT_STEPS - 1:
            self._check_weights(suspect.step)
        self._judge_weights()
        scale, skips = reporter.loss_scale, reporter.consecutive_skips
        is_lost = self._lost_counts.parameters and reporter.nonfinite_losses
        if not precision.scales or scale is None or is_lost:
            return
        if scale >= MIN_LOSS_SCALE:
            self.floor_accepted = False
            return
        what = f"the loss scale fell to {scale:.1e} after {skips} skipped steps in a row"
        if not self._interactive:
            raise ExperimentError(what, hint="use --precision bf16 or fp32")
        if not self.floor_accepted and self._control.newest(PrecisionRequest) is None:
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
        row = [_count_lost(self._gradients, self._meant_infinite)]
        self._readback.push(row, self._take_count, timed=False)
        self._readback.drain()  # on a CPU the result is there at once

    def _judge_weights(self) -> None:
        """Act on the result of the last check."""
        reporter, lost_count = self._reporter, self._lost_counts.parameters
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
            resume_hint = self._writer.resume_hint or "there is no earlier checkpoint: use a smaller --lr"
            raise ExperimentError(what, hint=resume_hint)
        self._accepted_lost = lost_count
        self.pause_reason = PauseReason("weights", what)

    def _take_start(self, row: Sequence[float] | None, _seconds: float | None) -> None:
        """Learn which parameters hold Inf on purpose; a checkpoint with Inf in another is no way back."""
        if row:
            names = self._reporter.gradients.names
            self._meant_infinite = frozenset(i for i, largest in enumerate(row) if math.isinf(largest))
            self._writer.finite_names = frozenset(names) - {names[i] for i in self._meant_infinite}

    def _take_count(self, row: Sequence[float] | None, _seconds: float | None) -> None:
        if row is None:
            return
        self._lost_counts = _Lost(*map(int, row))
        if not self._lost_counts.parameters:
            self._accepted_lost = 0

    def _lost_weights(self) -> str:
        lost_count, infinite_count = self._lost_counts
        if not lost_count:
            return ""
        kind = "NaN or Inf" if infinite_count else "NaN"
        return f", and {lost_count:,} of {len(self._parameters):,} parameters contain {kind}"


class _Lost(NamedTuple):
    """How many parameters have lost their values."""

    parameters: int = 0
    infinite: int = 0
    """Those of them with Inf and no NaN: they are NaN at the next step that uses them."""


@torch.no_grad()
def _largest(gradients: GradientProbe, parameters: Sequence[Tensor]) -> Tensor | None:
    """[n]: the largest absolute value of each of ``parameters``, NaN where one holds NaN, on their device."""
    if not parameters:
        return None
    elements = [dense_elements(p.detach()) for p in parameters]
    present = [values for values in elements if values is not None]
    if not present:
        return gradients.largest_anywhere(torch.zeros(len(elements), device=parameters[0].device))
    return gradients.largest_anywhere(row_with_gaps(norm_of_each(present, math.inf), elements))


def _count_lost(gradients: GradientProbe, meant_infinite: Collection[int]) -> Tensor:
    """[2]: how many parameters hold NaN or Inf, and how many Inf alone; the host does not wait.

    Left out are a parameter without a gradient, which has no part in the loss and may never have been
    initialized, and Inf in those of ``meant_infinite``.
    """
    trained_parameters = [(i, p) for i, p in enumerate(gradients.parameters) if p.grad is not None]
    row = _largest(gradients, [p for _, p in trained_parameters])
    if row is None:
        return torch.zeros(2)
    largest = [
        value.nan_to_num(nan=math.nan, posinf=0.0) if i in meant_infinite else value
        for (i, _), value in zip(trained_parameters, row, strict=True)
    ]
    row = torch.stack(largest)
    return torch.stack([(~row.isfinite()).sum(), row.isinf().sum()])
