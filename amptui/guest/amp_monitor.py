"""Watches somebody else's loop and switches its precision: ``watch()`` gives it an autocast and a scaler."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.guest.monitor import Monitor, checked_start, close_monitors_of
from amptui.loops.script.script import Pairs, SwitchedAmp, WatchedScript, models_of, named_optimizers
from amptui.loops.script.switched_optimizer import ComputeLoss, SwitchedOptimizer
from amptui.recipe.precision import amp_of, unsupported_precisions
from amptui.recipe.sharding import sharded_dtype
from amptui.recipe.trained import NamedOptimizer
from amptui.records.run import AMP_PRECISIONS, PRECISIONS, parse_precision

AmpName = Literal["fp16", "bf16", "float16", "bfloat16"]
PrecisionName = Literal[AmpName, "fp32", "float32", "ieee", "tf32", "fp8"]


def watch(  # noqa: PLR0913 - options by name, as in torch
    model: nn.Module | Pairs,
    optimizer: Optimizer | None = None,
    *,
    precision: PrecisionName = "fp32",
    amp: AmpName | None = None,
    scaler: GradScaler | None = None,
    clip_norm: float | None = None,
    samples_per_step: int | None = None,
    save: Callable[[], object] | None = None,
    start_step: int = 0,
) -> "AmpMonitor":
    """Watch a training loop and switch its precision from the screen; call it once, before the first step.

    The loop runs its forward passes in :meth:`AmpMonitor.autocast`, and its steps either with
    :meth:`AmpMonitor.backward` and :meth:`AmpMonitor.step`, with :attr:`AmpMonitor.scaler` as in any AMP
    loop, or with :meth:`AmpMonitor.train_step`. It starts in ``precision``; ``amp`` is what AMP means, by
    default ``fp16`` on a GPU, and ``bf16`` on a CPU or where ``fp16`` would break the script. Both also take
    ``float16`` and ``bfloat16``.

    In ``fp8`` the Linear layers of the models are torchao's float8 layers: the same objects with the same
    parameters. In other precisions, and once the monitor is closed, they are what they were.

    ``scaler``: one whose scale and settings :attr:`AmpMonitor.scaler` starts with. ``clip_norm``: the largest
    norm of the gradients, for :meth:`AmpMonitor.step`. ``samples_per_step``: how many samples one optimizer
    step takes. ``save``: writes whatever the script resumes from; the key ``s`` calls it after a step.
    ``start_step``: how many steps a resumed script has made before.

    Of several optimizers, ``model`` is a mapping of names to (model, optimizer) pairs, the most important one
    first: their precision is switched together, and ``monitor.step(name)`` makes the step of one.

    Raises TypeError for arguments of other kinds, and ValueError for a precision that the device or the
    model does not support, for ``fp16`` with LBFGS or float16 weights, which no scaler can serve, and for a
    negative ``start_step``. If anything else of amptui's own fails, it writes
    one line to standard error and the script continues in the current precision.
    """
    first, *others = pairs = named_optimizers(model, optimizer)
    start_step = checked_start(start_step)
    device = next((parameter.device for parameter in first.model.parameters()), torch.device("cpu"))
    unsupported = {**_what_cannot_scale(pairs), **unsupported_precisions(device)}
    first_precision = parse_precision(precision)
    asked_amp, usual_amp = checked_amp(amp), "bf16" if "fp16" in unsupported else None
    for name in (first_precision, asked_amp or first_precision):
        check_precision(name, unsupported)
    amp_precision = amp_of(device, first_precision, asked_amp, usual_amp)
    close_monitors_of(pair.optimizer for pair in pairs)  # which restores the flags and layers of before
    switched = SwitchedAmp(device, scaler)
    unsupported = switched.take_layers(models_of(pairs), unsupported)
    check_precision(first_precision, unsupported)
    if (cast := sharded_dtype(first.model)) is not None:
        why = f"the MixedPrecisionPolicy of fully_shard() casts parameters to {cast}"
        unsupported.update({name: why for name in PRECISIONS if name != first_precision})
    script = WatchedScript(
        first=first,
        others=tuple(others),
        amp=switched,
        amp_precision=amp_precision,
        unsupported=unsupported,
        samples_per_step=samples_per_step,
        save=save,
    )
    try:
        if why := switched.begin(first_precision):
            raise ValueError(f"precision {first_precision}: {why}")
        return AmpMonitor(script, clip_norm=clip_norm, start_step=start_step)
    except BaseException:  # Ctrl+C, or an alarm of the script's
        switched.leave_float8()
        raise


def checked_amp(name: str | None) -> str | None:
    """The precision that the argument ``amp`` names. Raises ValueError if AMP cannot mean that."""
    return name and parse_precision(name, AMP_PRECISIONS)


def check_precision(name: str, unsupported: Mapping[str, str]) -> None:
    """Raise ValueError with the reason why it is ``unsupported``, if it is."""
    if name in unsupported:
        raise ValueError(f"precision {name}: {unsupported[name]}")


def _what_cannot_scale(pairs: Iterable[NamedOptimizer]) -> dict[str, str]:
    """Why ``fp16``, which scales the loss, would break the script; empty if it would not."""
    for pair in pairs:
        kind = type(pair.optimizer).__name__
        if must_have_closure(pair.optimizer):
            return {"fp16": f"{kind} calls its closure again, which no GradScaler allows"}
        parameters = (p for group in pair.optimizer.param_groups for p in group["params"])
        if any(parameter.dtype == torch.float16 for parameter in parameters):
            return {"fp16": "GradScaler cannot unscale gradients of float16 weights"}
    return {}


def must_have_closure(optimizer: Optimizer) -> bool:
    """Whether ``optimizer.step`` takes a closure always, as that of LBFGS; no scaler passes one on."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


