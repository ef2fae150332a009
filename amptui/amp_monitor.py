"""Watches somebody else's loop and switches its precision: ``watch()`` gives it an autocast and a scaler."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.engine.own_loop.step_functions import ComputeLoss
from amptui.engine.own_loop.switched_amp import SwitchedAmp
from amptui.engine.own_loop.watched_loop import OwnLoop, WatchedLoop
from amptui.engine.precision import unsupported_precisions
from amptui.engine.sharding import is_sharded, sharded_dtype
from amptui.monitor import Monitor, check_trained
from amptui.process.guest_run import Watched
from amptui.records import PRECISIONS

PrecisionName = Literal["fp32", "ieee", "tf32", "fp16", "bf16"]


def watch(  # noqa: PLR0913 - options by name, as in torch
    model: nn.Module,
    optimizer: Optimizer,
    *,
    precision: PrecisionName = "fp32",
    amp: Literal["fp16", "bf16"] | None = None,
    scaler: GradScaler | None = None,
    clip_norm: float | None = None,
    samples_per_step: int | None = None,
    save: Callable[[], object] | None = None,
) -> "AmpMonitor":
    """Watch a training loop and switch its precision from the screen; call it once, before the first step.

    The loop runs its forward passes in :meth:`AmpMonitor.autocast`, and its steps either with
    :meth:`AmpMonitor.backward` and :meth:`AmpMonitor.step`, with :attr:`AmpMonitor.scaler` as in any AMP
    loop, or with :meth:`AmpMonitor.train_step`. It starts in ``precision``; ``amp`` is what AMP means, by
    default ``fp16`` on a GPU and ``bf16`` on a CPU.

    ``scaler``: one whose scale and settings :attr:`AmpMonitor.scaler` starts with. ``clip_norm``: the largest
    norm of the gradients, for :meth:`AmpMonitor.step`. ``samples_per_step``: how many samples one optimizer
    step takes. ``save``: writes whatever the script resumes from; the key ``s`` calls it after a step.

    Raises TypeError for arguments of other kinds and ValueError for a precision that the device does not
    support. If anything else of amptui's own fails, it writes one line to standard error and the script
    continues in the current precision.
    """
    check_trained(model, optimizer)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    unsupported = unsupported_precisions(device)
    amp_precision = amp or (precision if precision in ("fp16", "bf16") else default_amp(device))
    for name in (precision, amp_precision):
        if name not in PRECISIONS:
            raise ValueError(f"no precision {name!r}: use one of {', '.join(PRECISIONS)}")
        if name in unsupported:
            raise ValueError(f"precision {name}: {unsupported[name]}")
    if (cast := sharded_dtype(model)) is not None:
        why = f"the MixedPrecisionPolicy of fully_shard() casts parameters to {cast}"
        unsupported.update({name: why for name in PRECISIONS if name != precision})
    switched = SwitchedAmp(device, scaler)
    switched.follow(switched.precisions[precision])
    own = OwnLoop(
        device=device,
        model=model,
        optimizer=optimizer,
        precisions=switched.precisions,
        precision=precision,
        amp_precision=amp_precision,
        unsupported=unsupported,
        probes=not is_sharded(model),
    )
    return AmpMonitor(Watched(own, switched, samples_per_step, save), clip_norm=clip_norm)


def default_amp(device: torch.device) -> Literal["fp16", "bf16"]:
    """What AMP means on ``device`` unless somebody says otherwise."""
    return "fp16" if device.type == "cuda" else "bf16"


class AmpMonitor(Monitor):
    """A run whose precision the screen switches, from :func:`watch` to the end of the script."""

    def __init__(self, script: Watched, *, clip_norm: float | None) -> None:
        self._amp = script.amp
        self._optimizer = script.optimizer
        self._clip_norm = clip_norm
        super().__init__(script)

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
        return self._amp.scaler

    def autocast(self) -> torch.autocast:
        """The context for a forward pass and its loss in the current precision."""
        return self._amp.autocast()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of ``loss``, times the loss scale in ``fp16``.

        May be called several times in a step; losses that are accumulated should be divided by their number.
        """
        # Outside autocast: the scale of 65,536 does not exist in float16.
        self.scaler.scale(loss.float()).backward()

    def step(self) -> None:
        """Unscale and clip the gradients, update the weights unless they overflowed, zero the gradients."""
        scaler, optimizer = self.scaler, self._optimizer
        if self._clip_norm is not None:
            scaler.unscale_(optimizer)
            groups = optimizer.param_groups  # which a script may add to at any time
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], self._clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def _see(self, batch: object) -> None:
        run = self._run
        if run is not None and isinstance(run.loop, WatchedLoop) and run.loop.counted.wants_shapes:
            run.loop.counted.see(batch)

    def train_step(self, *compute_losses: ComputeLoss) -> Tensor:
        """Make a whole step of the functions, each of which runs a forward pass and returns its loss.

        Returns the mean of their losses, detached. amptui may run them again: for an X-ray, or in the
        previous precision if the first step in a new one fails.

        Raises TypeError if a function returns no tensor; what a function raises passes through.
        """
        if not compute_losses:
            raise TypeError("train_step() takes at least one function that returns a loss")
        run = self._run
        if run is None or not isinstance(run.loop, WatchedLoop):
            return self._make_step(compute_losses)
        loop = run.loop

        def make() -> Tensor:
            return self._make_step(compute_losses, loop)

        return loop.attempt(compute_losses, make)

    def _make_step(self, compute_losses: tuple[ComputeLoss, ...], loop: WatchedLoop | None = None) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        with nullcontext() if loop is None else loop.around_passes():
            losses = [self._run_passes(each, len(compute_losses)) for each in compute_losses]
        self.step()
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _run_passes(self, compute_loss: ComputeLoss, count: int) -> Tensor:
        """Run one forward and backward pass; return its share of the step's loss."""
        with self.autocast():
            loss = compute_loss()
        if not isinstance(loss, Tensor):
            raise TypeError(f"a function of train_step() returned a {type(loss).__name__}, not a loss")
        loss = loss if count == 1 else loss / count
        self.backward(loss)
        return loss.detach()
