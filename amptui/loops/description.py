"""Describes a run for its first record: model, device, versions, hardware and settings."""

import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from amptui.base.version import __version__
from amptui.device.accelerator import properties, runtime_versions
from amptui.loops.setup import Prepared
from amptui.recipe.experiment import Experiment
from amptui.records.control import NO_XRAY
from amptui.records.run import DataInfo, RunResumed, RunStarted

_SAME_WHEN_RESUMED = (
    *("time", "device", "device_name", "gpu_uuid", "precision", "versions", "total_epochs", "total_steps"),
    *("world_size", "parallel", "data_parallel", "batch_size", "global_batch_size"),
)
"""Fields that the record of a resumed run has in common with that of a start."""

_VARIABLES = ("CUDA_", "CUBLAS_", "CUDNN_", "MKL_", "NCCL_", "NVIDIA_TF32", "OMP_", "PYTORCH_", "TORCH_")
_OTHER_VARIABLES = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "PYTHONHASHSEED")
"""How the variables begin that libraries below PyTorch read, and the names of some others."""

_MAX_VALUE_CHARACTERS = 200


def describe_run(model_name: str, prepared: Prepared) -> RunStarted:
    """The run's first record."""
    request = prepared.request
    config = plain_fields(prepared.experiment) | {
        "experiment": type(prepared.experiment).__name__,
        "optimizer": type(prepared.optimizer).__name__,
        "clip_norm": request.clip_norm,
        "accumulate": request.accumulate,
        "seed": request.seed,
        "workers": request.workers,
        "channels_last": request.channels_last,
        "cudnn_benchmark": request.cudnn_benchmark,
        "compile": request.compile_mode,
        "init_weights": request.init_weights,
    }
    source = prepared.data.train
    batch_size = source.batch_size if isinstance(source, torch.utils.data.DataLoader) else None
    batch_size = batch_size or prepared.experiment.batch_size
    strategy = prepared.strategy
    return RunStarted(
        **here(prepared.device),
        model=model_name,
        precision=prepared.precision,
        amp_precision=prepared.amp_precision,
        unsupported=prepared.unsupported,
        config=config,
        data=DataInfo(name=prepared.data.name, real=prepared.data.real, samples=prepared.training.samples),
        parameters=sum(p.numel() for p in prepared.model.parameters()),
        batch_size=batch_size,
        steps_per_epoch=prepared.schedule.steps_per_epoch,
        total_epochs=prepared.schedule.epochs,
        total_steps=prepared.schedule.steps,
        growth_interval=prepared.scaler.get_growth_interval(),
        world_size=strategy.ranks,
        refuses={"x-ray": NO_XRAY} if strategy.kind else {},
        parallel=strategy.kind,
        global_batch_size=batch_size * request.accumulate * strategy.ranks if strategy.kind else None,
    )


def here(device: torch.device) -> dict[str, Any]:
    """The fields of a first record that are the same whatever trains: time, machine and versions."""
    versions = {"amptui": __version__, "python": platform.python_version(), "torch": torch.__version__}
    versions |= runtime_versions()
    if torch.backends.cudnn.is_available():
        versions["cudnn"] = str(torch.backends.cudnn.version())
    gpu, cores, threads = properties(device), os.cpu_count(), torch.get_num_threads()
    hardware: dict[str, Any] = {"processor": _processor_name(), "cores": cores, "threads": threads}
    if gpu.memory_bytes is not None:
        hardware["gpu_memory_bytes"] = gpu.memory_bytes
    if gpu.compute_capability is not None:
        hardware["compute_capability"] = ".".join(map(str, gpu.compute_capability))
    if gpu.architecture:
        hardware["architecture"] = gpu.architecture
    return {
        "time": time.time(),
        "device": str(device),
        "device_name": device_name(device),
        "gpu_uuid": gpu.uuid,
        "versions": versions,
        "hardware": hardware,
        "environment": environment(),
    }


def describe_resumption(
    started: RunStarted, *, step: int, checkpoint: str = "", restarts: int = 0, cause: str = ""
) -> RunResumed:
    """The record of a run that goes on after ``step`` in a new process as ``started`` describes it."""
    return RunResumed(
        step=step,
        checkpoint=checkpoint,
        lost_steps=0,
        restarts=restarts,
        cause=cause,
        **{name: getattr(started, name) for name in _SAME_WHEN_RESUMED},
    )


def device_name(device: torch.device) -> str:
    """The product name: ``NVIDIA H200``, or that of the processor."""
    return properties(device).name or _processor_name() or platform.machine() or "CPU"


def plain_fields(experiment: Experiment) -> dict[str, Any]:
    """The experiment's fields as JSON values."""
    return {
        name: value if isinstance(value, bool | int | float | str | NoneType) else str(value)
        for name, value in asdict(experiment).items()
    }


def environment() -> dict[str, str]:
    """The variables that change how PyTorch computes, by name; others may hold secrets and are left out."""
    names = sorted(name for name in os.environ if name.startswith(_VARIABLES) or name in _OTHER_VARIABLES)
    return {name: os.environ[name][:_MAX_VALUE_CHARACTERS] for name in names}


def _processor_name() -> str:
    """The processor's name from ``/proc/cpuinfo``; empty if it has none."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, "")
    except OSError:
        return ""
