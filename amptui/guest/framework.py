"""The one base of the monitors of Accelerate, Fabric, Hugging Face and Lightning.

It decides in which precision a framework's loop starts and why it may only be observed, opens the run, and
takes the events. A framework's own file says what it calls these things.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.device.accelerator import TRAINABLE
from amptui.guest.amp_monitor import AmpName, checked_amp, must_have_closure
from amptui.guest.monitor import Monitor, samples_of
from amptui.guest.run import tell_fault
from amptui.loops.script.guard import harmless
from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.script import ObservedScript, SwitchedAmp, WatchedScript
from amptui.loops.script.switched_optimizer import SwitchedOptimizer
from amptui.recipe.precision import amp_of, unsupported_precisions
from amptui.recipe.trained import NamedOptimizer

FirstPrecision = Literal[AmpName, "fp32", "float32", "ieee", "tf32"]
"""What a framework's loop may begin in; the screen switches it to any."""

OWN_NAMES = {"32-true": "fp32", "16-mixed": "fp16", "bf16-mixed": "bf16"}
"""What amptui calls those of Lightning's precisions that it can switch."""

LIGHTNING_NAMES = {
    **{own: lightning for lightning, own in OWN_NAMES.items()},
    **dict.fromkeys(("ieee", "tf32"), "32-true"),
    "fp8": "bf16-mixed",
}
"""What Lightning calls each precision: FP8 as what it is but for the Linear layers."""


