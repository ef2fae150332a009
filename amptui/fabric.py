"""Watches a loop of Lightning Fabric and switches its precision: the plugin that owns Fabric's autocast."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from lightning.fabric.plugins import MixedPrecision
from lightning.fabric.plugins import Precision as FabricPrecision
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from amptui.guest.amp_monitor import AmpName, check_fp8_recipe, checked_amp
from amptui.guest.framework import (
    LIGHTNING_NAMES,
    OWN_NAMES,
    ClosureRunBefore,
    FrameworkMonitor,
    harmless_event,
    lightning_script,
    model_of,
)
from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.script import NamedOptimizer, ObservedScript, WatchedScript
from amptui.guest.loop.switched_amp import SwitchedAmp
from amptui.recipe.request import Fp8Recipe

NO_CLOSURE = "only the loop itself can run its forward passes"


class Precision(FabricPrecision):
    """Fabric's precision plugin, with a precision that the screen switches between two steps.

    ``precision`` is what the loop starts in, as ``Fabric(precision=...)`` takes it: "32-true", "16-mixed" or
    "bf16-mixed". ``amp`` is what AMP means: by default that of ``precision``, else ``fp16`` on a GPU and
    ``bf16`` on a CPU. ``fp8_recipe``, ``scaler``, ``samples_per_step`` and ``save`` are as in
    :func:`amptui.watch`.

    All optimizers that make steps are watched, from the first one's first step on. Several processes are only
    observed, on rank 0. Raises ValueError for another precision, ``amp`` or ``fp8_recipe``.
    """

    def __init__(
        self,
        precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true",
        *,
        amp: AmpName | None = None,
        fp8_recipe: Fp8Recipe | None = None,
        scaler: torch.amp.GradScaler | None = None,
        samples_per_step: int | None = None,
        save: Callable[[], object] | None = None,
    ) -> None:
        if precision not in OWN_NAMES:
            raise ValueError(f"precision must be one of {', '.join(OWN_NAMES)}, not {precision!r}")
        self._first = OWN_NAMES[precision]
        self._amp_precision = checked_amp(amp)
        check_fp8_recipe(fp8_recipe)
        self._fp8_recipe = fp8_recipe
        self._like = scaler
        self._samples_per_step = samples_per_step
        self._save = save
        self._modules: list[nn.Module] = []
        self._amp: SwitchedAmp | None = None
        self._theirs: Mapping[str, FabricPrecision] = {}
        self.monitor = FabricMonitor()
        """For ``should_stop``, ``log()``, ``epochs()``, ``steps()`` and ``validation()`` in the loop."""

    @property
    def precision(self) -> str:
        """The current precision as ``Fabric(precision=...)`` takes it."""
        return LIGHTNING_NAMES[self._first if self._amp is None else self._amp.precision.name]

    # --------------------------------------------------------------------- what Fabric calls

    def convert_module(self, module: nn.Module) -> nn.Module:
        self._modules.append(module)
        return module

    def forward_context(self) -> AbstractContextManager[object]:
        self._begin_forward()
        return nullcontext() if not self._modules else self._switched().autocast()

    def convert_input(self, data: Any) -> Any:
        self._begin_forward()
        return self._current().convert_input(data)

    def convert_output(self, data: Any) -> Any:
        return self._current().convert_output(data)

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        self.monitor.begin_backward()
        super().backward(self._switched().scaler.scale(tensor), model, *args, **kwargs)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        self._switched().scaler.unscale_(optimizer)

    def optimizer_step(self, optimizer: Optimizer, **kwargs: Any) -> Any:
        scaler = self._switched().scaler
        closure = kwargs.get("closure")
        if closure is not None and not scaler.is_enabled():
            kwargs["closure"] = ClosureRunBefore(closure)
        if not self.monitor.is_open:
            self.monitor.open(partial(self._script, optimizer, has_closure=closure is not None))
        output = scaler.step(optimizer, **kwargs)
        scaler.update()
        return output

    def state_dict(self) -> dict[str, Any]:
        scaler = self._like if self._amp is None else self._amp.scaler
        return {} if scaler is None else scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._amp is None:  # no module yet: its device is not known
            self._like = torch.amp.GradScaler("cpu")
        scaler = self._like if self._amp is None else self._amp.scaler
        assert scaler is not None, "made above"
        scaler.load_state_dict(state_dict)

    # ------------------------------------------------------------------------------ our own

    def _switched(self) -> SwitchedAmp:
        """Autocast and scaler; Fabric moves the first module to its device before anything runs."""
        if self._amp is None:
            devices = (parameter.device for module in self._modules for parameter in module.parameters())
            device = next(devices, torch.device("cpu"))
            amp = self._amp = SwitchedAmp(device, self._like, fp8_recipe=self._fp8_recipe)
            amp.follow(amp.precisions[self._first])
            self._theirs = {
                "16-mixed": MixedPrecision("16-mixed", device.type, amp.scaler),
                "bf16-mixed": MixedPrecision("bf16-mixed", device.type),
            }
        return self._amp

    def _current(self) -> FabricPrecision:
        """Fabric's own plugin of the current precision, which converts inputs and outputs."""
        self._switched()
        return self._theirs.get(self.precision) or _FULL

    def _begin_forward(self) -> None:
        """Between two steps is where the next forward pass begins: all optimizers have stepped."""
        if torch.is_grad_enabled():
            self.monitor.end_step()

    def _script(self, optimizer: Optimizer, *, has_closure: bool) -> ObservedScript | WatchedScript | None:
        """What is trained, as the first step begins; None where another process shows it."""
        model, amp, loop = model_of(optimizer, self._modules), self._switched(), self.monitor.first_loop
        assert model is not None, "its first backward pass has run"
        processes = distributed.get_world_size() if _in_group() else 1
        if processes == 1:
            return lightning_script(
                model,
                optimizer,
                amp,
                amp_precision=self._amp_precision,
                has_closure=has_closure,
                samples_per_step=self._samples_per_step,
                save=self._save,
                no_closure=NO_CLOSURE,
                loop=loop,
            )
        self.monitor.may_stop = False
        if distributed.get_rank() > 0:
            return None
        return ObservedScript(
            first=NamedOptimizer("", model, optimizer),
            scaler=amp.scaler,
            samples_per_step=self._samples_per_step,
            reason=f"{processes} processes train together; this is rank 0",
            loop=loop,
        )


