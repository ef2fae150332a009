"""Watches a Lightning ``Trainer`` and switches its precision: a callback, and the precision plugin it sets.

``Trainer(callbacks=[amptui.lightning.PrecisionMonitor()])`` is all that a script needs. The plugin has
Lightning's autocast and the order of its hooks; between two steps its precision may change.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision, Precision
from torch import Tensor
from torch.optim import Optimizer

from amptui.device.accelerator import older_scalers
from amptui.device.readback import LOOK_INTERVAL_SECONDS
from amptui.guest.amp_monitor import AmpName
from amptui.guest.framework import LIGHTNING_NAMES, OWN_NAMES, FrameworkMonitor, closure_run_before
from amptui.loops.script.guard import harmless
from amptui.loops.script.script import SwitchedAmp, SwitchedScaler


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
        run = closure_run_before(partial(self._wrap_closure, model, optimizer, closure))
        return optimizer.step(closure=run, **kwargs)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float = 0.0, *args: Any, **kwargs: Any) -> None:
        # Lightning leaves the gradients of a fused optimizer scaled, and refuses to clip them.
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if fused and clip_val and clip_val > 0 and not self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled = True
        Precision.clip_gradients(self, optimizer, clip_val or 0.0, *args, **kwargs)


class PrecisionMonitor(FrameworkMonitor, Callback):
    """Shows a training on amptui's screen, whose keys switch its precision, compare, pause, save and stop.

    ``amp`` is what AMP means: by default the Trainer's own mixed precision, else ``fp16`` on a GPU and
    ``bf16`` on a CPU. ``dirpath`` is the folder of the
    checkpoints that the key ``s`` asks for: by default the run's own.

    It takes over a Trainer with one device and ``precision`` "32-true", "16-mixed" or "bf16-mixed" under
    automatic optimization, and switches it to any precision, FP8 among them. Any other training is only
    observed, on rank 0, and the screen says why. A fault of amptui's own is told in one line, and the
    training goes on. Raises ValueError for another ``amp``.
    """

    framework = "the Trainer"

    def __init__(
        self,
        *,
        amp: AmpName | None = None,
        dirpath: str | Path | None = None,
    ) -> None:
        super().__init__(amp=amp)
        self._dirpath = dirpath
        self._load_start = 0.0
        self._loading_seconds: float | None = None
        self._metrics: dict[str, Tensor] = {}
        """Those of Lightning's that were looked at last; of an epoch before they belong to no step."""
        self._metrics_due = 0.0

    # ------------------------------------------------------------------- before and after a fit

    @harmless
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put our precision plugin in the place of the Trainer's, if it does the same."""
        if stage != "fit":
            return
        strategy = trainer.strategy
        theirs = strategy.precision_plugin
        why_observed = _why_observed(trainer, pl_module)
        self.decide(strategy.root_device, processes=trainer.world_size, why_observed=why_observed)
        if self.why_observed:
            return
        self.first_precision = OWN_NAMES[theirs.precision]
        if isinstance(theirs, SwitchedPrecision):  # of an earlier fit
            self.amp, self.has_amp = theirs.amp, True
        else:
            amp = self.take_over(strategy.root_device, getattr(theirs, "scaler", None))
            strategy.precision_plugin = SwitchedPrecision(amp)

    @harmless
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not trainer.optimizers:
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        save = partial(self._save, trainer)
        self.open(pl_module, trainer.optimizers[0], scaler=scaler, save=save)
        batches, steps = trainer.num_training_batches, trainer.estimated_stepping_batches
        self.begin(
            # Lightning counts the steps of all optimizers together.
            step=trainer.global_step // len(trainer.optimizers),
            epoch=trainer.current_epoch + 1,
            batches_per_epoch=batches if isinstance(batches, int) else 0,
            total_steps=steps if isinstance(steps, int) else 0,
            total_epochs=max(0, trainer.max_epochs or 0),
        )
        # A profiler would be the public way; it would be called for every hook of every callback.
        self.replace(trainer.fit_loop.epoch_loop, "_on_before_fetch", self._before_fetch)
        self.replace(trainer.fit_loop.epoch_loop, "_on_after_fetch", self._after_fetch)

    def _before_fetch(self, begin: Callable[[], None]) -> None:
        begin()
        self._load_start = time.perf_counter()

    def _after_fetch(self, end: Callable[[], None]) -> None:
        self._loading_seconds = time.perf_counter() - self._load_start
        end()

    def _save(self, trainer: Trainer) -> str:
        """Save a checkpoint as Lightning does; return where."""
        folder = self._dirpath or (self._run and self._run.path) or trainer.default_root_dir
        path = str(Path(folder) / f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)
        return path

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        if stage == "fit":
            self._close(None)

    def on_exception(self, _trainer: Trainer, _module: LightningModule, exception: BaseException) -> None:
        self._close(exception)

    def _close(self, error: BaseException | None, *, at_exit: bool = False) -> None:
        """End the run; what the Trainer does next is in its own precision again."""
        self.restore()
        super()._close(error, at_exit=at_exit)
        self.active = True
        if self.has_amp:
            self.amp.follow(self.amp.precisions[self.first_precision])

    # ---------------------------------------------------------------------------- within a fit

    @harmless
    def on_train_epoch_start(self, trainer: Trainer, _module: LightningModule) -> None:
        if self._run is not None:  # a look computes the metrics, which may wait for other processes
            self._metrics = dict(trainer.callback_metrics)

    @harmless
    def on_train_batch_start(self, _trainer: Trainer, _module: LightningModule, batch: Any, *_: Any) -> None:
        if self._loading_seconds is not None:
            self.take_batches(self._load_start, self._loading_seconds, [batch])
            self._loading_seconds = None

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._take_metrics(trainer)
        self.end_step()
        if self.should_stop:
            trainer.should_stop = True

    @harmless
    def _take_metrics(self, trainer: Trainer) -> None:
        now = time.perf_counter()
        if self._run is not None and now >= self._metrics_due:  # Lightning computes all of them at each look
            self._metrics_due = now + LOOK_INTERVAL_SECONDS
            values = self._new_metrics(trainer)
            values.pop("loss", None)  # it is shown as it was backpropagated
            FrameworkMonitor.log(self, **values)  # self.log is the module's meanwhile

    def on_train_epoch_end(self, _trainer: Trainer, _module: LightningModule) -> None:
        self.finish_epoch()

    @harmless
    def on_validation_start(self, trainer: Trainer, _module: LightningModule) -> None:
        if self._run is not None:
            self._metrics = dict(trainer.callback_metrics)
            self._run.first.begin_validation()

    @harmless
    def on_validation_end(self, trainer: Trainer, _module: LightningModule) -> None:
        if self._run is not None:
            metrics = self._new_metrics(trainer).items()
            self.finish_validation({_validation_name(name): value for name, value in metrics})

    def _new_metrics(self, trainer: Trainer) -> dict[str, Tensor]:
        """What was logged since the last look; Lightning keeps all metrics, some under two names."""
        old = {value.data_ptr() for value in self._metrics.values()}
        self._metrics = dict(trainer.callback_metrics)
        new: dict[int, tuple[str, Tensor]] = {}
        for name, value in self._metrics.items():
            if value.numel() == 1 and value.data_ptr() not in old:
                new.setdefault(value.data_ptr(), (name, value))
        return dict(new.values())


def _why_observed(trainer: Trainer, pl_module: LightningModule) -> str:
    """What of its own keeps its precision from being taken over; empty if nothing does."""
    plugin = trainer.strategy.precision_plugin
    scaler = getattr(plugin, "scaler", None)
    if not isinstance(trainer, Trainer):
        return "the Trainer is that of pytorch_lightning: use lightning.pytorch"
    if not pl_module.automatic_optimization:
        return "its training_step steps the optimizers itself"
    if type(plugin) not in (Precision, MixedPrecision, SwitchedPrecision):
        return f"amptui does not replace the plugin {type(plugin).__name__} of precision {plugin.precision}"
    if type(scaler) not in (NoneType, SwitchedScaler, torch.amp.GradScaler, *older_scalers()):
        return f"amptui does not replace a scaler of the class {type(scaler).__name__}"
    return ""


def _validation_name(name: str) -> str:
    """``loss`` and ``accuracy`` for what is called ``val_loss`` or ``val/acc``; others keep their names."""
    kind = re.sub("^(val|valid|validation)[_/](?=(loss|acc|accuracy)$)", "", name)
    return "accuracy" if kind == "acc" else kind
