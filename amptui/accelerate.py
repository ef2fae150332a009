"""Watches a loop of Accelerate and switches its precision: forward passes, scaler, saved states."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import convert_to_fp32
from torch import nn
from torch.optim import Optimizer

from amptui.base.prompt import complain
from amptui.checkpoint.states import load_plain
from amptui.guest.amp_monitor import AmpName, check_precision
from amptui.guest.framework import FirstPrecision, FrameworkMonitor, model_of
from amptui.loops.script.guard import harmless
from amptui.loops.script.script import AUTOCAST_DTYPES, SwitchedAmp
from amptui.recipe.precision import unsupported_precisions
from amptui.records.run import AMP_PRECISIONS, PRECISIONS, parse_precision

_T = TypeVar("_T")

_SCALER_FILE = "amptui_scaler.bin"
"""The scaler's state among saved ones, where Accelerate itself has no scaler to save."""

_SEVERAL_OPTIMIZERS = "the accelerator has several optimizers, which step at different times"

_UNWATCHED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TP")
"""Where not torch's optimizer alone updates the weights, or not its tensors alone hold them."""


def watch(
    accelerator: Accelerator,
    *,
    precision: FirstPrecision | None = None,
    amp: AmpName | None = None,
    samples_per_step: int | None = None,
    save_dir: str | Path | None = None,
) -> "AcceleratorMonitor":
    """Watch what ``accelerator`` trains and switch its precision; call it once, before ``prepare()``.

    The loop stays as it is: ``accelerator.backward``, ``clip_grad_norm_``, ``accumulate``, ``autocast`` and
    the prepared optimizer and scheduler follow the precision. It starts in ``precision``, by default in the
    accelerator's own; ``amp`` is what AMP means, by default the accelerator's ``mixed_precision`` or else
    ``fp16`` on a GPU and ``bf16`` on a CPU.

    ``samples_per_step``: how many samples one optimizer step takes, unless :meth:`AcceleratorMonitor.steps`
    counts them. ``save_dir``: where the key ``s`` saves the accelerator's state, in a folder for each step;
    by default ``checkpoints`` in the accelerator's ``project_dir`` or the current folder. With automatic
    checkpoint naming the accelerator itself chooses.

    No loop begins in FP8; the screen switches to it.

    Several processes, Accelerate's own fp8 and weights other than float32 are only observed, and only in the
    main process. DeepSpeed, FSDP, Megatron-LM and XLA are not watched.

    Raises TypeError for arguments of other kinds, RuntimeError after ``prepare()``, and ValueError for a
    precision that the device does not support. If anything else of amptui's own
    fails, it writes one line to standard error and the script continues in the current precision.
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(f"accelerator must be an accelerate.Accelerator, not {type(accelerator).__name__}")
    if accelerator._models or accelerator._optimizers:
        raise RuntimeError("call amptui.accelerate.watch() before accelerator.prepare()")
    folder = None if save_dir is None else Path(save_dir)
    options: dict[str, Any] = {"amp": amp, "samples_per_step": samples_per_step}
    return AcceleratorMonitor(accelerator, precision=precision, save_dir=folder, **options)


class AcceleratorMonitor(FrameworkMonitor):
    """The run of what an accelerator trains, from its ``prepare()`` to the end of the script."""

    framework = "Accelerate"
    _ends_steps = False
    """Whether something tells where a step ends besides the model's next forward pass."""

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        precision: str | None,
        save_dir: Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._accelerator, self._save_dir = accelerator, save_dir
        self._models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []
        self._is_open = False
        unsupported = unsupported_precisions(accelerator.device)
        first_choices = [name for name in PRECISIONS if name != "fp8"]
        precision = precision and parse_precision(precision, first_choices)
        for name in filter(None, (precision, self._asked_amp)):
            check_precision(name, unsupported)
        own = str(accelerator.mixed_precision)
        self.usual_amp = own if own in AMP_PRECISIONS else None
        is_own_low = accelerator.native_amp and self.usual_amp  # on a CPU, its fp16 is float32
        self.first_precision = precision or (own if is_own_low else "fp32")
        self.amp_precision(accelerator.device)  # which may raise
        why_observed = _why_only_observed(accelerator)
        self.decide(accelerator.device, processes=accelerator.num_processes, why_observed=why_observed)
        why_unwatched = self._why_unwatched()
        if why_unwatched and accelerator.is_main_process:
            complain(f"cannot watch this script: {why_unwatched}")
        self.active = accelerator.is_main_process and not why_unwatched
        if self.active:
            self.replace(accelerator, "prepare_model", self._prepare_model)
            self.replace(accelerator, "prepare_optimizer", self._prepare_optimizer)

    def _why_unwatched(self) -> str:
        """Why nothing of it is watched; empty if it is."""
        kind = str(self._accelerator.distributed_type.value)
        if kind in _UNWATCHED:
            return f"{kind} updates the weights in ways of its own"
        if getattr(self._accelerator, "parallelism_config", None) is not None:
            return "its weights are spread over several devices"
        return ""

    def steps(self, batches: Iterable[_T]) -> Iterator[_T]:
        """As :meth:`Monitor.steps`; requests are handled when the body of the loop has ended."""
        for batch in super().steps(batches):
            yield batch
            self.end_step()

    def _save(self) -> object:
        """Save the accelerator's state; return where."""
        accelerator = self._accelerator
        if accelerator.project_configuration.automatic_checkpoint_naming:
            return accelerator.save_state()
        folder = self._save_dir or Path(accelerator.project_dir or ".") / "checkpoints"
        path = folder / f"step-{0 if self._run is None else self._run.first.step}"
        accelerator.save_state(str(path))
        return path

    # ------------------------------------------------------------------- the precision

    @harmless
    def _own(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take the precision over before the first of the script's parts is prepared, if that is possible."""
        if self.has_amp or self.why_observed:
            return
        dtypes = {p.dtype for p in parameters if p.requires_grad and p.dtype != torch.float32}
        if dtypes:
            name = str(dtypes.pop()).removeprefix("torch.")
            self.why_observed = f"the trained weights are {name}, not float32"
            return
        accelerator = self._accelerator
        try:
            amp = self.take_over(accelerator.device, accelerator.scaler)
        except ValueError as error:
            self.why_observed = str(error)
            return
        if accelerator.scaler is None:
            self._keep_scaler()
        else:
            accelerator.scaler = amp.scaler
        self.replace(accelerator, "autocast", self._autocast)
        self.replace(accelerator, "backward", self._with_scaler)
        self.replace(accelerator, "unscale_gradients", self._unscale_gradients)

    def _with_scaler(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the accelerator's, which has the scaler meanwhile.

        Elsewhere only if it had one without amptui: a script may ask, and so does what loads a checkpoint.
        """
        accelerator, before = self._accelerator, self._accelerator.scaler
        accelerator.scaler = self.amp.scaler if self.has_amp else before
        try:
            return method(*args, **kwargs)
        finally:
            accelerator.scaler = before

    def _keep_scaler(self) -> None:
        """Save and load the scaler's state beside the rest."""
        self._accelerator.register_save_state_pre_hook(self._save_scaler)
        self._accelerator.register_load_state_pre_hook(self._load_scaler)

    def _save_scaler(self, *args: Any) -> None:
        """The last argument is the folder."""
        torch.save(self.amp.scaler.state_dict(), Path(args[-1]) / _SCALER_FILE)

    def _load_scaler(self, *args: Any) -> None:
        """As above; None if nothing is loaded."""
        if args[-1] is not None and (path := Path(args[-1]) / _SCALER_FILE).exists():
            self.amp.scaler.load_state_dict(load_plain(path))

    def _prepare_model(
        self, prepare_model: Callable[..., Any], model: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        if any(model is other for other in self._models):
            return prepare_model(model, *args, **kwargs)
        accelerator, native_amp = self._accelerator, self._accelerator.native_amp
        self._own(model.parameters())
        if self.has_amp:
            accelerator.native_amp = False
            if native_amp:
                # Accelerate takes an autocast off again by this.
                vars(model)["_original_forward"] = model.forward
            self._switch_forward(model, self.amp)
        try:
            prepared = prepare_model(model, *args, **kwargs)
        finally:
            accelerator.native_amp = native_amp
        self._models.append(model)
        self._open_if_complete()
        return prepared

    def _switch_forward(self, model: nn.Module, amp: SwitchedAmp) -> None:
        """Let the forward pass run in the current precision and return float32, as Accelerate does."""
        forward = model.forward
        of_class = getattr(forward, "__func__", None)
        function = forward if of_class is None else of_class

        @functools.wraps(function)
        def switched(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and torch.is_grad_enabled():
                self.end_step()
            with amp.autocast():
                outputs = function(*args, **kwargs)
            return convert_to_fp32(outputs) if amp.precision.name in AUTOCAST_DTYPES else outputs

        # A copy of the model has a method of its own.
        model.forward = switched if of_class is None else MethodType(switched, model)

    def _prepare_optimizer(
        self, prepare_optimizer: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        self._own(p for group in optimizer.param_groups for p in group["params"])
        prepared = self._with_scaler(prepare_optimizer, optimizer, *args, **kwargs)
        bare = _bare(prepared)
        if all(bare is not other for other in self._optimizers):
            self._optimizers.append(bare)
            self._open_if_complete()
        return prepared

    def _autocast(self, _method: object, autocast_handler: Any = None) -> AbstractContextManager[Any]:
        if autocast_handler is not None and not autocast_handler.enabled:
            return torch.autocast(self.amp.device.type, enabled=False)
        self.end_step()
        return self.amp.autocast()

    def _unscale_gradients(self, _method: object, optimizer: Any = None) -> None:
        optimizers = self._accelerator._optimizers if optimizer is None else optimizer
        for wrapper in optimizers if isinstance(optimizers, list | tuple) else [optimizers]:
            self.amp.scaler.unscale_(_bare(wrapper))

    # ------------------------------------------------------------------------- the run

    @harmless
    def _open_if_complete(self) -> None:
        """Open the run when there are a model and its optimizer; say once what comes too late for it."""
        if self._run is not None and len(self._optimizers) > 1:
            switchable = [name for name in PRECISIONS if name != self.precision]
            self.unsupported.update(dict.fromkeys(switchable, _SEVERAL_OPTIMIZERS))
            self._run.warn_once(f"{_SEVERAL_OPTIMIZERS}: the precision stays")
        elif self._models and self._optimizers and not self._is_open:
            self._is_open = True
            optimizer, dynamo = self._optimizers[0], self._accelerator.state.dynamo_plugin
            self.open(
                model_of(optimizer, self._models) or self._models[0],
                optimizer,
                scaler=self._accelerator.scaler,
                save=self._save,
                # A new step is noticed where it begins: not in a forward pass that is compiled.
                ends_steps=self._ends_steps or getattr(dynamo.backend, "value", "NO") == "NO",
            )


def _bare(optimizer: Any) -> Optimizer:
    """The optimizer of torch's in Accelerate's."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    bare: Optimizer = optimizer
    return bare


def _why_only_observed(accelerator: Accelerator) -> str:
    """What of its own settings keeps amptui from switching its precision; empty if nothing does."""
    if accelerator.mixed_precision not in ("no", "fp16", "bf16"):
        return f"amptui does not switch mixed_precision={str(accelerator.mixed_precision)!r}"
    return "" if accelerator.autocast_handler is None else "the accelerator has AutocastKwargs of its own"
