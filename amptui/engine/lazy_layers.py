"""Initializes lazy layers before the first step, with one forward pass that is undone."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from amptui.data.batches import Batch
from amptui.engine.snapshot import Generators, Snapshot
from amptui.errors import ExperimentError
from amptui.experiment import Experiment


def is_lazy_model(model: nn.Module) -> bool:
    """Whether some of its parameters or buffers have no shape yet."""
    return bool(_shapeless(model))


def materialise(
    model: nn.Module, experiment: Experiment, device: torch.device, first_batch: Callable[[], Batch]
) -> None:
    """Pass ``first_batch`` through ``model`` and its loss, so that every lazy layer learns its shape.

    The layers are then initialised in the model's order, from the random state before: they are as if their
    sizes had been written down, and so is all that is drawn later. Raises ExperimentError where the batch
    does not reach a lazy layer.
    """
    lazy = [module for module in model.modules() if _is_lazy_module(module)]
    generators, before = Generators.current(device), Snapshot.take(model, device)
    model.train()
    try:
        batch = first_batch()
        generators.apply()
        experiment.loss(model, batch)
    finally:
        before.restore()
    left = _shapeless(model)
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


def _is_lazy_module(module: nn.Module) -> bool:
    return isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()


def _shapeless(model: nn.Module) -> list[str]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in tensors if is_lazy(tensor)]
