"""What is trained, as probes and the precision switch know it in anybody's loop, and its loss, checked."""

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.base.errors import ExperimentError
from amptui.recipe.experiment import Experiment
from amptui.recipe.lr_schedule import LrSchedule
from amptui.recipe.precision import Precision

_REFERENCES = 2
"""To an optimizer that only its NamedOptimizer holds, while they are counted."""


@dataclass(slots=True, eq=False)
class NamedOptimizer:
    """An optimizer, the model whose parameters it changes, and what a screen calls it.

    Nothing else of ours keeps the two of a script alive; others may come in their place.
    """

    name: str
    model: nn.Module
    optimizer: Optimizer

    @property
    def is_dropped(self) -> bool:
        """Whether the script has dropped the optimizer: only this object refers to it."""
        return sys.getrefcount(self.optimizer) <= _REFERENCES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The model, its optimizer, and the precisions in which it can be trained."""

    first: NamedOptimizer
    device: torch.device
    experiment: Experiment
    """Its ``loss()`` runs a forward pass again."""
    precisions: dict[str, Precision]
    precision: str
    """The first one."""
    amp_precision: str
    """What AMP means: ``fp16`` or ``bf16``."""
    unsupported: Mapping[str, str]
    """Those that the device does not support, each with the reason."""
    lr_schedule: LrSchedule | None = None
    """None also if a script has its own."""
    probes: bool
    """Whether to probe gradients and modules."""
    batch_size: int | None = None
    """Samples of a full batch, which a hint may advise to reduce; None if amptui does not set it."""
    max_rounds: int | None = None
    """The limit on rounds of an A/B test; None uses the default."""

    @property
    def model(self) -> nn.Module:
        """The one that is trained now."""
        return self.first.model

    @property
    def optimizer(self) -> Optimizer:
        """The one that trains it."""
        return self.first.optimizer


def loss_weights(samples: Sequence[int]) -> list[Callable[[Tensor], Tensor]]:
    """One function per batch that weighs its mean; the sum is the mean over all ``samples``.

    The means of equal batches are divided by their number, bit for bit as in a handwritten loop.
    """
    count, total = len(samples), sum(samples)
    if count == 1:
        return [lambda mean: mean]
    if all(batch_samples * count == total for batch_samples in samples):
        return [lambda mean: mean / count] * count
    return [partial(operator.mul, batch_samples / total) for batch_samples in samples]


def check_scalars(values: Mapping[str, object], owner: str) -> None:
    """Raise ExperimentError if a value is not a scalar tensor: it would shift the numbers in a row."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise ExperimentError(
                f"{name!r} from {owner} is a {type(value).__name__}", hint="make it a scalar tensor"
            )
        if value.numel() != 1:
            shape = "x".join(map(str, value.shape))
            raise ExperimentError(
                f"{name!r} from {owner} has shape {shape}", hint="reduce it to a scalar, e.g. with .mean()"
            )


def checked_loss(experiment: object, result: object) -> tuple[Tensor, dict[str, Tensor]]:
    """Total and parts of what ``loss()`` returned; raises ExperimentError if it has no backward pass."""
    owner = f"{type(experiment).__name__}.loss()"
    parts: dict[str, Tensor] = {}
    if isinstance(result, dict):
        if "loss" not in result:
            raise ExperimentError(f"{owner} returned a dict without 'loss'", hint="name the total 'loss'")
        parts = {name: part for name, part in result.items() if name != "loss"}
        check_scalars(parts, owner)
        result = result["loss"]
    if not isinstance(result, Tensor):
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise ExperimentError(f"{owner} returned {kind}", hint="return a scalar tensor")
    if result.numel() != 1:
        shape = "x".join(map(str, result.shape))
        raise ExperimentError(
            f"{owner} returned a tensor of shape {shape}", hint="reduce it to a scalar, e.g. with .mean()"
        )
    if not result.requires_grad:
        raise ExperimentError(
            f"{owner} returned a tensor that does not require a gradient",
            hint="compute it from the model's output, without no_grad() or detach()",
        )
    return result, parts