class FabricMonitor(FrameworkMonitor):
    """A run that begins with the first step, since Fabric tells its plugin no optimizer before."""

    def __init__(self) -> None:
        super().__init__(None)
        self.is_open = False
        """Whether the first step has begun."""
        self.first_loop: ObservedLoop | None = None
        """What sees the first step until the run begins."""
        self._early_batches: list[tuple[float, float, int]] = []

    @harmless_event
    def open(self, make_script: Callable[[], ObservedScript | WatchedScript | None]) -> None:
        """Begin to watch the script, with what is known of the first step; None watches nothing."""
        self.is_open = True
        script = make_script()
        if script is not None:
            self._open(script)
        elif self.first_loop is not None:
            self.first_loop.leave()
        if self._run is not None:
            self._tell_length()
            for batch in self._early_batches:
                self._run.loop.take_batch(*batch)
        self.first_loop, self._early_batches = None, []

    def begin_backward(self) -> None:
        """The first step is seen from its first backward pass on, before its optimizer is known."""
        if not self.is_open and self.first_loop is None:
            self.first_loop = ObservedLoop()
            self.first_loop.listen()

    def _take_batch(self, load_start: float, seconds: float, samples: int) -> None:
        if not self.is_open:
            self._early_batches.append((load_start, seconds, samples))
        super()._take_batch(load_start, seconds, samples)


def _in_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


_FULL = FabricPrecision()
