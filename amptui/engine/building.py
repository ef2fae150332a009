"""Builds what an experiment describes, model, optimizer and schedule, and refuses what is none."""

import inspect
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from amptui.base.errors import ExperimentError
from amptui.data.batches import Batch
from amptui.device.accelerator import capabilities
from amptui.engine.compilation import compile_in_place
from amptui.engine.lr_schedule import LrSchedule
from amptui.engine.snapshot import Generators, Snapshot
from amptui.recipe.experiment import Experiment


def build_model(
    experiment: Experiment,
    device: torch.device,
    *,
    first_batch: Callable[[], Batch],
    channels_last: bool = False,
    compile_mode: str | None = None,
) -> nn.Module:
    """The model on the device; raises ExperimentError if it is no module.

    Lazy layers get their shapes from ``first_batch``, which is called only for them. ``channels_last``
    converts four-dimensional weights; convolutions convert their inputs. ``compile_mode`` compiles the
    forward pass in place: names of modules and parameters stay.
    """
    model = experiment.build_model()
    owner = type(experiment).__name__
    if not isinstance(model, nn.Module):
        raise ExperimentError(
            f"{owner}.build_model() returned {kind_of(model)}", hint="return a torch.nn.Module"
        )
    model = model.to(device)
    if _uninitialized(model):
        initialize_lazy_layers(model, experiment, device, first_batch)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    if compile_mode is not None:
        compile_in_place(model, mode=compile_mode)
    return model.train()


def build_optimizer(experiment: Experiment, model: nn.Module) -> Optimizer:
    """The optimizer of ``model``; raises ExperimentError if it is none, or needs a closure."""
    owner = type(experiment).__name__
    optimizer = experiment.build_optimizer(model)
    if not isinstance(optimizer, Optimizer):
        raise ExperimentError(
            f"{owner}.build_optimizer() returned {kind_of(optimizer)}", hint="return a torch.optim.Optimizer"
        )
    _refuse_closure(optimizer, owner)
    return optimizer


def build_lr_schedule(
    experiment: Experiment, optimizer: Optimizer, total_steps: int | None, device: torch.device
) -> LrSchedule | None:
    """The schedule that the experiment builds, if any; raises ExperimentError for something else."""
    scheduler = experiment.build_scheduler(optimizer, total_steps)
    if scheduler is None:
        return None
    owner = type(experiment).__name__
    if not isinstance(scheduler, LRScheduler):
        raise ExperimentError(
            f"{owner}.build_scheduler() returned {kind_of(scheduler)}",
            hint="return a scheduler of torch.optim.lr_scheduler, or None",
        )
    on_device = capabilities(device).timed_events
    return LrSchedule(scheduler, optimizer, interval=experiment.scheduler_interval, on_device=on_device)


def _refuse_closure(optimizer: Optimizer, owner: str) -> None:
    """Raise ExperimentError for an optimizer that calls a closure for the loss, several times per step."""
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)
    except TypeError:
        kind = type(optimizer).__name__
        raise ExperimentError(
            f"{owner}.build_optimizer() returned {kind}, whose step() needs a closure: not supported",
            hint="use an optimizer without a closure, such as Adam or SGD",
        ) from None


def kind_of(value: object) -> str:
    """What a user's method returned, for an error: ``a dict``."""
    return "None" if value is None else f"a {type(value).__name__}"


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
    """The names of lazy parameters and buffers that have no shape yet."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [name for name, tensor in tensors if is_lazy(tensor)]
