"""Everything that stands before the first step: device, experiment, data, model, optimizer, modes."""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.data.batches import Batch, Batches, open_batches
from amptui.data.sources import Data, DataRequest
from amptui.engine.lazy import is_lazy_model, materialise
from amptui.engine.precision import PrecisionMode, build_modes, check_supported, unsupported_precisions
from amptui.errors import DeviceError, ExperimentError
from amptui.experiment import Experiment
from amptui.records import Phase
from amptui.request import TrainRequest

Announce = Callable[[Phase, str, str], object]
"""Takes a phase, what a person reads of it, and where a traceback would have come from."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What was chosen before any code of a model file runs."""

    device: torch.device
    precision: str
    amp_precision: str
    unsupported: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long the run is; None where the data does not know its length."""

    epochs: int
    steps: int | None
    """How many there will be; more or fewer where the data's length is not what it says."""
    steps_per_epoch: int | None
    asked_steps: int | None = None
    """Those that a person asked for: the run ends with the last of them, in mid-epoch too."""
    asked_epochs: bool = True
    """Whether the run ends with the last epoch; else it takes as many as ``asked_steps`` need."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """What the loop runs on."""

    device: torch.device
    experiment: Experiment
    data: Data
    training: Batches
    validation: Batches | None
    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler
    first_scale: float
    """The loss scale that a run begins with."""
    modes: dict[str, PrecisionMode]
    unsupported: dict[str, str]
    precision: str
    amp_precision: str
    schedule: Schedule
    clip_norm: float | None
    seed: int
    probes: bool
    """Whether gradients and modules are looked into where no step needs it."""
    max_rounds: int | None
    """Rounds of a comparison in turns at most; None leaves that to its intervals."""


def choose_device(name: str) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` as a device that is there; raises DeviceError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError(f"device {name}: torch finds no CUDA GPU here", mend="use --device cpu or auto")
    device = torch.device(name)
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name}: there are {torch.cuda.device_count()} GPUs", mend="count from cuda:0"
        )
    return torch.device("cuda", index)


def enter_device(device: torch.device) -> None:
    """Make ``device`` this thread's own: the current device is a thread's, not the process's."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def seed_everything(seed: int) -> None:
    """Python's, numpy's and torch's generators, the GPU's too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def schedule_for(request: TrainRequest, epochs: int, steps_per_epoch: int | None) -> Schedule:
    """Epochs and steps limit each other; ``--steps`` alone runs as many epochs as it takes."""
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
    """The fields the person set, by ``--set`` or by an option of their own, and the CPU's batch size.

    ``batch_size`` is that of a run that goes on: a device of another kind does not change it.
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
    compiled: bool = False,
) -> tuple[nn.Module, Optimizer]:
    """Model on the device and its optimizer; raises ExperimentError for anything else than those.

    Lazy layers get their shapes from ``first_batch``, which is asked for where there are some.
    ``channels_last`` lays out its weights of four dimensions so; convolutions bring their inputs along.
    ``compiled`` compiles its forward pass in place: names of modules and parameters stay.
    """
    model = experiment.build_model()
    owner = type(experiment).__name__
    if not isinstance(model, nn.Module):
        raise ExperimentError(
            f"{owner}.build_model() returned {_kind(model)}", mend="return a torch.nn.Module"
        )
    model = model.to(device)
    if is_lazy_model(model):
        materialise(model, experiment, device, first_batch)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    if compiled:
        # A model before it may have used up what torch compiles of one piece of code.
        torch.compiler.reset()
        model.compile()
    optimizer = experiment.build_optimizer(model)
    if not isinstance(optimizer, Optimizer):
        raise ExperimentError(
            f"{owner}.build_optimizer() returned {_kind(optimizer)}", mend="return a torch.optim.Optimizer"
        )
    _refuse_closure(optimizer, owner)
    model.train()
    return model, optimizer


def _refuse_closure(optimizer: Optimizer, owner: str) -> None:
    """Raise ExperimentError for an optimizer that computes the loss itself, several times a step."""
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)
    except TypeError:
        kind = type(optimizer).__name__
        raise ExperimentError(
            f"{owner}.build_optimizer() returned {kind}, whose step() needs a closure: not supported here",
            mend="use an optimizer that takes one loss a step, as Adam and SGD do",
        ) from None


def open_data(data: Data, device: torch.device, batch_size: int, seed: int) -> tuple[Batches, Batches | None]:
    """Training and validation batches on the device."""
    if not isinstance(data, Data):
        raise ExperimentError(f"load_data() returned {_kind(data)}", mend="return an amptui.Data")
    training = open_batches(data.train, device=device, batch_size=batch_size, seed=seed, training=True)
    if data.validation is None:
        return training, None
    validation = open_batches(
        data.validation, device=device, batch_size=batch_size, seed=seed, training=False
    )
    return training, validation


def choose(request: TrainRequest) -> Choices:
    """Device and precisions as asked for; raises DeviceError and UsageError for what is not there."""
    device = choose_device(request.device)
    unsupported = unsupported_precisions(device)
    precision = request.precision or "fp32"
    check_supported(precision, unsupported)
    amp_precision = request.amp_precision or ("fp16" if device.type == "cuda" else "bf16")
    check_supported(amp_precision, unsupported)
    return Choices(device, precision, amp_precision, unsupported)


def prepare_modes(device: torch.device) -> tuple[GradScaler, dict[str, PrecisionMode]]:
    """The run's one scaler and every mode around it."""
    scaler = GradScaler(device.type)
    return scaler, build_modes(device, scaler)


def assemble(
    request: TrainRequest,
    experiment: Experiment,
    choices: Choices,
    *,
    data_request: DataRequest,
    announce: Announce = lambda _phase, _detail, _doing: None,
) -> Prepared:
    """Load data, build the model and everything around it; ``announce`` is told before what takes long."""
    owner, device = type(experiment).__name__, choices.device
    announce("data", "loading data", f"in load_data() of {owner}")
    data = experiment.load_data(data_request)
    training, validation = open_data(data, device, experiment.batch_size, request.seed)
    announce("model", "building the model", f"in build_model() of {owner}")
    seed_everything(request.seed)  # the weights do not depend on how the data came to be
    model, optimizer = build_model(
        experiment,
        device,
        first_batch=training.first,
        channels_last=request.channels_last,
        compiled=request.compiled,
    )
    scaler, modes = prepare_modes(device)
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
        modes=modes,
        unsupported=choices.unsupported,
        precision=choices.precision,
        amp_precision=choices.amp_precision,
        schedule=schedule_for(request, experiment.epochs, training.batches_per_epoch),
        clip_norm=request.clip_norm,
        seed=request.seed,
        probes=request.probes,
        max_rounds=request.max_rounds,
    )


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
