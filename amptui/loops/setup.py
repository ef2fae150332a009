"""Prepares everything before the first step: device, experiment, data, model, optimizer, precisions."""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from amptui.base.errors import DeviceError, ExperimentError
from amptui.checkpoint.states import load_weights
from amptui.data.batches import Batch, Batches, open_batches
from amptui.data.sources import Arrays, Data, DataRequest
from amptui.device.accelerator import capabilities, default_device, device_count, is_available
from amptui.loops.compilation import (
    NewIteration,
    compile_in_place,
    missing_for_compile,
    uses_cuda_graphs,
)
from amptui.loops.strategy import Ranks, Strategy
from amptui.probes.snapshot import Generators, Snapshot
from amptui.recipe.experiment import Experiment
from amptui.recipe.float8 import float8_linears
from amptui.recipe.lr_schedule import LrSchedule
from amptui.recipe.precision import (
    Precision,
    amp_of,
    build_precisions,
    check_enterable,
    check_supported,
    unsupported_precisions,
)
from amptui.recipe.request import TrainRequest
from amptui.recipe.trained import NamedOptimizer, Trained
from amptui.records.run import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long the run is; None if the data has no known length."""

    epochs: int
    steps: int | None
    """The expected number of steps; wrong if the data reports a wrong length."""
    steps_per_epoch: int | None
    """Optimizer steps."""
    asked_steps: int | None = None
    """``--steps``: the run ends after them, even in the middle of an epoch."""
    asked_epochs: bool = True
    """Whether the run ends with the last epoch; else it runs as many as ``asked_steps`` need."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared(Trained):
    """Everything the training loop needs."""

    request: TrainRequest
    data: Data
    training: Batches
    validation: Batches | None
    built_groups: int
    """The parameter groups that ``build_optimizer()`` made."""
    scaler: GradScaler
    schedule: Schedule
    strategy: Strategy
    """How it trains together with other ranks, or alone."""


Announce = Callable[[Phase, str, str], object]
"""Takes a phase, its text on the screen, and what to name if it fails."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What is chosen before any code of a model file runs."""

    device: torch.device
    precision: str
    amp_precision: str
    unsupported: dict[str, str]


def choose_device(name: str) -> torch.device:
    """The device for ``auto``, ``cpu``, ``cuda``, ``xpu``, ``mps`` or one of those with its number.

    Raises DeviceError if it is not available.
    """
    if name == "auto":
        return default_device()
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not is_available(device.type):
        what = f"device {name}: torch finds no {capabilities(device).title} GPU"
        raise DeviceError(what, hint="use --device cpu; `amptui doctor` says why")
    index, count = device.index or 0, device_count(device.type)
    if index >= count:
        gpus = "is only 1 GPU" if count == 1 else f"are only {count} GPUs"
        raise DeviceError(f"device {name}: there {gpus}", hint=f"the first one is {device.type}:0")
    return torch.device(device.type, index)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, including the GPU's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


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
    try:  # one that calls a closure for the loss does so several times per step
        inspect.signature(type(optimizer).step).bind(optimizer)
    except TypeError:
        kind = type(optimizer).__name__
        raise ExperimentError(
            f"{owner}.build_optimizer() returned {kind}, whose step() needs a closure: not supported",
            hint="use an optimizer without a closure, such as Adam or SGD",
        ) from None
    return optimizer


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


def schedule_for(request: TrainRequest, epochs: int, steps_per_epoch: int | None) -> Schedule:
    """The schedule: the smaller of epochs and steps; ``--steps`` alone runs as many epochs as needed."""
    if request.min_steps is not None:
        epochs = max(epochs, math.ceil(request.min_steps / (steps_per_epoch or 1)))
        steps = None if steps_per_epoch is None else epochs * steps_per_epoch
        return Schedule(epochs=epochs, steps=steps, steps_per_epoch=steps_per_epoch)
    steps = request.steps
    limited = request.epochs is not None or "epochs" in request.settings
    if steps is not None and not limited:
        epochs = math.ceil(steps / steps_per_epoch) if steps_per_epoch else max(epochs, steps)
    elif steps_per_epoch is not None:
        longest = epochs * steps_per_epoch
        steps = longest if steps is None else min(steps, longest)
    return Schedule(
        epochs=epochs,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        asked_steps=request.steps,
        asked_epochs=limited or request.steps is None,
    )


def experiment_settings(
    experiment_class: type[Experiment],
    request: TrainRequest,
    device: torch.device,
    *,
    batch_size: int | None = None,
) -> dict[str, str]:
    """The fields set by the user, with ``--set`` or another option, and the default batch size for a CPU.

    ``batch_size`` is that of a resumed run, which a different device does not change.
    """
    settings = dict(request.settings)
    options = {
        "epochs": request.epochs,
        "batch_size": request.batch_size,
        "learning_rate": request.learning_rate,
    }
    settings |= {name: str(value) for name, value in options.items() if value is not None}
    if batch_size is None and device.type == "cpu":
        batch_size = experiment_class.cpu_batch_size
    if batch_size is not None:
        settings.setdefault("batch_size", str(batch_size))
    return settings


