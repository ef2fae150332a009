"""Captures a run's state for a checkpoint, and restores it in a new process, of as many ranks or not.

With another number of ranks the global batch stays: each rank's part of it grows or shrinks. The position in
the data, which is a position in the order of a single process with the global batch, and the number of steps
then mean the same.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, IterableDataset

from amptui.base.errors import RunFolderError, UsageError
from amptui.base.text import one_line
from amptui.checkpoint.file import Checkpoint, DamagedError, checkpoint_name, checkpoints, read
from amptui.checkpoint.states import NotPlainError, Part, host_copy, plain_tensor, replaced
from amptui.loops.data_passes import DataPosition, random_states
from amptui.loops.description import plain_fields
from amptui.loops.setup import Prepared, seed_everything
from amptui.loops.train_step import TrainMonitor
from amptui.recipe.request import TrainRequest

_LR_SCHEDULE = "learning-rate schedule"
"""Its key in a checkpoint, which cannot be the name of an attribute."""

_BATCH_SIZE = "batch_size"

_START_NEW_RUN = "resume with the run's original options, or start a new run without --resume"

Warn = Callable[[str], object]
"""Takes a warning, one line."""


# ------------------------------------------------------------------------ capture


def capture(prepared: Prepared, position: DataPosition, monitor: TrainMonitor, warn: Warn) -> Checkpoint:
    """Copy the training's state between two steps to host memory; waits for the device.

    ``warn`` gets what is left out. Raises NotPlainError if the state of model or optimizer contains an object
    that cannot be saved, and ValueError for an optimizer that a new process cannot make again.
    """
    if prepared.lr_schedule is not None:
        prepared.lr_schedule.synchronize()
    if len(prepared.optimizer.param_groups) != prepared.built_groups:
        raise ValueError("the optimizer got a parameter group while training (make all in build_optimizer())")
    model, optimizer, parts = prepared.strategy.states(prepared.optimizer)
    extras = {}
    for name, value in _extras(prepared):
        try:
            extras[name] = replaced(value.state_dict(), plain_tensor, (name,))
        except NotPlainError as error:
            warn(f"checkpoints do not include the experiment's {name}: {error}")
    copied, wait = host_copy(
        {
            "model": model,
            "model_versions": getattr(model, "_metadata", {}),
            "optimizer": optimizer,
            "scaler": _scaler_state(prepared.scaler),
            "extras": extras,
            "parts": [part.tensor for part in parts],
        }
    )
    position_states = position.states()
    wait()
    copied["parts"] = _with_tensors(parts, copied["parts"])
    copied["scaler"] = {
        name: value.item() if isinstance(value, Tensor) else value for name, value in copied["scaler"].items()
    }
    return Checkpoint(
        step=monitor.step,
        epoch=position.epoch,
        seconds=time.monotonic() - position.began,
        precision=monitor.switch.chosen,
        identity=identify(prepared),
        loop={**monitor.state(), "validated_step": position.validated_step},
        **copied,
        **position_states,
    )


def capture_parts(prepared: Prepared) -> list[Part]:
    """Copy what this rank has of a sharded model and of its optimizer's state to host memory.

    Waits for the device, but for no other rank.
    """
    if prepared.lr_schedule is not None:
        prepared.lr_schedule.synchronize()  # as rank 0: their learning rates stay the same to the bit
    *_, parts = prepared.strategy.states(prepared.optimizer)
    tensors, wait = host_copy([part.tensor for part in parts])
    wait()
    return _with_tensors(parts, tensors)


def _with_tensors(parts: list[Part], tensors: list[Tensor]) -> list[Part]:
    return [part._replace(tensor=tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _scaler_state(scaler: GradScaler) -> dict[str, Any]:
    """``state_dict()`` with tensors for the values on the device; torch's own waits for each."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    if scale is None or tracker is None:
        return scaler.state_dict()  # no step has used it yet
    return {
        "scale": scale,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": tracker,
    }


