"""The loss of an experiment, checked, and weighed where several batches make a step."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from amptui.base.errors import ExperimentError


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
