"""Prepares everything before the first step: device, experiment, data, model, optimizer, precisions."""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from amptui.data.batches import Batch, Batches, Collate, open_batches
from amptui.data.sources import Arrays, Data, DataRequest
from amptui.engine.compilation import (
    CompileWatch,
    NewIteration,
    check_compiler,
    compile_in_place,
    uses_cuda_graphs,
)
from amptui.engine.lazy_layers import initialize_lazy_layers, is_lazy_model
from amptui.engine.lr_schedule import LrSchedule
from amptui.engine.precision import Precision, build_precisions, check_supported, unsupported_precisions
from amptui.engine.weights import check_files, load_weights
from amptui.errors import DeviceError, ExperimentError, UsageError
from amptui.experiment import Experiment
from amptui.records import Phase
from amptui.request import TrainRequest

Announce = Callable[[Phase, str, str], object]
"""Takes a phase, its text on the screen, and what to name if it fails."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What is chosen before any code of a model file runs."""

    device: torch.device
    precision: str
    amp_precision: str
    unsupported: dict[str, str]


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
class Prepared:
    """Everything the training loop needs."""

    device: torch.device
    experiment: Experiment
    data: Data
    training: Batches
    validation: Batches | None
    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler
    first_scale: float
    """The loss scale that a run starts with."""
    precisions: dict[str, Precision]
    unsupported: dict[str, str]
    precision: str
    amp_precision: str
    schedule: Schedule
    lr_schedule: LrSchedule | None
    clip_norm: float | None
    accumulate: int
    """Batches per optimizer step."""
    validate_every: int | None
    """Steps between validations within an epoch; None validates after epochs only."""
    validation_batches: int | None
    """The limit on batches of a validation."""
    seed: int
    probes: bool
    """Whether to probe gradients and modules."""
    max_rounds: int | None
    """The limit on rounds of an A/B test; None uses the default."""
    compilations: CompileWatch = field(default_factory=CompileWatch)


def choose_device(name: str) -> torch.device:
    """The device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; raises DeviceError if it is not available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        what = f"device {name}: torch finds no CUDA GPU"
        raise DeviceError(what, hint="use --device cpu; `amptui doctor` says why")
    device = torch.device(name)
    index, count = device.index or 0, torch.cuda.device_count()
    if index >= count:
        gpus = "is only 1 GPU" if count == 1 else f"are only {count} GPUs"
        raise DeviceError(f"device {name}: there {gpus}", hint="the first one is cuda:0")
    return torch.device("cuda", index)


def enter_device(device: torch.device) -> None:
    """Make ``device`` the current device, which is per thread."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, including the GPU's."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def schedule_for(request: TrainRequest, epochs: int, steps_per_epoch: int | None) -> Schedule:
    """The schedule: the smaller of epochs and steps; ``--steps`` alone runs as many epochs as needed."""
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
    chosen: type[Experiment], request: TrainRequest, device: torch.device, *, batch_size: int | None = None
) -> dict[str, str]:
    """The fields set by the user, with ``--set`` or another option, and the default batch size for a CPU.

    ``batch_size`` is that of a resumed run, which a different device does not change.
    """
    settings = dict(request.settings)
    named = {
        "epochs": request.epochs,
        "batch_size": request.batch_size,
        "learning_rate": request.learning_rate,
    }
    settings |= {name: str(value) for name, value in named.items() if value is not None}
    if batch_size is None and device.type == "cpu":
        batch_size = chosen.cpu_batch_size
    if batch_size is not None:
        settings.setdefault("batch_size", str(batch_size))
    return settings


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
            f"{owner}.build_model() returned {_kind(model)}", hint="return a torch.nn.Module"
        )
    model = model.to(device)
    if is_lazy_model(model):
        initialize_lazy_layers(model, experiment, device, first_batch)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    if compile_mode is not None:
        compile_in_place(model, compile_mode)
    return model.train()


def build_optimizer(experiment: Experiment, model: nn.Module) -> Optimizer:
    """The optimizer of ``model``; raises ExperimentError if it is none, or needs a closure."""
    owner = type(experiment).__name__
    optimizer = experiment.build_optimizer(model)
    if not isinstance(optimizer, Optimizer):
        raise ExperimentError(
            f"{owner}.build_optimizer() returned {_kind(optimizer)}", hint="return a torch.optim.Optimizer"
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
            f"{owner}.build_scheduler() returned {_kind(scheduler)}",
            hint="return a scheduler of torch.optim.lr_scheduler, or None",
        )
    on_device = device.type == "cuda"
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


