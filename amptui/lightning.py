"""Watches a Lightning ``Trainer`` and switches its precision: a callback, and the precision plugin it sets.

``Trainer(callbacks=[amptui.lightning.PrecisionMonitor()])`` is all that a script needs. The plugin has
Lightning's autocast and the order of its hooks; between two steps its precision may change.
"""

import functools
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Concatenate, Literal, ParamSpec

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision, Precision
from torch import Tensor
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler
from amptui.engine.readback import LOOK_INTERVAL_SECONDS
from amptui.guest.amp_monitor import must_have_closure
from amptui.guest.framework_loop import (
    LIGHTNING_NAMES,
    OWN_NAMES,
    ClosureRunBefore,
    build_own_loop,
    checked_amp,
)
from amptui.guest.loop.switched_amp import SwitchedAmp, SwitchedScaler
from amptui.guest.loop.trained_script import OwnLoop
from amptui.guest.loop.watched_loop import WatchedLoop
from amptui.guest.monitor import Monitor, samples_of
from amptui.guest.run import tell_fault
from amptui.guest.watched_scripts import ONLY_OBSERVED, Observed, Watched

_P = ParamSpec("_P")

NO_CLOSURE = "the Trainer runs no forward pass twice"

_METRICS_OF_VALIDATION = {"loss": "loss", "acc": "accuracy", "accuracy": "accuracy"}
"""What the screen calls a metric whose name ends so, after ``val_`` or ``val/``."""


class SwitchedPrecision(MixedPrecision):
    """Lightning's ``MixedPrecision`` with a precision that may change between two steps.

    In ``fp32`` it does what ``precision="32-true"`` does, bit for bit, and so on. Unlike Lightning's own it
    also clips the gradients of fused optimizers, and its state always holds the loss scale.
    """

    # Lightning stores a plugin's state by this name: checkpoints with and without amptui fit each other.
    __qualname__ = "MixedPrecision"

    def __init__(self, amp: SwitchedAmp) -> None:
        # Not super().__init__(): it would set the precision once and for all.
        self.amp = amp
        self.device = amp.device.type
        self.scaler = amp.scaler
        self._unscaled = False

    @property
    def precision(self) -> str:
        """The current precision as ``Trainer(precision=...)`` takes it."""
        return LIGHTNING_NAMES[self.amp.precision.name]

    def autocast_context_manager(self) -> torch.autocast:
        return self.amp.autocast(cache_enabled=False)  # as Lightning's

    def optimizer_step(
        self, optimizer: Optimizer, model: LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        self._unscaled = False
        if self.scaler.is_enabled():
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        # Lightning runs the closure within the optimizer's step. Before it, it is in the same place in every
        # precision, and hooks of the optimizer see the step's gradients.
        run = ClosureRunBefore(partial(self._wrap_closure, model, optimizer, closure))
        return optimizer.step(closure=run, **kwargs)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float = 0.0, *args: Any, **kwargs: Any) -> None:
        # Lightning leaves the gradients of a fused optimizer scaled, and refuses to clip them.
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if fused and clip_val and clip_val > 0 and not self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled = True
        Precision.clip_gradients(self, optimizer, clip_val or 0.0, *args, **kwargs)


