"""Captures a run's state for a checkpoint, and restores it in a new process."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset

from amptui.base.errors import RunFolderError, UsageError
from amptui.engine.checkpoint.added_groups import CANNOT_BE_RESUMED, add_groups, added_groups
from amptui.engine.checkpoint.data_position import DataPosition, Start
from amptui.engine.checkpoint.file import Checkpoint, DamagedError, checkpoint_name, checkpoints, read
from amptui.engine.checkpoint.host_copy import HostCopy, NotPlainError, own
from amptui.engine.checkpoint.shards import Part
from amptui.engine.description import plain_fields
from amptui.engine.prepared import Prepared

_LR_SCHEDULE = "learning-rate schedule"
"""Its key in a checkpoint, which cannot be the name of an attribute."""

_START_NEW_RUN = "resume with the run's original options, or start a new run without --resume"

Warn = Callable[[str], object]
"""Takes a warning, one line."""


def capture(
    prepared: Prepared,
    position: DataPosition,
    loop: Mapping[str, Any],
    *,
    precision: str,
    seconds: float,
    warn: Warn,
) -> Checkpoint:
    """Copy the training's state between two steps to host memory; waits for the device.

    ``loop`` is the loop's own state, as plain values; ``warn`` gets what is left out. Raises NotPlainError if
    the state of model or optimizer contains an object that cannot be saved.
    """
    schedule = prepared.lr_schedule
    if schedule is not None:
        schedule.synchronize()
    with nullcontext() if schedule is None else schedule.as_numbers():
        model, optimizer, parts = prepared.strategy.states(prepared.optimizer)
    extras = {name: value.state_dict() for name, value in _extras(prepared)}
    scaler = _scaler_state(prepared.scaler)
    copy = HostCopy((model, optimizer, extras, scaler, _tensors(parts)))
    added = added_groups(prepared)
    if None in added:
        warn(CANNOT_BE_RESUMED)
    checkpoint = Checkpoint(
        step=position.step,
        epoch=position.epoch,
        seconds=seconds,
        precision=precision,
        identity=identify(prepared),
        model=copy.of(model, "the model's state"),
        model_versions=copy.of(getattr(model, "_metadata", {}), "the model's state"),
        optimizer=copy.of(optimizer, "the optimizer's state"),
        scaler=copy.of(scaler, "the scaler's state"),
        extras=dict(_plain_extras(extras, copy, warn)),
        loop=dict(loop),
        added_groups=added,
        parts=_copied(parts, copy),
        **position.states(),
    )
    copy.wait()
    return replace(checkpoint, scaler=_as_numbers(checkpoint.scaler))


def capture_parts(prepared: Prepared) -> list[Part]:
    """Copy what this rank has of a sharded model and of its optimizer's state to host memory.

    Waits for the device, but for no other rank.
    """
    if not prepared.strategy.sharded:
        return []
    *_, parts = prepared.strategy.states(prepared.optimizer)
    copy = HostCopy((_tensors(parts),))
    copied = _copied(parts, copy)
    copy.wait()
    return copied


def _tensors(parts: Iterable[Part]) -> list[Tensor]:
    return [part.tensor for part in parts]


def _copied(parts: Sequence[Part], copy: HostCopy) -> list[Part]:
    copies = copy.of(_tensors(parts), "the model's parts")
    return [replace(part, tensor=tensor) for part, tensor in zip(parts, copies, strict=True)]


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


def _as_numbers(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, Tensor) else value for name, value in state.items()}


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


def restore(checkpoint: Checkpoint, prepared: Prepared, warn: Warn) -> Start:
    """Load the states in ``checkpoint`` into ``prepared``; return where the run continues.

    Raises UsageError if it is from a different training, and names the difference.
    """
    name = checkpoint_name(checkpoint.step)
    _check_same(checkpoint, prepared)
    add_groups(checkpoint, prepared)
    try:
        model, optimizer = _filled(checkpoint, prepared)
        prepared.strategy.load_states(model, optimizer, prepared.optimizer)
        prepared.scaler.load_state_dict(checkpoint.scaler)
        _restore_extras(checkpoint, prepared, warn)
    except (RuntimeError, ValueError, KeyError) as error:
        what = " ".join(str(error).split())[:500]
        raise UsageError(f"checkpoint {name} is of a different model: {what}", hint=_START_NEW_RUN) from error
    return Start(
        checkpoint=name,
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        batches=checkpoint.batches,
        seconds=checkpoint.seconds,
        draws=checkpoint.draws,
        epoch_draws=checkpoint.epoch_draws,
        loop=checkpoint.loop,
    )


def _filled(checkpoint: Checkpoint, prepared: Prepared) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of model and optimizer, with what is among shards: all of it, or this rank's part."""
    model, optimizer = OrderedDict(checkpoint.model), own(checkpoint.optimizer)
    model._metadata = checkpoint.model_versions  # type: ignore[attr-defined]  # as torch's own state_dict()
    if not checkpoint.shards:
        return model, optimizer
    room = prepared.strategy.room(prepared.optimizer)
    try:
        states = checkpoint.shards.fill({"model": model, "optimizer": optimizer}, room)
    except OSError as error:
        what = f"cannot read {checkpoint.shards.folder}: {error.strerror or error}"
        raise RunFolderError(what, hint="use a folder that all machines share") from error
    return states["model"], states["optimizer"]


def _check_same(checkpoint: Checkpoint, prepared: Prepared) -> None:
    name = checkpoint_name(checkpoint.step)
    then, now = checkpoint.identity, identify(prepared)
    different = next((setting for setting in {**then, **now} if then.get(setting) != now.get(setting)), None)
    if different is not None:
        was, is_now = (_value_of(values, different) for values in (then, now))
        what = f"checkpoint {name} was written with {different} {was}, but now it is {is_now}"
        raise UsageError(what, hint=_START_NEW_RUN)
    was_shaped, is_shaped = _shapes(checkpoint.model), _shapes(prepared.model.state_dict())
    for tensor in {**is_shaped, **was_shaped}:
        was, is_now = (shapes.get(tensor, "absent") for shapes in (was_shaped, is_shaped))
        if was != is_now:
            what = f"checkpoint {name} is of a different model: {tensor} was {was}, but now is {is_now}"
            raise UsageError(what, hint=_START_NEW_RUN)


def _value_of(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "absent"


def _shapes(state: Mapping[str, Any]) -> dict[str, str]:
    """The shape of each tensor by name; lazy ones have none yet."""
    return {
        name: "x".join(map(str, value.shape)) or "a number"
        for name, value in state.items()
        if isinstance(value, Tensor) and not is_lazy(value)
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


def _plain_extras(
    extras: Mapping[str, object], copy: HostCopy, warn: Warn
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, state in extras.items():
        try:
            yield name, copy.of(state, f"the state of the experiment's {name}")
        except NotPlainError as error:
            warn(f"checkpoints do not include the experiment's {name}: {error}")


def _restore_extras(checkpoint: Checkpoint, prepared: Prepared, warn: Warn) -> None:
    present = dict(_extras(prepared))
    if _LR_SCHEDULE in present and _LR_SCHEDULE not in checkpoint.extras:
        warn("the checkpoint has no learning-rate schedule: it starts from its beginning")
    for name, state in checkpoint.extras.items():
        if name in present:
            present[name].load_state_dict(own(state))
        else:
            warn(f"the experiment's {name} was not restored: it does not exist yet")