def open_data(
    data: Data,
    device: torch.device,
    batch_size: int,
    seed: int,
    *,
    workers: int | None = None,
    collate: Collate | None = None,
) -> tuple[Batches, Batches | None]:
    """Training and validation batches on the device."""
    if not isinstance(data, Data):
        raise ExperimentError(f"load_data() returned {_kind(data)}", hint="return an amptui.Data")
    for name, kind in (("name", str), ("real", bool)):
        value = getattr(data, name)
        if not isinstance(value, kind):  # it would make the journal's first record unreadable
            raise ExperimentError(
                f"load_data() returned Data with {name}={value!r:.100}",
                hint="return Data(name=..., real=True, train=...); real=False for synthetic data",
            )
    opened = partial(
        open_batches, device=device, batch_size=batch_size, seed=seed, workers=workers, collate=collate
    )
    training = opened(data.train, training=True)
    return training, None if data.validation is None else opened(data.validation, training=False)


def _collate_of(experiment: Experiment) -> Collate | None:
    """The experiment's own ``collate_fn``, if it has one."""
    own = getattr(type(experiment), "collate_fn", None) is not Experiment.collate_fn
    return experiment.collate_fn if own else None


def _workers_unused(data: Data, workers: int) -> str:
    """Why ``--workers`` has no effect; empty if it has."""
    if isinstance(data.train, Arrays):
        return "the data is in memory already"
    if isinstance(data.train, DataLoader) and data.train.num_workers != workers:
        return f"the model's own DataLoader has {data.train.num_workers}"
    return "the data is a stream" if isinstance(data.train, IterableDataset) else ""


def choose(request: TrainRequest) -> Choices:
    """The requested device and precisions; raises DeviceError and UsageError if they are not available."""
    device = choose_device(request.device)
    check_files(request)
    if uses_cuda_graphs(request.compile_mode, device) and request.accumulate > 1:
        # Gradients are in the graphs' memory: the next replay would overwrite them.
        raise UsageError(
            f"--accumulate does not work with the CUDA graphs of --compile {request.compile_mode}",
            hint="use --compile default",
        )
    if request.compile_mode is not None:
        check_compiler(device)
    unsupported = unsupported_precisions(device)
    precision = request.precision or "fp32"
    check_supported(precision, unsupported)
    amp_precision = request.amp_precision or ("fp16" if device.type == "cuda" else "bf16")
    check_supported(amp_precision, unsupported)
    return Choices(device, precision, amp_precision, unsupported)


def prepare_precisions(
    device: torch.device, compile_mode: str | None = None
) -> tuple[GradScaler, dict[str, Precision]]:
    """The run's one scaler, and every precision."""
    scaler = GradScaler(device.type)
    precisions = build_precisions(device, scaler)
    if uses_cuda_graphs(compile_mode, device):
        for precision in precisions.values():
            precision.wrap_forward(NewIteration)
    return scaler, precisions


def assemble(
    request: TrainRequest,
    experiment: Experiment,
    choices: Choices,
    *,
    data_request: DataRequest,
    announce: Announce = lambda _phase, _detail, _doing: None,
) -> Prepared:
    """Load the data and build model, optimizer and precisions; call ``announce`` before long work."""
    owner, device = type(experiment).__name__, choices.device
    if request.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    announce("data", "loading data", f"in load_data() of {owner}")
    data = experiment.load_data(data_request)
    training, validation = open_data(
        data,
        device,
        experiment.batch_size,
        request.seed,
        workers=request.workers,
        collate=_collate_of(experiment),
    )
    if request.workers and (why := _workers_unused(data, request.workers)):
        data_request.warn(f"--workers {request.workers} has no effect: {why}")
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
    # With the weights in place: an average of them that is made here starts from them.
    announce_model(f"in build_optimizer() of {owner}")
    optimizer = build_optimizer(experiment, model)
    steps = training.batches_per_epoch
    schedule = schedule_for(request, experiment.epochs, steps and math.ceil(steps / request.accumulate))
    announce_model(f"in build_scheduler() of {owner}")
    lr_schedule = build_lr_schedule(experiment, optimizer, schedule.steps, device)
    scaler, precisions = prepare_precisions(device, request.compile_mode)
    return Prepared(
        device=device,
        experiment=experiment,
        data=data,
        training=training,
        validation=validation if request.validation else None,
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        first_scale=scaler.get_scale(),
        precisions=precisions,
        unsupported=choices.unsupported,
        precision=choices.precision,
        amp_precision=choices.amp_precision,
        schedule=schedule,
        lr_schedule=lr_schedule,
        clip_norm=request.clip_norm,
        accumulate=request.accumulate,
        validate_every=request.validate_every,
        validation_batches=request.validation_batches,
        seed=request.seed,
        probes=request.probes,
        max_rounds=request.max_rounds,
    )


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