def _harmless(
    method: Callable[Concatenate["PrecisionMonitor", Trainer, _P], None],
) -> Callable[Concatenate["PrecisionMonitor", Trainer, _P], None]:
    """A hook that ends nothing: an error in it is told once, and the training goes on unwatched."""

    @functools.wraps(method)
    def call(callback: "PrecisionMonitor", trainer: Trainer, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if callback.failed:
            return
        try:
            method(callback, trainer, *args, **kwargs)
        except Exception as error:  # whatever fails here, the training goes on
            if is_from_signal_handler(error):
                raise
            callback.give_up(error)

    return call


class PrecisionMonitor(Callback):
    """Shows a training on amptui's screen, whose keys switch its precision, compare, pause, save and stop.

    ``amp`` is what AMP means: by default the Trainer's own mixed precision, else ``fp16`` on a GPU and
    ``bf16`` on a CPU. ``dirpath`` is the folder of the checkpoints that the key ``s`` asks for: by default
    the run's own.

    It takes over a Trainer with one device and ``precision`` "32-true", "16-mixed" or "bf16-mixed" under
    automatic optimization; any other training is only observed, on rank 0, and the screen says why. A fault
    of amptui's own is told in one line, and the training goes on. Raises ValueError for another ``amp``.
    """

    def __init__(
        self, *, amp: Literal["fp16", "bf16"] | None = None, dirpath: str | Path | None = None
    ) -> None:
        self._amp = checked_amp(amp)
        self._dirpath = dirpath
        self._plugin: SwitchedPrecision | None = None
        self._own_precision = "fp32"
        self._why_observed = ""
        self._run: _FitRun | None = None
        self.failed = False
        """Whether an error of amptui's own has ended the watching."""

    # ------------------------------------------------------------------- before and after a fit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.failed = False
            self._set_plugin(trainer, pl_module)

    @_harmless
    def _set_plugin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put our precision plugin in the place of the Trainer's, if it does the same."""
        strategy = trainer.strategy
        theirs = strategy.precision_plugin
        self._why_observed = _why_observed(trainer, pl_module)
        if self._why_observed:
            return
        self._own_precision = OWN_NAMES[theirs.precision]
        if isinstance(theirs, SwitchedPrecision):  # of an earlier fit
            self._plugin = theirs
            return
        amp = SwitchedAmp(strategy.root_device, getattr(theirs, "scaler", None))
        amp.follow(amp.precisions[self._own_precision])
        strategy.precision_plugin = self._plugin = SwitchedPrecision(amp)

    @_harmless
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not trainer.optimizers:
            return
        plugin, optimizer = self._plugin, trainer.optimizers[0]
        if not self._why_observed and trainer.precision_plugin is not plugin:
            self._why_observed = "another callback has set a precision plugin"
        if self._why_observed or plugin is None:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            script: Observed | Watched = Observed(
                pl_module, optimizer, scaler, None, reason=self._why_observed or ONLY_OBSERVED
            )
        else:
            save = partial(self._save, trainer)
            script = Watched(self._own_loop(pl_module, optimizer, plugin.amp), plugin.amp, None, save)
        self._run = _FitRun(script, trainer, self._why_observed)

    def _own_loop(self, pl_module: LightningModule, optimizer: Optimizer, amp: SwitchedAmp) -> OwnLoop:
        closure = must_have_closure(optimizer)
        return build_own_loop(
            pl_module, optimizer, amp, amp_precision=self._amp, closure=closure, no_closure=NO_CLOSURE
        )

    def _save(self, trainer: Trainer) -> str:
        """Save a checkpoint as Lightning does; return where."""
        folder = self._dirpath or (self._run.path if self._run else None) or trainer.default_root_dir
        path = str(Path(folder) / f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)
        return path

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        if stage == "fit":
            self._finish(None)

    def on_exception(self, _trainer: Trainer, _module: LightningModule, exception: BaseException) -> None:
        self._finish(exception)

    def _finish(self, error: BaseException | None) -> None:
        """End the run; what the Trainer does next is in its own precision again."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(error)
        if self._plugin is not None:
            amp = self._plugin.amp
            amp.follow(amp.precisions[self._own_precision])

    def give_up(self, error: Exception) -> None:
        """Watch this fit no longer; say so once."""
        self.failed = True
        if self._run is None:
            tell_fault("cannot watch this training, which goes on", error)
        else:
            self._run.give_up(error)

    # ---------------------------------------------------------------------------- within a fit

    @_harmless
    def on_train_epoch_start(self, trainer: Trainer, _module: LightningModule) -> None:
        if self._run is not None:
            self._run.begin_epoch(trainer)

    @_harmless
    def on_train_batch_start(self, _trainer: Trainer, _module: LightningModule, batch: Any, *_: Any) -> None:
        if self._run is not None:
            self._run.take_batch(batch)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._end_batch(trainer)
        run = self._run
        if run is not None and run.may_stop and run.should_stop:
            trainer.should_stop = True

    @_harmless
    def _end_batch(self, trainer: Trainer) -> None:
        if self._run is not None:
            self._run.end_batch(trainer)

    @_harmless
    def on_train_epoch_end(self, _trainer: Trainer, _module: LightningModule) -> None:
        if self._run is not None:
            self._run.end_epoch()

    @_harmless
    def on_validation_start(self, trainer: Trainer, _module: LightningModule) -> None:
        if self._run is not None:
            self._run.begin_validation(trainer)

    @_harmless
    def on_validation_end(self, trainer: Trainer, _module: LightningModule) -> None:
        if self._run is not None:
            self._run.end_validation(trainer)


class _FitRun(Monitor):
    """The run of one ``Trainer.fit``."""

    def __init__(self, script: Observed | Watched, trainer: Trainer, why_observed: str) -> None:
        self._undo: Callable[[], None] = lambda: None
        self._asked = time.perf_counter()
        self._loading_seconds: float | None = None
        self._metrics: dict[str, Tensor] = {}
        self._metrics_due = 0.0
        self.may_stop = trainer.world_size == 1
        """Whether to end the loop when a screen asks for it: of several processes all would have to."""
        super().__init__(script)
        try:
            self._describe(trainer, why_observed)
        except Exception:
            self.finish(None)  # nobody would answer its screen
            raise

    def _describe(self, trainer: Trainer, why_observed: str) -> None:
        """Tell the screen how long the training is, and where it begins."""
        run = self._run
        if run is None:
            return
        run.stops_when_asked = self.may_stop
        batches, steps = trainer.num_training_batches, trainer.estimated_stepping_batches
        run.batches_per_epoch = batches if isinstance(batches, int) else 0
        run.total_steps = steps if isinstance(steps, int) else 0
        run.total_epochs = max(0, trainer.max_epochs or 0)
        # Lightning counts the steps of all optimizers together.
        run.loop.step = trainer.global_step // len(trainer.optimizers)
        run.loop.epoch = trainer.current_epoch + 1
        if why_observed:
            run.note("info", f"the training is only observed: {why_observed}")
        self._time_loading(trainer.fit_loop.epoch_loop)

    @property
    def path(self) -> Path | None:
        """The run's folder."""
        return None if self._run is None else self._run.path

    def _time_loading(self, epoch_loop: Any) -> None:
        """Measure the time to load each batch, where this version of Lightning says when it begins and ends.

        A profiler would be the public way; it would be called for every hook of every callback.
        """
        begin = getattr(epoch_loop, "_on_before_fetch", None)
        end = getattr(epoch_loop, "_on_after_fetch", None)
        if begin is None or end is None:
            return

        def before_fetch() -> None:
            begin()
            self._asked = time.perf_counter()

        def after_fetch() -> None:
            self._loading_seconds = time.perf_counter() - self._asked
            end()

        def undo() -> None:
            for name in ("_on_before_fetch", "_on_after_fetch"):
                vars(epoch_loop).pop(name, None)

        epoch_loop._on_before_fetch, epoch_loop._on_after_fetch = before_fetch, after_fetch
        self._undo = undo

    def begin_epoch(self, trainer: Trainer) -> None:
        """What was logged of the last epoch belongs to no step."""
        self._metrics = dict(trainer.callback_metrics)

    def take_batch(self, batch: Any) -> None:
        """The batch of the next forward pass was loaded."""
        if self._run is not None and self._loading_seconds is not None:
            self._run.loop.loaded(self._asked, self._loading_seconds, samples_of(batch))
            self._loading_seconds = None

    def end_batch(self, trainer: Trainer) -> None:
        """Lightning's own count of the batch is complete: take what was logged, handle the requests."""
        if self._run is None:
            return
        now = time.perf_counter()
        if now >= self._metrics_due:  # Lightning computes all of them at each look
            self._metrics_due = now + LOOK_INTERVAL_SECONDS
            values = self._new_metrics(trainer.callback_metrics)
            values.pop("loss", None)  # it is shown as it was backpropagated
            self._run.loop.log(None, values)
        if isinstance(self._run.loop, WatchedLoop):
            self._run.loop.end_step()

    def end_epoch(self) -> None:
        """Its validation, if it had one, has ended before."""
        if self._run is not None:
            self._run.loop.finish_epoch()

    def begin_validation(self, trainer: Trainer) -> None:
        """Neither its time nor its results belong to a step."""
        self._metrics = dict(trainer.callback_metrics)
        if self._run is not None:
            self._run.loop.begin_validation()

    def end_validation(self, trainer: Trainer) -> None:
        """Take its results."""
        if self._run is None:
            return
        values = self._new_metrics(trainer.callback_metrics)
        loop = self._run.loop
        loop.log(None, {_validation_name(name): value for name, value in values.items()})
        loop.finish_validation()

    def _new_metrics(self, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What was logged since the last look; Lightning keeps all metrics, some under two names."""
        known = {value.data_ptr() for value in self._metrics.values()}
        self._metrics = dict(metrics)
        new: dict[int, tuple[str, Tensor]] = {}
        for name, value in metrics.items():
            if value.numel() == 1 and value.data_ptr() not in known:
                new.setdefault(value.data_ptr(), (name, value.detach().reshape(())))
        return dict(new.values())

    def give_up(self, error: Exception) -> None:
        """Watch no longer; the screen is told why."""
        self._undo()
        if self._run is not None:
            self._run.loop.give_up(error)

    def finish(self, error: BaseException | None) -> None:
        """End the run as the fit has ended."""
        self._undo()
        self._close(error)


def _why_observed(trainer: Trainer, pl_module: LightningModule) -> str:
    """Why the Trainer's precision cannot be taken over; empty if it can."""
    plugin, device = trainer.strategy.precision_plugin, trainer.strategy.root_device
    scaler = getattr(plugin, "scaler", None)
    if not isinstance(trainer, Trainer):
        return "the Trainer is that of pytorch_lightning: use lightning.pytorch"
    if trainer.world_size > 1:
        return f"{trainer.world_size} processes train together; this is rank 0"
    if not pl_module.automatic_optimization:
        return "its training_step steps the optimizers itself"
    if device.type not in ("cpu", "cuda"):
        return f"amptui switches no precision on the device {device.type}"
    if type(plugin) not in (Precision, MixedPrecision, SwitchedPrecision):
        return f"amptui does not replace the plugin {type(plugin).__name__} of precision {plugin.precision}"
    known = type(scaler) in (NoneType, SwitchedScaler, torch.amp.GradScaler, torch.cuda.amp.GradScaler)
    return "" if known else f"amptui does not replace a scaler of the class {type(scaler).__name__}"


def _validation_name(name: str) -> str:
    """``loss`` and ``accuracy`` for what is called ``val_loss`` or ``val/acc``; others keep their names."""
    for prefix in ("val_", "val/", "valid_", "valid/", "validation_", "validation/"):
        kind = _METRICS_OF_VALIDATION.get(name.removeprefix(prefix))
        if kind is not None:
            return kind
    return name
