"""The tensors that a step leaves on the device, and the row that brings their values to the host."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from amptui.engine.learning_rates import LearningRates
from amptui.engine.precision import ScalerTensors


class RowLayout(NamedTuple):
    """Which numbers a row holds, in this order: loss, parts, learning rates, scaler, clip norm, gradients."""

    parts: tuple[str, ...] = ()
    """Names of the loss's parts."""
    lrs: int = 0
    """The number of learning rates."""
    scaled: bool = False
    """Whether it holds the scaler's values."""
    clipped: bool = False
    """Whether it holds a clip norm."""
    loss: bool = True
    """Whether it holds a loss: the one of somebody else's loop may not be known."""


LOSS_ALONE = RowLayout()

row_layout = lru_cache(maxsize=64)(RowLayout)
"""Steps have the layout of earlier ones: looking it up is faster than building it."""


class StepTensors(NamedTuple):
    """What one step left on the device."""

    precision: str
    loss: Tensor
    """The mean over the step's samples; it has a graph if the step has one batch."""
    parts: Mapping[str, Tensor]
    lrs: LearningRates
    scaler: ScalerTensors | None
    clip_norm: Tensor | None
    """The norm of the unscaled gradients that clipping used."""
    gradients: Tensor | None
    """What the gradient probe measured."""
    gradients_scaled: bool
    """Whether it measured before unscaling."""

    def row(self) -> tuple[RowLayout, list[Tensor]]:
        """The values to send to the host, and the layout that reads them there."""
        _, loss, parts, lrs, scaler, clip_norm, gradients, _ = self
        if scaler is None and gradients is None and clip_norm is None and not parts and not lrs.on_device:
            return LOSS_ALONE, [loss]  # the usual case without a scaler
        values: list[Tensor] = [self.loss]
        names: tuple[str, ...] = ()
        if self.parts:
            names = tuple(self.parts)
            values += self.parts.values()
        if self.lrs.on_device:
            values += self.lrs.on_device
        if self.scaler is not None:
            values += self.scaler
        if self.clip_norm is not None:
            values.append(self.clip_norm)
        if self.gradients is not None:
            values.append(self.gradients)
        layout = row_layout(
            names, len(self.lrs.on_device), self.scaler is not None, self.clip_norm is not None
        )
        return layout, values
