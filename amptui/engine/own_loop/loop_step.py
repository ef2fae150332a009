"""What is known of the step that somebody else's loop is making, until its numbers are sent."""

import torch
from torch import Tensor

from amptui.engine.precision import ScalerTensors
from amptui.engine.step_row import LearningRates, RowLayout, row_layout

_AUTOCAST_PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class LoopStep:
    """Filled by the hooks. Most of it is the same in most steps: that stands in the class."""

    loss: Tensor | None = None
    """The sum of the unscaled losses that were backpropagated."""
    logged_loss: Tensor | None = None
    parts: dict[str, Tensor] | None = None
    """What else the loop logged."""
    asked: float | None = None
    """When loading its batches began, by ``perf_counter``; None if nobody measures it."""
    data_seconds = 0.0
    samples = batches = backwards = 0
    autocast = "fp32"
    """The precision that autocast runs."""
    is_scaled = False
    norms: Tensor | None = None
    """What the gradient probe measured."""
    norms_scaled = False
    """Whether it measured before unscaling."""
    unscaled_inf: Tensor | None = None
    """Whether unscaling found an overflow."""
    found_inf: Tensor | None = None
    """The same once the weights are updated: the step waits for the scaler's own update."""
    scale_before: Tensor | None = None
    lrs = LearningRates(None)

    def set_autocast(self, dtype: torch.dtype | None) -> None:
        """Autocast runs in ``dtype``; None for not at all."""
        self.autocast = "fp32" if dtype is None else _AUTOCAST_PRECISIONS.get(dtype, "fp32")

    def again(self) -> "LoopStep":
        """A new attempt at the same step, with the batches that were loaded for it."""
        other = LoopStep()
        other.asked, other.data_seconds = self.asked, self.data_seconds
        other.samples, other.batches = self.samples, self.batches
        return other

    def row(self, scaler: ScalerTensors | None) -> tuple[RowLayout, list[Tensor]]:
        """The values to send to the host, and the layout that reads them there."""
        loss, lrs = self.loss if self.logged_loss is None else self.logged_loss, self.lrs.on_device
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