class AmpMonitor(Monitor):
    """A run whose precision the screen switches, from :func:`watch` to the end of the script."""

    def __init__(self, script: WatchedScript, *, clip_norm: float | None, start_step: int) -> None:
        self._amp = script.amp
        self._optimizers = {pair.name: pair for pair in (script.first, *script.others)}
        self._clip_norm = clip_norm
        self._stepped: set[str] = set()
        """Optimizers that have stepped since the scale was updated."""
        super().__init__(script, start_step=start_step)

    @property
    def precision(self) -> str:
        """The precision of the next step."""
        return self._amp.precision.name

    @property
    def scaler(self) -> GradScaler:
        """The scaler for ``scale()``, ``unscale_()``, ``step()`` and ``update()``.

        It passes losses and steps through except in ``fp16``. Its ``state_dict()`` is complete in every
        precision.
        """
        if self._stepped:
            self._begin_pass()  # what asks for its state may save it
        return self._amp.scaler

    def autocast(self) -> torch.autocast:
        """The context for a forward pass and its loss in the current precision."""
        if self._stepped:
            self._begin_pass()
        return self._amp.autocast()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``, times the loss scale in ``fp16``.

        May be called several times in a step; losses that are accumulated should be divided by their number.
        """
        if self._stepped:
            self._begin_pass()
        scaler, loss = self._amp.scaler, loss.float()
        # Outside autocast: the scale of 65,536 does not exist in float16.
        (scaler.scale(loss) if scaler.is_enabled() else loss).backward()

    def step(self, name: str = "") -> None:
        """Unscale and clip the gradients, update the weights unless they overflowed, zero the gradients.

        ``name``: of several optimizers, the one whose step it is. What its loss left in the gradients of
        others is the script's to clear. Raises ValueError if there is no optimizer of that name, and
        TypeError for a closure.
        """
        if callable(name):
            raise TypeError("step() takes no closure: use optimizer.step(closure), with backward(loss) in it")
        if (pair := self._optimizers.get(name)) is None:
            names = ", ".join(map(repr, self._optimizers))
            raise ValueError(f"step() takes the name of one of the optimizers: {names}, not {name!r}")
        scaler, optimizer = self._amp.scaler, pair.optimizer
        if self._clip_norm is not None:
            scaler.unscale_(optimizer)
            groups = optimizer.param_groups  # which a script may add to at any time
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], self._clip_norm)
        if not scaler.is_enabled():
            optimizer.step()  # as the scaler would
        else:
            if name in self._stepped:
                self._update_scale()
            scaler.step(optimizer)
            self._stepped.add(name)
            if len(self._optimizers) == 1:
                self._update_scale()
        optimizer.zero_grad(set_to_none=True)

    def _update_scale(self) -> None:
        """Update the loss scale after the steps of an iteration."""
        self._stepped.clear()
        self._amp.scaler.update()

    def _begin_pass(self) -> None:
        """Update the scale before the next loss, unless an optimizer has gradients of the scale of now."""
        if self._run is None or self._run.loop.may_update_scale:
            self._update_scale()

    def _close(self, error: BaseException | None, *, at_exit: bool = False) -> None:
        try:
            super()._close(error, at_exit=at_exit)
        finally:
            if os.getpid() == self._pid:
                self._amp.leave_float8()  # also where no run could be opened

    def _see(self, batch: object) -> None:
        first = None if self._run is None else self._run.first
        if isinstance(first, SwitchedOptimizer) and first.wants_shapes:
            first.keep_shapes(batch)

    def train_step(self, *compute_losses: ComputeLoss) -> Tensor:
        """Make a whole step of the functions, each of which runs a forward pass and returns its loss.

        Returns the mean of their losses, detached. amptui may run them again: for an X-ray, or in the
        previous precision if the first step in a new one fails.

        Raises TypeError if a function returns no tensor; what a function raises passes through.
        """
        if not compute_losses:
            raise TypeError("train_step() takes at least one function that returns a loss")
        if len(self._optimizers) > 1:
            raise ValueError("train_step() makes the step of one optimizer: use backward() and step(name)")
        first = None if self._run is None else self._run.first
        if not isinstance(first, SwitchedOptimizer):
            return self._make_step(compute_losses, nullcontext())
        return first.attempt(compute_losses, lambda: self._make_step(compute_losses, first.around_passes()))

    def _make_step(
        self, compute_losses: tuple[ComputeLoss, ...], around_passes: AbstractContextManager[None]
    ) -> Tensor:
        name, count = next(iter(self._optimizers)), len(compute_losses)
        self._optimizers[name].optimizer.zero_grad(set_to_none=True)
        with around_passes:
            losses = [self._run_passes(compute_loss, count) for compute_loss in compute_losses]
        self.step(name)
        return losses[0] if count == 1 else torch.stack(losses).sum()

    def _run_passes(self, compute_loss: ComputeLoss, count: int) -> Tensor:
        """Run one forward and backward pass; return its share of the step's loss."""
        with self.autocast():
            loss = compute_loss()
        if not isinstance(loss, Tensor):
            raise TypeError(f"a function of train_step() returned a {type(loss).__name__}, not a loss")
        loss = loss if count == 1 else loss / count
        self.backward(loss)
        return loss.detach()