def _load_data(
    request: TrainRequest,
    experiment: Experiment,
    device: torch.device,
    data_request: DataRequest,
    ranks: Ranks,
) -> tuple[Data, Batches, Batches | None]:
    """The data with its training and validation batches on the device; warns of what is not used."""
    data = ranks.in_turn(partial(experiment.load_data, data_request))
    if not isinstance(data, Data):
        raise ExperimentError(f"load_data() returned {kind_of(data)}", hint="return an amptui.Data")
    for name, kind in (("name", str), ("real", bool)):
        value = getattr(data, name)
        if not isinstance(value, kind):  # it would make the journal's first record unreadable
            raise ExperimentError(
                f"load_data() returned Data with {name}={value!r:.100}",
                hint="return Data(name=..., real=True, train=...); real=False for synthetic data",
            )
    own_collate = getattr(type(experiment), "collate_fn", None) is not Experiment.collate_fn
    open_part = partial(
        open_batches,
        device=device,
        batch_size=experiment.batch_size,
        seed=request.seed,
        workers=request.workers,
        collate=experiment.collate_fn if own_collate else None,
        share=ranks.share,
    )
    training = open_part(data.train, training=True)
    validation = None if data.validation is None else open_part(data.validation, training=False)
    why = ""
    if isinstance(data.train, Arrays):
        why = "the data is in memory already"
    elif isinstance(data.train, DataLoader):
        own = data.train.num_workers
        why = "" if own == request.workers else f"the model's own DataLoader has {own}"
    elif isinstance(data.train, IterableDataset):
        why = "the data is a stream"
    if request.workers and why:
        data_request.warn(f"--workers {request.workers} has no effect: {why}")
    return data, training, validation


def choose(request: TrainRequest) -> Choices:
    """The requested device and precisions; raises DeviceError and UsageError if they are not available."""
    device = choose_device(request.device)
    if request.compile_mode is not None and (missing := missing_for_compile(device)) is not None:
        raise DeviceError(f"--compile needs a compiler: {missing.what}", hint=missing.hint)
    unsupported = unsupported_precisions(device)
    precision = request.precision or "fp32"
    amp_precision = amp_of(device, precision, request.amp_precision)
    for name in (precision, amp_precision):
        check_supported(name, unsupported, resumes=request.resume)
    return Choices(device, precision, amp_precision, unsupported)


def prepare_precisions(
    device: torch.device, compile_mode: str | None = None
) -> tuple[GradScaler, dict[str, Precision]]:
    """The run's one scaler, and every precision."""
    scaler = GradScaler(device.type)
    precisions = build_precisions(device, scaler)
    if uses_cuda_graphs(compile_mode, device):
        for precision in precisions.values():
            precision.forward_context = NewIteration(precision.forward_context)
            precision.replays_graphs = True
    return scaler, precisions


def assemble(
    request: TrainRequest,
    experiment: Experiment,
    choices: Choices,
    *,
    data_request: DataRequest,
    announce: Announce = lambda _phase, _detail, _doing: None,
    ranks: Ranks | None = None,
) -> Prepared:
    """Load the data and build model, optimizer and precisions; call ``announce`` before long work.

    ``ranks`` train together, each with its share of the data; without any this process trains alone.
    """
    owner, device = type(experiment).__name__, choices.device
    ranks = ranks or Ranks()
    if request.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    announce("data", "loading data", f"in load_data() of {owner}")
    data, training, validation = _load_data(request, experiment, device, data_request, ranks)
    announce_model = partial(announce, "model", "building the model")
    announce_model(f"in build_model() of {owner}")
    seed_everything(request.seed)  # the weights do not depend on what the data drew
    model = build_model(
        experiment,
        device,
        first_batch=training.first,
        channels_last=request.channels_last,
        compile_mode=request.compile_mode,
    )
    if request.init_weights is not None and not request.resume:
        announce("model", "reading the weights", "while reading the weights")
        load_weights(model, Path(request.init_weights))
    strategy = ranks.strategy(experiment, model)
    # With the weights in place: an average of them that is made here starts from them.
    announce_model(f"in build_optimizer() of {owner}")
    optimizer = build_optimizer(experiment, model)
    steps = training.batches_per_epoch
    schedule = schedule_for(request, experiment.epochs, steps and math.ceil(steps / request.accumulate))
    if request.min_steps is not None:
        experiment.epochs = schedule.epochs  # a schedule per epoch has to last as long
    announce_model(f"in build_scheduler() of {owner}")
    lr_schedule, scheduler = None, experiment.build_scheduler(optimizer, schedule.steps)
    if not isinstance(scheduler, LRScheduler | None):
        raise ExperimentError(
            f"{owner}.build_scheduler() returned {kind_of(scheduler)}",
            hint="return a scheduler of torch.optim.lr_scheduler, or None",
        )
    if scheduler is not None:
        interval, on_device = experiment.scheduler_interval, capabilities(device).timed_events
        lr_schedule = LrSchedule(scheduler, optimizer, interval=interval, on_device=on_device)
    scaler, precisions = prepare_precisions(device, request.compile_mode)
    linears, unsupported = float8_linears(model, choices.unsupported)
    for precision in precisions.values():
        precision.linears = linears
    check_enterable(precisions[choices.precision], unsupported)
    strategy.join((training, validation), unsupported)
    return Prepared(
        request=request,
        device=device,
        experiment=experiment,
        data=data,
        training=training,
        validation=validation if request.validation else None,
        first=NamedOptimizer("", model, optimizer),
        built_groups=len(optimizer.param_groups),
        scaler=scaler,
        precisions=precisions,
        unsupported=unsupported,
        precision=choices.precision,
        amp_precision=choices.amp_precision,
        schedule=schedule,
        lr_schedule=lr_schedule,
        strategy=strategy,
        probes=request.probes,
        batch_size=experiment.batch_size,
        max_rounds=request.max_rounds,
    )
