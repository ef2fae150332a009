"""Everything that stands before the first step: device, experiment, data, model, optimizer, modes."""

import math
import os
import platform
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

import amptui
from amptui.data.batches import Batches, open_batches
from amptui.data.sources import Data
from amptui.engine.precision import PrecisionMode, build_modes, check_supported, unsupported_precisions
from amptui.errors import DeviceError, ExperimentError
from amptui.experiment import Experiment
from amptui.records import DataInfo, RunStarted
from amptui.request import TrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long the run is; None where the data does not know its length."""

    epochs: int
    steps: int | None
    steps_per_epoch: int | None


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
    modes: dict[str, PrecisionMode]
    unsupported: dict[str, str]
    precision: str
    amp_precision: str
    schedule: Schedule
    clip_norm: float | None


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
    return Schedule(epochs=epochs, steps=steps, steps_per_epoch=steps_per_epoch)


def experiment_settings(
    chosen: type[Experiment], request: TrainRequest, device: torch.device
) -> dict[str, str]:
    """The fields the person set, by ``--set`` or by an option of their own, and the CPU's batch size."""
    settings = dict(request.settings)
    named = {
        "epochs": request.epochs,
        "batch_size": request.batch_size,
        "learning_rate": request.learning_rate,
    }
    settings |= {name: str(value) for name, value in named.items() if value is not None}
    if device.type == "cpu" and chosen.cpu_batch_size is not None:
        settings.setdefault("batch_size", str(chosen.cpu_batch_size))
    return settings


def build_model(experiment: Experiment, device: torch.device) -> tuple[nn.Module, Optimizer]:
    """Model on the device and its optimizer; raises ExperimentError for anything else than those."""
    model = experiment.build_model()
    owner = type(experiment).__name__
    if not isinstance(model, nn.Module):
        raise ExperimentError(
            f"{owner}.build_model() returned {_kind(model)}", mend="return a torch.nn.Module"
        )
    model = model.to(device)
    optimizer = experiment.build_optimizer(model)
    if not isinstance(optimizer, Optimizer):
        raise ExperimentError(
            f"{owner}.build_optimizer() returned {_kind(optimizer)}", mend="return a torch.optim.Optimizer"
        )
    model.train()
    return model, optimizer


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


def choose_precisions(request: TrainRequest, device: torch.device) -> tuple[str, str, dict[str, str]]:
    """The precision to begin in, what AMP means, and what the device cannot run and why."""
    unsupported = unsupported_precisions(device)
    precision = request.precision or "fp32"
    check_supported(precision, unsupported)
    amp_precision = request.amp_precision or ("fp16" if device.type == "cuda" else "bf16")
    check_supported(amp_precision, unsupported)
    return precision, amp_precision, unsupported


def prepare_modes(device: torch.device) -> tuple[GradScaler, dict[str, PrecisionMode]]:
    """The run's one scaler and every mode around it."""
    scaler = GradScaler(device.type)
    return scaler, build_modes(device, scaler)


def describe_run(model_name: str, prepared: Prepared, request: TrainRequest) -> RunStarted:
    """The run's first record: everything known before the first step."""
    source = prepared.data.train
    batch_size = source.batch_size if isinstance(source, torch.utils.data.DataLoader) else None
    return RunStarted(
        time=time.time(),
        model=model_name,
        device=str(prepared.device),
        device_name=device_name(prepared.device),
        gpu_uuid=_gpu_uuid(prepared.device),
        precision=prepared.precision,
        amp_precision=prepared.amp_precision,
        unsupported=prepared.unsupported,
        config=_config(prepared, request),
        versions=versions(),
        hardware=_hardware(prepared.device),
        data=DataInfo(name=prepared.data.name, real=prepared.data.real, samples=prepared.training.samples),
        parameters=sum(p.numel() for p in prepared.model.parameters()),
        batch_size=batch_size or prepared.experiment.batch_size,
        steps_per_epoch=prepared.schedule.steps_per_epoch,
        total_epochs=prepared.schedule.epochs,
        total_steps=prepared.schedule.steps,
        growth_interval=prepared.scaler.get_growth_interval(),
    )


def device_name(device: torch.device) -> str:
    """As a person knows it: ``NVIDIA H200``, or the processor's name."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return _processor_name() or platform.machine() or "CPU"


def versions() -> dict[str, str]:
    """What computed: amptui, Python, torch, and CUDA and cuDNN where torch has them."""
    found = {"amptui": amptui.__version__, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.backends.cudnn.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def _config(prepared: Prepared, request: TrainRequest) -> dict[str, Any]:
    """The experiment's fields and what the command line added, as JSON values."""
    values = {name: _plain(value) for name, value in asdict(prepared.experiment).items()}
    return values | {
        "experiment": type(prepared.experiment).__name__,
        "optimizer": type(prepared.optimizer).__name__,
        "clip_norm": prepared.clip_norm,
        "seed": request.seed,
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, NoneType)) else str(value)


def _hardware(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu_memory_bytes"] = properties.total_memory
        found["compute_capability"] = f"{properties.major}.{properties.minor}"
    return found


def _gpu_uuid(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _processor_name() -> str:
    """Linux's own name of the processor; empty where it does not say."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, "")
    except OSError:
        return ""


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
