"""What is known of the step that somebody else's loop is making, until its numbers are sent."""

from collections.abc import Mapping

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from amptui.engine.learning_rates import LearningRates
from amptui.engine.precision import ScalerTensors
from amptui.engine.step_row import LOSS_ALONE, RowLayout, row_layout
from amptui.guest.loop.pass_account import StepPasses


class LoopStep:
    """Filled by the hooks. Most of it is the same in most steps: that stands in the class."""

    passes = StepPasses()
    """Its backward passes, once it is made."""
    logged_loss: Tensor | None = None
    parts: dict[str, Tensor] | None = None
    """What else the loop logged."""
    asked: float | None = None
    """When loading its batches began, by ``perf_counter``; None if nobody measures it."""
    data_seconds = 0.0
    samples = batches = 0
    trained_samples = 0
    """Of the batches whose gradients it uses."""
    norms: Tensor | None = None
    """What the gradient probe measured."""
    norms_scaled = False
    """Whether it measured before unscaling."""
    scaler: GradScaler | None = None
    """The one that steps the optimizer."""
    unscaled_inf: Tensor | None = None
    """Whether unscaling found an overflow."""
    found_inf: Tensor | None = None
    """The same once the weights are updated: the step waits for the scaler's own update."""
    scale_before: Tensor | None = None
    lrs = LearningRates(None)

    def again(self) -> "LoopStep":
        """A new attempt at the same step, with the batches that were loaded for it."""
        other = LoopStep()
        other.asked, other.data_seconds = self.asked, self.data_seconds
        other.samples, other.batches = self.samples, self.batches
        return other

    def load(self, asked: float, seconds: float, samples: int) -> None:
        """A batch was loaded for it."""
        if self.asked is None:
            self.asked = asked
        self.data_seconds += seconds
        self.samples += samples
        self.batches += 1

    def log(self, loss: Tensor | None, values: Mapping[str, Tensor]) -> None:
        """The loop logged numbers with it, each without dimensions."""
        if loss is not None:
            self.logged_loss = loss
        if values:
            self.parts = {**(self.parts or {}), **values}

    def row(self, scaler: ScalerTensors | None) -> tuple[RowLayout, list[Tensor]]:
        """The values to send to the host, and the layout that reads them there.

        The loss is what the loop logged, else the sum of what it backpropagated; none if that is not known.
        """
        loss, lrs = self.logged_loss, self.lrs.on_device
        if loss is None and not self.passes.absence:
            loss = self.passes.loss
        if loss is not None and not lrs and scaler is None and self.parts is None and self.norms is None:
            return LOSS_ALONE, [loss]  # the usual case
        values: list[Tensor] = [] if loss is None else [loss]
        names: tuple[str, ...] = ()
        if self.parts:
            names = tuple(self.parts)
            values += self.parts.values()
        if lrs:
            values += lrs
        if scaler is not None:
            values += scaler
        if self.norms is not None:
            values.append(self.norms)
        return row_layout(names, len(lrs), scaler is not None, loss=loss is not None), values
