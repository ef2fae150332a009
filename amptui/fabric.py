"""Watches a loop of Lightning Fabric and switches its precision: the plugin that owns Fabric's autocast."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from amptui.guest.amp_monitor import AmpName
from amptui.guest.framework import LIGHTNING_NAMES, OWN_NAMES, FrameworkMonitor, closure_run_before, model_of
from amptui.loops.script.guard import harmless
from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.script import AUTOCAST_DTYPES, SwitchedAmp


class Precision(MixedPrecision):
    """Fabric's precision plugin, with a precision that the screen switches between two steps.

    ``precision`` is what the loop starts in, as ``Fabric(precision=...)`` takes it: "32-true", "16-mixed" or
    "bf16-mixed". ``amp`` is what AMP means: by default that of ``precision``, else ``fp16`` on a GPU and
    ``bf16`` on a CPU. ``scaler``, ``samples_per_step`` and ``save`` are as in :func:`amptui.watch`.

    All optimizers that make steps are watched, from the first one's first step on. Several processes are only
    observed, on rank 0. Raises ValueError for another precision or ``amp``.
    """

    def __init__(
        self,
        precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true",
        *,
        amp: AmpName | None = None,
        scaler: torch.amp.GradScaler | None = None,
        samples_per_step: int | None = None,
        save: Callable[[], object] | None = None,
    ) -> None:
        # Not super().__init__(): it would set the precision once and for all.
        if precision not in OWN_NAMES:
            raise ValueError(f"precision must be one of {', '.join(OWN_NAMES)}, not {precision!r}")
        self.monitor = FabricMonitor(OWN_NAMES[precision], save, amp=amp, samples_per_step=samples_per_step)
        """For ``should_stop``, ``log()``, ``epochs()``, ``steps()`` and ``validation()`` in the loop."""
        self._first_scaler = scaler

    @property
    def precision(self) -> str:
        """The current precision as ``Fabric(precision=...)`` takes it."""
        return LIGHTNING_NAMES[self.monitor.precision]

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The one that follows the precision; before the first forward pass what it will start as."""
        return self.monitor.amp.scaler if self.monitor.has_amp else self._first_scaler

    @property
    def _desired_input_dtype(self) -> torch.dtype | None:
        """What Fabric's own plugin converts inputs to."""
        return AUTOCAST_DTYPES.get(self.monitor.precision)

    def convert_module(self, module: nn.Module) -> nn.Module:
        self.monitor.modules.append(module)
        return module

    def forward_context(self) -> AbstractContextManager[object]:
        self._begin_forward()
        return nullcontext() if not self.monitor.modules else self._switched().autocast()

    def convert_input(self, data: Any) -> Any:
        self._begin_forward()
        return data if self._desired_input_dtype is None else super().convert_input(data)

    def convert_output(self, data: Any) -> Any:
        return data if self._desired_input_dtype is None else super().convert_output(data)

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        self._switched()
        self.monitor.begin_backward()
        super().backward(tensor, model, *args, **kwargs)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        self._switched().scaler.unscale_(optimizer)

    def optimizer_step(self, optimizer: Optimizer, **kwargs: Any) -> Any:
        scaler, closure = self._switched().scaler, kwargs.get("closure")
        if closure is not None and not scaler.is_enabled():
            kwargs["closure"] = closure_run_before(closure)
        self.monitor.begin_step(optimizer, has_closure=closure is not None)
        output = scaler.step(optimizer, **kwargs)
        scaler.update()
        return output

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.scaler is None:  # no module yet: its device is not known
            self._first_scaler = torch.amp.GradScaler("cpu")
        super().load_state_dict(state_dict)

    def _switched(self) -> SwitchedAmp:
        """Autocast and scaler; Fabric moves the first module to its device before anything runs."""
        if self.monitor.has_amp:
            return self.monitor.amp
        modules = self.monitor.modules
        devices = (parameter.device for module in modules for parameter in module.parameters())
        return self.monitor.take_over(next(devices, torch.device("cpu")), self._first_scaler)

    def _begin_forward(self) -> None:
        """Between two steps is where the next forward pass begins: all optimizers have stepped."""
        if torch.is_grad_enabled():
            self.monitor.end_step()


class FabricMonitor(FrameworkMonitor):
    """A run that begins with the first step, since Fabric tells its plugin no optimizer before."""

    framework = "Fabric"

    def __init__(self, precision: str, save: Callable[[], object] | None, **options: Any) -> None:
        super().__init__(**options)
        self.first_precision, self._save = precision, save
        self.modules: list[nn.Module] = []
        """Those that Fabric has set up."""
        self._has_begun = False
        """Whether the first step has begun."""
        self._first_loop: ObservedLoop | None = None
        """What sees the first step until the run begins."""
        self._early_batches: list[tuple[float, float, int]] = []

    def begin_backward(self) -> None:
        """The first step is seen from its first backward pass on, before its optimizer is known."""
        if not self._has_begun and self._first_loop is None:
            self._first_loop = ObservedLoop()
            self._first_loop.listen()

    @harmless
    def begin_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """Open the run, with what is known of the first step; ranks other than the first have none."""
        if self._has_begun:
            return
        self._has_begun, amp, loop = True, self.amp, self._first_loop
        model = model_of(optimizer, self.modules)
        assert model is not None, "its first backward pass has run"
        in_group = distributed.is_available() and distributed.is_initialized()
        self.decide(amp.device, processes=distributed.get_world_size() if in_group else 1)
        if not (in_group and distributed.get_rank() > 0):
            self.open(
                model, optimizer, scaler=amp.scaler, has_closure=has_closure, save=self._save, loop=loop
            )
        if self._run is not None:
            for batch in self._early_batches:
                super()._take_batch(*batch)
        elif loop is not None:
            loop.leave()
        self._first_loop, self._early_batches = None, []

    def _take_batch(self, load_start: float, seconds: float, samples: int) -> None:
        if not self._has_begun:
            self._early_batches.append((load_start, seconds, samples))
        super()._take_batch(load_start, seconds, samples)