def _extras(prepared: Prepared) -> Iterator[tuple[str, Any]]:
    """Other objects with a state: the learning-rate schedule, and attributes such as averaged weights."""
    if prepared.lr_schedule is not None:
        yield _LR_SCHEDULE, prepared.lr_schedule
    others = (prepared.model, prepared.optimizer)
    for name, value in vars(prepared.experiment).items():
        # The position in the data is restored separately.
        if isinstance(value, type | DataLoader | Dataset) or any(value is other for other in others):
            continue
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            yield name, value


def identify(prepared: Prepared) -> dict[str, Any]:
    """The settings that must not change when a run is resumed, as plain values.

    Its length, its device and the memory format of its weights may change.
    """
    settings = plain_fields(prepared.experiment)
    del settings["epochs"]
    return {
        "experiment": type(prepared.experiment).__name__,
        "optimizer": type(prepared.optimizer).__name__,
        **settings,
        "clip_norm": prepared.request.clip_norm,
        "accumulate": prepared.request.accumulate,
        "seed": prepared.request.seed,
        "data": prepared.data.name if prepared.data.real else f"{prepared.data.name} (synthetic)",
        "training samples": prepared.training.samples,
    }


# ------------------------------------------------------------------------ restore


def newest_checkpoint(folder: Path, warn: Warn) -> Checkpoint:
    """The newest checkpoint in ``folder`` that is not damaged; ``warn`` gets the damaged ones.

    Raises RunFolderError if there is none.
    """
    paths = checkpoints(folder)
    for number, path in enumerate(paths, 1):
        try:
            return read(path)
        except DamagedError as error:
            before = "; trying the previous one" if number < len(paths) else ""
            warn(f"cannot use checkpoint {path.name}: {error}{before}")
    what = f"no checkpoint in {folder} can be used" if paths else f"there is no checkpoint in {folder}"
    raise RunFolderError(what, hint="start a new run without --resume")


