"""Watches a loop of Accelerate and switches its precision: forward passes, scaler, saved states."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
from amptui.device.accelerator import TRAINABLE
from amptui.guest.amp_monitor import (
    AmpName,
    PrecisionName,
    check_fp8_recipe,
    check_precision,
    checked_amp,
    must_have_closure,
)
from amptui.guest.framework import FrameworkMonitor, harmless_event, model_of
from amptui.guest.loop.script import NamedOptimizer, ObservedScript, WatchedScript
from amptui.guest.loop.switched_amp import AUTOCAST_DTYPES, SwitchedAmp
from amptui.recipe.float8 import supported_float8
from amptui.recipe.precision import amp_of, unsupported_precisions
from amptui.recipe.request import Fp8Recipe
from amptui.records.run import AMP_PRECISIONS, PRECISIONS, parse_precision, precision_option

_T = TypeVar("_T")

_SCALER_FILE = "amptui_scaler.bin"
"""The scaler's state among an accelerator's saved ones, where Accelerate itself has no scaler to save."""

_NO_XRAY = "it runs the forward pass again, for which Accelerate has no function"

_SEVERAL_OPTIMIZERS = "the accelerator has several optimizers, which step at different times"

_UNWATCHED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TP")
"""Where not torch's optimizer alone updates the weights, or not its tensors alone hold them."""


