"""Initializes lazy layers before the first step, with a forward pass that is undone."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from amptui.base.errors import ExperimentError
from amptui.data.batches import Batch
from amptui.engine.snapshot import Generators, Snapshot
from amptui.recipe.experiment import Experiment


def is_lazy_model(model: nn.Module) -> bool:
    """Whether ``model`` has uninitialized parameters or buffers."""
    return bool(_uninitialized(model))


def initialize_lazy_layers(
    model: nn.Module, experiment: Experiment, device: torch.device, first_batch: Callable[[], Batch]
) -> None:
    """Pass ``first_batch`` through ``model`` and its loss, which gives every lazy layer its shape.

    Then initialize the layers in the model's order, from the random state before: they and all later random
    numbers are as if the layers had explicit sizes. Raises ExperimentError if the batch does not reach a
    lazy layer.
    """
    lazy = [
        module
        for module in model.modules()
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()
    ]
    generators, before = Generators.current(device), Snapshot(model, device)
    model.train()
    try:
        batch = first_batch()
        generators.apply()
        experiment.loss(model, batch)
    finally:
        before.restore()
    left = _uninitialized(model)
    if left:
        more = f" and {len(left) - 1} more" if left[1:] else ""
        raise ExperimentError(
            f"the first batch leaves {left[0]}{more} uninitialized",
            hint="use a layer with explicit sizes instead of a lazy one",
        )
    for module in lazy:
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()


def _uninitialized(model: nn.Module) -> list[str]:
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [name for name, tensor in tensors if is_lazy(tensor)]