def share_batch(
    checkpoint: Checkpoint, request: TrainRequest, ranks: int
) -> tuple[Checkpoint, TrainRequest, str]:
    """The same with the batch size of each of ``ranks``, whose global batch is that of before.

    The third is what is different with another number of ranks, in one line, or "". The request's own batch
    size does not count: it may be of another number. Raises UsageError for ranks without equal parts.
    """
    before = checkpoint.world_size
    settings = {name: value for name, value in request.settings.items() if name != _BATCH_SIZE}
    request = replace(request, batch_size=None, settings=settings)
    if before == ranks:
        return checkpoint, request, ""
    whole = checkpoint.identity[_BATCH_SIZE] * before
    if whole % ranks:
        divisor = next(number for number in range(ranks - 1, 0, -1) if whole % number == 0)
        what = f"{checkpoint_name(checkpoint.step)} has a global batch of {whole:,} samples"
        raise UsageError(f"{what}, which {ranks:,} ranks cannot share equally", hint=f"use --nproc {divisor}")
    change = (
        f"resumed with {ranks:,} instead of {before:,} ranks: {whole // ranks:,} samples per rank, "
        "the same global batch; random numbers differ from those of an uninterrupted run"
    )
    identity = {**checkpoint.identity, _BATCH_SIZE: whole // ranks}
    return replace(checkpoint, identity=identity), request, change


def restore(
    checkpoint: Checkpoint, prepared: Prepared, warn: Warn, *, rank: int = 0, ranks: int = 1
) -> tuple[Prepared, Checkpoint]:
    """Load the states in ``checkpoint`` into ``prepared``.

    Returns it with the checkpoint's precision, and where ``rank`` of ``ranks`` continues: the checkpoint
    without what was loaded. Raises UsageError if it is from a different training, and names the difference.
    """
    name = checkpoint_name(checkpoint.step)
    draws = _random_states_of(checkpoint, rank, ranks, prepared)
    _check_same(checkpoint, prepared)
    try:
        _load(checkpoint, prepared, warn)
    except (RuntimeError, ValueError, KeyError) as error:
        what = f"checkpoint {name} is of a different model: {one_line(str(error)).removesuffix('.')}"
        raise UsageError(what, hint=_START_NEW_RUN) from error
    precision = checkpoint.precision
    why = prepared.unsupported.get(precision) or prepared.precisions[precision].reason_not_to_enter()
    if why:
        warn(f"{precision} is not supported on this device: {why}; continuing in {prepared.precision}")
        precision = prepared.precision
    start = replace(checkpoint, precision=precision, model={}, optimizer={}, extras={}, shards=None, **draws)
    return replace(prepared, precision=precision), start


def _check_same(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """Raise UsageError if the checkpoint is of another training or model."""
    name = checkpoint_name(checkpoint.step)
    then, now = checkpoint.identity, identify(prepared)
    for setting in {**then, **now}:
        if then.get(setting) != now.get(setting):
            was, is_now = then.get(setting, "absent"), now.get(setting, "absent")
            what = f"checkpoint {name} was written with {setting} {was}, but now it is {is_now}"
            raise UsageError(what, hint=_START_NEW_RUN)
    was_shaped, is_shaped = _shapes(checkpoint.model), _shapes(prepared.model.state_dict())
    for tensor in {**is_shaped, **was_shaped}:
        was, is_now = was_shaped.get(tensor, "absent"), is_shaped.get(tensor, "absent")
        if was != is_now:
            what = f"checkpoint {name} is of a different model: {tensor} was {was}, but now is {is_now}"
            raise UsageError(what, hint=_START_NEW_RUN)


def _shapes(state: Mapping[str, Any]) -> dict[str, str]:
    """The shape of each tensor by name; lazy ones have none yet."""
    return {
        name: "x".join(map(str, value.shape)) or "a number"
        for name, value in state.items()
        if isinstance(value, Tensor) and not is_lazy(value)
    }


def _load(checkpoint: Checkpoint, prepared: Prepared, warn: Warn) -> None:
    states = {"model": checkpoint.model, "optimizer": checkpoint.optimizer}
    if checkpoint.shards:  # all of them, or this rank's part
        try:
            states = checkpoint.shards.fill(states, prepared.strategy.room(prepared.optimizer))
        except OSError as error:
            what = f"cannot read {checkpoint.shards.folder}: {error.strerror or error}"
            raise RunFolderError(what, hint="use a folder that all machines share") from error
    model = OrderedDict(states["model"])
    model._metadata = checkpoint.model_versions  # type: ignore[attr-defined]  # as torch's own state_dict()
    prepared.strategy.load_states(model, states["optimizer"], prepared.optimizer)
    prepared.scaler.load_state_dict(checkpoint.scaler)
    extras = dict(_extras(prepared))
    for name in {**extras, **checkpoint.extras}:
        if name in extras and name in checkpoint.extras:
            extras[name].load_state_dict(checkpoint.extras[name])
        else:
            owner = "checkpoint" if name in checkpoint.extras else "experiment"
            warn(f"{name} was not restored: only the {owner} has it")


def _random_states_of(checkpoint: Checkpoint, rank: int, ranks: int, prepared: Prepared) -> dict[str, Any]:
    """The random states of ``rank``, its own, or new ones if it had none, and its batches of the epoch.

    Raises UsageError for data whose order depends on how many ranks there are.
    """
    before = checkpoint.world_size
    if before != ranks and isinstance(prepared.data.train, DataLoader | IterableDataset):
        what = (
            f"{checkpoint_name(checkpoint.step)} was written with {before:,} ranks, and a DataLoader's order"
        )
        raise UsageError(f"{what} depends on their number", hint=f"resume with --nproc {before}")
    if rank == 0:
        return {}
    if rank >= before:
        # States that no other rank has, nor this one had at another step.
        entropy = np.random.SeedSequence((prepared.request.seed % (1 << 64), checkpoint.step, rank))
        seed_everything(int(entropy.generate_state(1)[0]))
        fresh = random_states(prepared)
        return {"draws": fresh, "epoch_draws": fresh}
    own_states = checkpoint.ranks[rank - 1]
    return own_states if before == ranks else {**own_states, "batches": checkpoint.batches}