def watch(
    accelerator: Accelerator,
    *,
    precision: PrecisionName | None = None,
    amp: AmpName | None = None,
    fp8_recipe: Fp8Recipe | None = None,
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

    In ``fp8`` the Linear layers of the model multiply in float8 by ``fp8_recipe``, as in
    :func:`amptui.watch`; a model that has none that can trains in ``bf16``, which is told in one line.

    Several processes, Accelerate's own fp8 and weights other than float32 are only observed, and only in the
    main process. DeepSpeed, FSDP, Megatron-LM and XLA are not watched.

    Raises TypeError for arguments of other kinds, RuntimeError after ``prepare()``, and ValueError for a
    precision that the device does not support or an unknown ``fp8_recipe``. If anything else of amptui's own
    fails, it writes one line to standard error and the script continues in the current precision.
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(f"accelerator must be an accelerate.Accelerator, not {type(accelerator).__name__}")
    if accelerator._models or accelerator._optimizers:
        raise RuntimeError("call amptui.accelerate.watch() before accelerator.prepare()")
    folder = None if save_dir is None else Path(save_dir)
    return AcceleratorMonitor(
        accelerator,
        precision=precision,
        amp=amp,
        fp8_recipe=fp8_recipe,
        samples_per_step=samples_per_step,
        save_dir=folder,
    )


class AcceleratorMonitor(FrameworkMonitor):
    """The run of what an accelerator trains, from its ``prepare()`` to the end of the script."""

    _no_xray = _NO_XRAY
    _ends_steps = False
    """Whether something tells where a step ends besides the model's next forward pass."""

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        precision: str | None,
        amp: str | None,
        fp8_recipe: str | None,
        samples_per_step: int | None = None,
        save_dir: Path | None = None,
    ) -> None:
        super().__init__(None)
        self._accelerator = accelerator
        self._samples_per_step = samples_per_step
        self._save_dir = save_dir
        check_fp8_recipe(fp8_recipe)
        self._fp8_recipe = fp8_recipe
        self._models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []
        self._amp: SwitchedAmp | None = None
        self._is_open = False
        self.may_stop = accelerator.num_processes == 1
        self._unsupported = unsupported_precisions(accelerator.device)
        precision = precision and supported_float8(parse_precision(precision), self._unsupported)
        amp = checked_amp(amp)
        for name in filter(None, (precision, amp)):
            check_precision(name, self._unsupported)
        own = str(accelerator.mixed_precision)
        is_own_low = accelerator.native_amp and own in AMP_PRECISIONS  # on a CPU, its fp16 is float32
        self._first_precision = precision or (own if is_own_low else "fp32")
        self._unsupported.pop(self._first_precision, None)  # the script uses it
        usual = own if own in AMP_PRECISIONS else None
        self._amp_precision = amp_of(accelerator.device, self._first_precision, amp, usual)
        self._reason = _why_only_observed(accelerator)
        """Why amptui does not switch the precision; empty if it does."""
        if not accelerator.is_main_process:
            return
        if unwatched := _why_unwatched(accelerator):
            complain(f"cannot watch this script: {unwatched}")
            return
        self._replace("prepare_model", self._prepare_model)
        self._replace("prepare_optimizer", self._prepare_optimizer)

    @property
    def precision(self) -> str:
        """The precision of the next step."""
        return self._first_precision if self._amp is None else self._amp.precision.name

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

    def _replace(self, name: str, around: Callable[..., Any]) -> None:
        """Let ``around``, which gets the accelerator's method first, do what the method of that name does."""
        method = getattr(self._accelerator, name)
        setattr(self._accelerator, name, functools.wraps(method)(functools.partial(around, method)))

    def _own(self, parameters: Iterable[nn.Parameter]) -> SwitchedAmp | None:
        """Take the precision over before the first of the script's parts is prepared, if that is possible."""
        if self._amp is not None or self._reason:
            return self._amp
        dtypes = {p.dtype for p in parameters if p.requires_grad and p.dtype != torch.float32}
        if dtypes:
            name = str(dtypes.pop()).removeprefix("torch.")
            self._reason = f"the trained weights are {name}, not float32"
            return None
        accelerator = self._accelerator
        try:
            amp = SwitchedAmp(accelerator.device, accelerator.scaler, fp8_recipe=self._fp8_recipe)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the script goes on
            self._reason = f"{type(error).__name__}: {error}"
            return None
        amp.begin(self._first_precision)
        self._amp = amp
        if accelerator.scaler is None:
            accelerator.register_save_state_pre_hook(self._save_scaler)
            accelerator.register_load_state_pre_hook(self._load_scaler)
        else:
            accelerator.scaler = amp.scaler
        self._replace("autocast", self._autocast)
        self._replace("backward", self._backward)
        self._replace("unscale_gradients", self._unscale_gradients)
        return amp

    @property
    def _owned(self) -> SwitchedAmp:
        assert self._amp is not None, "the precision is amptui's"
        return self._amp

    @contextmanager
    def _scaler_in_place(self) -> Iterator[None]:
        """Within, the accelerator has the scaler; elsewhere only if it had one without amptui.

        A script may ask whether there is one, and so does what loads a checkpoint.
        """
        accelerator, before = self._accelerator, self._accelerator.scaler
        accelerator.scaler = before if self._amp is None else self._amp.scaler
        try:
            yield
        finally:
            accelerator.scaler = before

    def _prepare_model(
        self, prepare_model: Callable[..., Any], model: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        accelerator, is_new = self._accelerator, all(model is not other for other in self._models)
        if not is_new or self._own(model.parameters()) is None:
            prepared = prepare_model(model, *args, **kwargs)
        else:
            native_amp, accelerator.native_amp = accelerator.native_amp, False
            if native_amp:
                # Accelerate takes an autocast off again by this.
                vars(model)["_original_forward"] = model.forward
            self._switch_forward(model)
            try:
                prepared = prepare_model(model, *args, **kwargs)
            finally:
                accelerator.native_amp = native_amp
        if is_new:
            self._models.append(model)
            self._open_if_complete()
        return prepared

    def _switch_forward(self, model: nn.Module) -> None:
        """Let the forward pass run in the current precision and return float32, as Accelerate does."""
        amp, forward, cache_enabled = self._owned, model.forward, self._cache_enabled
        of_class = getattr(forward, "__func__", None)
        function = forward if of_class is None else of_class

        @functools.wraps(function)
        def switched(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and torch.is_grad_enabled():
                self.end_step()
            with amp.autocast(cache_enabled=cache_enabled):
                outputs = function(*args, **kwargs)
            return convert_to_fp32(outputs) if amp.precision.name in AUTOCAST_DTYPES else outputs

        # A copy of the model has a method of its own.
        model.forward = switched if of_class is None else MethodType(switched, model)

    def _prepare_optimizer(
        self, prepare_optimizer: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        self._own(p for group in optimizer.param_groups for p in group["params"])
        with self._scaler_in_place():
            prepared = prepare_optimizer(optimizer, *args, **kwargs)
        bare = _bare(prepared)
        if all(bare is not other for other in self._optimizers):
            self._optimizers.append(bare)
            self._open_if_complete()
        return prepared

    def _autocast(self, _method: object, autocast_handler: Any = None) -> AbstractContextManager[Any]:
        if autocast_handler is not None and not autocast_handler.enabled:
            return torch.autocast(self._owned.device.type, enabled=False)
        self.end_step()
        return self._owned.autocast(cache_enabled=self._cache_enabled)

    @property
    def _cache_enabled(self) -> bool:
        handler = self._accelerator.autocast_handler
        return handler is None or bool(handler.cache_enabled)

    def _backward(self, backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._scaler_in_place():
            return backward(*args, **kwargs)

    def _unscale_gradients(self, _method: object, optimizer: Any = None) -> None:
        optimizers = self._accelerator._optimizers if optimizer is None else optimizer
        for wrapper in optimizers if isinstance(optimizers, list | tuple) else [optimizers]:
            self._owned.scaler.unscale_(_bare(wrapper))

    def _save_scaler(self, _models: object, _weights: object, output_dir: str) -> None:
        torch.save(self._owned.scaler.state_dict(), Path(output_dir) / _SCALER_FILE)

    def _load_scaler(self, _models: object, input_dir: str) -> None:
        path = Path(input_dir) / _SCALER_FILE
        if path.exists():
            self._owned.scaler.load_state_dict(load_plain(path))

    # ------------------------------------------------------------------------- the run

    @harmless_event
    def _open_if_complete(self) -> None:
        """Open the run when there are a model and its optimizer; say once what comes too late for it."""
        run = self._run
        if run is not None and len(self._optimizers) > 1:
            switchable = [name for name in PRECISIONS if name != self.precision]
            self._unsupported.update(dict.fromkeys(switchable, _SEVERAL_OPTIMIZERS))
            run.warn_once(f"{_SEVERAL_OPTIMIZERS}: the precision stays")
        elif self._models and self._optimizers and not self._is_open:
            self._is_open = True
            self._open(self._script())
            if self._run is not None and self._reason:
                self._run.note("info", f"only observed: {self._reason}")

    def _script(self) -> ObservedScript | WatchedScript:
        optimizer = self._optimizers[0]
        first = NamedOptimizer("", model_of(optimizer, self._models) or self._models[0], optimizer)
        if self._amp is None:
            return ObservedScript(
                first=first,
                scaler=self._accelerator.scaler,
                samples_per_step=self._samples_per_step,
                reason=f"only observed: {self._reason}",
            )
        if must_have_closure(optimizer):
            self._unsupported["fp16"] = f"{type(optimizer).__name__} calls its closure again"
        self._take_layers(self._amp, first.model)
        dynamo = self._accelerator.state.dynamo_plugin
        return WatchedScript(
            first=first,
            amp=self._amp,
            amp_precision=self._amp_precision,
            unsupported=self._unsupported,
            samples_per_step=self._samples_per_step,
            save=self._save,
            # A new step is noticed where it begins: not in a forward pass that is compiled.
            ends_steps=self._ends_steps or getattr(dynamo.backend, "value", "NO") == "NO",
            no_closure=self._no_xray,
        )

    def _take_layers(self, amp: SwitchedAmp, model: nn.Module) -> None:
        """Begin in FP8, if that was asked for, now that there is a model; else in bfloat16, and say why."""
        unsupported = amp.take_layers({"": model}, self._unsupported)
        self._unsupported.update(unsupported)
        if amp.precision.float8 is None:
            return
        name = self._first_precision
        if why := unsupported.get(name) or amp.begin(name):
            amp.follow(amp.precisions["bf16"])
            complain(f"no {precision_option(name)}: {why}; training in bf16 instead")


def _bare(optimizer: Any) -> Optimizer:
    """The optimizer of torch's in Accelerate's."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    bare: Optimizer = optimizer
    return bare


def _why_unwatched(accelerator: Accelerator) -> str:
    """Why nothing of it is watched; empty if it is."""
    kind = str(accelerator.distributed_type.value)
    if kind in _UNWATCHED:
        return f"{kind} updates the weights in ways of its own"
    if getattr(accelerator, "parallelism_config", None) is not None:
        return "its weights are spread over several devices"
    return ""


def _why_only_observed(accelerator: Accelerator) -> str:
    """Why amptui does not switch its precision; empty if it does."""
    if accelerator.num_processes > 1:
        return f"all {accelerator.num_processes} processes would have to switch the precision together"
    if accelerator.mixed_precision not in ("no", "fp16", "bf16"):
        return f"amptui does not switch mixed_precision={str(accelerator.mixed_precision)!r}"
    if accelerator.device.type not in TRAINABLE:
        return f"amptui does not switch the precision on {accelerator.device.type}"
    handler = accelerator.autocast_handler
    if handler is not None and not handler.enabled:
        return "the accelerator's AutocastKwargs disable autocast"
    return ""