class FrameworkMonitor(Monitor):
    """A run of a framework's loop, which tells us where its steps end."""

    framework = ""
    """What has no function for an X-ray, as the screen says."""
    active = True
    """False once an error of amptui's own has ended the watching."""
    must_not_look = False
    amp: SwitchedAmp
    """Autocast and scaler, where the loop has amptui's."""

    def __init__(self, *, amp: str | None, samples_per_step: int | None = None) -> None:
        super().__init__(None)
        self._asked_amp = checked_amp(amp)
        self._samples_per_step = samples_per_step
        self.has_amp = False
        """Whether autocast and scaler of the loop are amptui's."""
        self.first_precision = "fp32"
        self.usual_amp: str | None = None
        """What AMP means unless it was asked for another; None: what the device is best at."""
        self.unsupported: dict[str, str] = {}
        """The precisions that cannot be switched to, each with the reason."""
        self.why_observed = ""
        """Why amptui does not switch the precision; empty if it does."""
        self.may_stop = True
        """Whether to end the loop when a screen asks for it: of several processes all would have to."""
        self._replaced: list[tuple[Any, str]] = []

    # ------------------------------------------------------------------------- the precision

    @property
    def precision(self) -> str:
        """The precision of the next step."""
        return self.amp.precision.name if self.has_amp else self.first_precision

    def decide(self, device: torch.device, *, processes: int, why_observed: str = "") -> None:
        """Whether the precision can be switched; ``why_observed``: what else is against it."""
        self.may_stop = processes == 1
        if processes > 1:
            why_observed = f"{processes} processes train together; this is rank 0"
        elif device.type not in TRAINABLE:
            why_observed = f"amptui switches no precision on the device {device.type}"
        self.why_observed = why_observed

    def take_over(self, device: torch.device, scaler: GradScaler | None) -> SwitchedAmp:
        """Begin in the first precision, with a scaler that starts as the framework's own.

        Raises ValueError if that one is disabled.
        """
        self.amp = amp = SwitchedAmp(device, scaler)
        amp.begin(self.first_precision)
        self.has_amp = True
        return amp

    def amp_precision(self, device: torch.device) -> str:
        """What AMP means. Raises ValueError if the loop starts in another AMP than was asked for."""
        return amp_of(device, self.first_precision, self._asked_amp, self.usual_amp)

    # ------------------------------------------------------------------------------- the run

    @harmless
    def open(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scaler: GradScaler | None = None,
        has_closure: bool = False,
        save: Callable[[], object] | None = None,
        ends_steps: bool = True,
        loop: ObservedLoop | None = None,
    ) -> None:
        """Watch the steps of ``optimizer``; ``scaler``: the framework's own, for what is only observed.

        ``has_closure``: whether ``optimizer.step`` gets one that it may run again. The others are fields of
        :class:`WatchedScript`.
        """
        first, samples = NamedOptimizer("", model, optimizer), self._samples_per_step
        script: ObservedScript | WatchedScript
        if self.why_observed:
            reason = f"only observed: {self.why_observed}"
            script = ObservedScript(
                first=first, samples_per_step=samples, loop=loop, scaler=scaler, reason=reason
            )
        else:
            amp = self.amp
            self.unsupported = amp.take_layers({"": model}, unsupported_precisions(amp.device))
            if has_closure or must_have_closure(optimizer):
                kind = type(optimizer).__name__
                self.unsupported["fp16"] = f"{kind} runs its closure again, which no scaler allows"
            self.unsupported.pop(amp.precision.name, None)  # it is the script's own choice
            script = WatchedScript(
                first=first,
                samples_per_step=samples,
                loop=loop,
                amp=amp,
                amp_precision=self.amp_precision(amp.device),
                unsupported=self.unsupported,
                save=save,
                ends_steps=ends_steps,
                no_closure=f"it runs the forward pass again, for which {self.framework} has no function",
            )
        self._open(script)
        if self._run is not None and isinstance(script, ObservedScript):
            self._run.note("info", script.reason)

    def begin(self, *, step: int, epoch: int, **length: int | None) -> None:
        """Say how long the training is, as fields of its length, and how many steps were made before."""
        if (run := self._run) is None:
            return
        run.stops_when_asked = self.may_stop
        for name, number in length.items():
            setattr(self._length, name, number)
        if run.first.step == 0:  # else it trains again
            run.first.step, run.first.epoch = step, epoch

    def give_up(self, error: Exception) -> None:
        """Watch nothing more, by a fault of amptui's own, which is told once."""
        self.active = False
        if self._run is None:
            tell_fault("cannot watch this training, which goes on", error)
        elif self._run.loop.active:
            self._run.loop.give_up(error)

    # ---------------------------------------------------------------- what the framework tells

    @property
    def should_stop(self) -> bool:
        return self.may_stop and super().should_stop

    @harmless
    def take_batches(self, load_start: float, seconds: float, batches: Iterable[object]) -> None:
        """The next batches were loaded, from ``load_start`` by ``perf_counter``."""
        self._take_batch(load_start, seconds, sum(map(samples_of, batches)))

    def end_step(self) -> None:
        """Handle the requests, if a step has ended since the last call."""
        if self._run is not None and isinstance(self._run.first, SwitchedOptimizer):
            self._run.first.end_step()

    @harmless
    def finish_epoch(self) -> None:
        """Report the epoch, once its last steps are delivered."""
        if self._run is not None:
            self._run.loop.finish_epoch()

    def finish_validation(self, results: Mapping[str, Tensor | float]) -> None:
        """Show the ``results`` of a validation."""
        if self._run is not None:
            Monitor.log(self, **results)  # Lightning's callbacks get a log() of their modules'
            self._run.first.finish_validation()

    # ------------------------------------------------------------------- the framework's methods

    def replace(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Let ``around``, which gets the method of that name first, do what the method does.

        Some are private: where a version has none, there is nothing to replace.
        """
        if (method := getattr(owner, name, None)) is not None:
            setattr(owner, name, functools.wraps(method)(functools.partial(around, method)))
            self._replaced.append((owner, name))

    def restore(self) -> None:
        """Take off what :meth:`replace` has put in front of methods."""
        while self._replaced:
            owner, name = self._replaced.pop()
            vars(owner).pop(name, None)


def model_of(optimizer: Optimizer, models: Iterable[nn.Module]) -> nn.Module | None:
    """The first of ``models`` with a parameter that ``optimizer`` changes."""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return next((model for model in models if any(id(p) in own for p in model.parameters())), None)


def closure_run_before(closure: Callable[[], Any]) -> Callable[[], Any]:
    """Run ``closure`` now; the first call returns that result, later ones run it again, as LBFGS does."""
    results = [closure()]
    return lambda: results.pop() if results else closure()
