"""Captures a run's state for a checkpoint, and restores it in a new process."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import NoneType
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset

from amptui.engine.checkpoint.data_position import DataPosition, Draws, Start
from amptui.engine.checkpoint.file import Checkpoint, DamagedError, checkpoint_name, checkpoints, read
from amptui.engine.checkpoint.host_copy import HostCopy, NotPlainError, own
from amptui.engine.setup import Prepared
from amptui.errors import RunFolderError, UsageError

_ADDED = {"weight_decay": 0.0, "label_smoothing": 0.0, "accumulate": 1}
"""What the checkpoints of version 0.1.0, which do not say so, were trained with."""

_LR_SCHEDULE = "learning-rate schedule"
"""Where a checkpoint keeps it; no attribute has this name."""

_BEGIN_ANEW = "resume with the run's original options, or start a new run without --resume"

Say = Callable[[str], object]
"""Told what a person should know, in one line."""


def take(
    prepared: Prepared,
    bookmark: DataPosition,
    loop: Mapping[str, Any],
    *,
    precision: str,
    seconds: float,
    say: Say,
) -> Checkpoint:
    """The training as it stands between two steps, copied to host memory; waits for the device.

    ``loop`` is what the loop itself has counted, as plain values; ``say`` is told what is left out.
    Raises NotPlainError where the state of model or optimizer holds what no file can keep.
    """
    schedule = prepared.lr_schedule
    if schedule is not None:
        schedule.synchronize()
    with nullcontext() if schedule is None else schedule.as_numbers():
        model, optimizer = prepared.model.state_dict(), prepared.optimizer.state_dict()
    extras = {name: value.state_dict() for name, value in _extras(prepared)}
    scaler = _scaler_state(prepared.scaler)
    copy = HostCopy((model, optimizer, extras, scaler))
    checkpoint = Checkpoint(
        step=bookmark.step,
        epoch=bookmark.epoch,
        batches=bookmark.batches,
        seconds=seconds,
        precision=precision,
        identity=identify(prepared),
        model=copy.of(model, "the model's state"),
        model_versions=copy.of(getattr(model, "_metadata", {}), "the model's state"),
        optimizer=copy.of(optimizer, "the optimizer's state"),
        scaler=copy.of(scaler, "the scaler's state"),
        extras=dict(_kept_extras(extras, copy, say)),
        draws=Draws.current(prepared).plain(),
        epoch_draws=bookmark.epoch_draws.plain(),
        loop=dict(loop),
    )
    copy.wait()
    return replace(checkpoint, scaler=_as_numbers(checkpoint.scaler))


def _scaler_state(scaler: GradScaler) -> dict[str, Any]:
    """What ``state_dict()`` says, with tensors for what is on the device: it would wait for each of them."""
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
    """What tells this training from others, as plain values by the name a person knows.

    How long it is, on which device and how its weights are laid out may change.
    """
    settings = {name: value for name, value in asdict(prepared.experiment).items() if name != "epochs"}
    return {
        "experiment": type(prepared.experiment).__name__,
        "optimizer": type(prepared.optimizer).__name__,
        **{name: _plain(value) for name, value in settings.items()},
        "clip_norm": prepared.clip_norm,
        "accumulate": prepared.accumulate,
        "seed": prepared.seed,
        "data": prepared.data.name if prepared.data.real else f"{prepared.data.name} (synthetic)",
        "training samples": prepared.training.samples,
    }


def newest_checkpoint(folder: Path, say: Say) -> Checkpoint:
    """The newest whole checkpoint in ``folder``; ``say`` is told of those that are damaged.

    Raises RunFolderError where there is none.
    """
    paths = checkpoints(folder)
    for number, path in enumerate(paths, 1):
        try:
            return read(path)
        except DamagedError as error:
            before = "; trying the previous one" if number < len(paths) else ""
            say(f"cannot use checkpoint {path.name}: {error}{before}")
    what = f"no checkpoint in {folder} can be used" if paths else f"there is no checkpoint in {folder}"
    raise RunFolderError(what, hint="start a new run without --resume")


def restore(checkpoint: Checkpoint, prepared: Prepared, say: Say) -> Start:
    """Bring the states in ``checkpoint`` into ``prepared``; where the run goes on.

    Raises UsageError where it is another training's, and names the difference.
    """
    name = checkpoint_name(checkpoint.step)
    _check_same(checkpoint, prepared)
    try:
        model = OrderedDict(checkpoint.model)
        model._metadata = checkpoint.model_versions  # type: ignore[attr-defined]  # as torch's own state_dict()
        prepared.model.load_state_dict(model)
        prepared.optimizer.load_state_dict(own(checkpoint.optimizer))
        prepared.scaler.load_state_dict(checkpoint.scaler)
        _restore_extras(checkpoint, prepared, say)
    except (RuntimeError, ValueError, KeyError) as error:
        what = " ".join(str(error).split())[:500]
        raise UsageError(f"checkpoint {name} is of a different model: {what}", hint=_BEGIN_ANEW) from error
    return Start(
        checkpoint=name,
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        batches=checkpoint.batches,
        seconds=checkpoint.seconds,
        draws=Draws.from_plain(checkpoint.draws, prepared),
        epoch_draws=Draws.from_plain(checkpoint.epoch_draws, prepared),
        loop=checkpoint.loop,
    )


def _check_same(checkpoint: Checkpoint, prepared: Prepared) -> None:
    name = checkpoint_name(checkpoint.step)
    then, now = checkpoint.identity, identify(prepared)
    then = {**{name: value for name, value in _ADDED.items() if name in now}, **then}
    different = next((each for each in {**then, **now} if then.get(each) != now.get(each)), None)
    if different is not None:
        was, is_now = (_told(values, different) for values in (then, now))
        what = f"checkpoint {name} was written with {different} {was}, but now it is {is_now}"
        raise UsageError(what, hint=_BEGIN_ANEW)
    was_shaped, is_shaped = _shapes(checkpoint.model), _shapes(prepared.model.state_dict())
    for each in {**is_shaped, **was_shaped}:
        if was_shaped.get(each) != is_shaped.get(each):
            was, is_now = was_shaped.get(each, "absent"), is_shaped.get(each, "absent")
            what = f"checkpoint {name} is of a different model: {each} was {was}, but now is {is_now}"
            raise UsageError(what, hint=_BEGIN_ANEW)


def _told(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "absent"


def _shapes(state: Mapping[str, Any]) -> dict[str, str]:
    """The shape of each tensor by its name; lazy ones have none yet."""
    return {
        name: "x".join(map(str, value.shape)) or "a number"
        for name, value in state.items()
        if isinstance(value, Tensor) and not is_lazy(value)
    }


def _extras(prepared: Prepared) -> Iterator[tuple[str, Any]]:
    """What else an experiment holds that has a state: a learning rate's schedule, a mean of the weights."""
    if prepared.lr_schedule is not None:
        yield _LR_SCHEDULE, prepared.lr_schedule
    known = (prepared.model, prepared.optimizer)
    for name, value in vars(prepared.experiment).items():
        # A loader's place in the data comes back by other means.
        if isinstance(value, type | DataLoader | Dataset) or any(value is each for each in known):
            continue
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            yield name, value


def _kept_extras(
    extras: Mapping[str, object], copy: HostCopy, say: Say
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, state in extras.items():
        try:
            yield name, copy.of(state, f"the state of the experiment's {name}")
        except NotPlainError as error:
            say(f"checkpoints do not include the experiment's {name}: {error}")


def _restore_extras(checkpoint: Checkpoint, prepared: Prepared, say: Say) -> None:
    there = dict(_extras(prepared))
    if _LR_SCHEDULE in there and _LR_SCHEDULE not in checkpoint.extras:
        say("the checkpoint has no learning-rate schedule: it starts from its beginning")
    for name, state in checkpoint.extras.items():
        if name in there:
            there[name].load_state_dict(own(state))
        else:
            say(f"the experiment's {name} was not restored: it does not exist yet")


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | NoneType) else str(value)
