"""What of a script is watched: its models, optimizers and scaler, and what may be asked of its loop.

Where amptui switches the precision, autocast, scaler and float8 layers of the script follow it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.loops.script.observed_loop import ObservedLoop
from amptui.recipe.experiment import Experiment
from amptui.recipe.float8 import Float8Linears, float8_linears
from amptui.recipe.precision import Precision, amp_of, build_precisions
from amptui.recipe.sharding import is_sharded
from amptui.recipe.trained import NamedOptimizer, Trained
from amptui.records.answers import REQUEST_KINDS
from amptui.records.run import PRECISIONS

ONLY_OBSERVED = "this run is only observed"
"""Why a request is refused: the script's own loop decides everything."""

NO_CLOSURE = "it runs the forward pass again: train with monitor.train_step()"

NO_SAVE = "the script saves its own state: pass save=... to amptui.watch()"


Pairs = Mapping[str, tuple[nn.Module, Optimizer]]
"""Models with their optimizers, by names for the screen."""


def named_optimizers(model: nn.Module | Pairs, optimizer: Optimizer | None) -> tuple[NamedOptimizer, ...]:
    """The one model and its optimizer, without a name; or all of a mapping, in its order.

    Raises TypeError for anything else, ValueError for a mapping that is empty or names an optimizer twice.
    """
    if not isinstance(model, Mapping):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        return (NamedOptimizer("", model, optimizer),)
    if optimizer is not None:
        raise TypeError("optimizer must be left out where model is a mapping of (model, optimizer) pairs")
    if not model:
        raise ValueError("model is an empty mapping: name at least one (model, optimizer) pair")
    pairs = tuple(_checked_pair(name, pair) for name, pair in model.items())
    if len({id(pair.optimizer) for pair in pairs}) < len(pairs):
        raise ValueError("the same optimizer stands under two names")
    return pairs


def models_of(pairs: Iterable[NamedOptimizer]) -> dict[str, nn.Module]:
    """The models by the names of their optimizers; the only one has none."""
    return {pair.name: pair.model for pair in pairs}


def _checked_pair(name: object, pair: object) -> NamedOptimizer:
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"the name of a (model, optimizer) pair must be a text, not {name!r}")
    if isinstance(pair, tuple | list) and len(pair) == 2:
        model, optimizer = pair
        if isinstance(model, nn.Module) and isinstance(optimizer, Optimizer):
            return NamedOptimizer(name, model, optimizer)
    raise TypeError(f"{name!r} must have a pair: a torch.nn.Module and its torch.optim.Optimizer")


AUTOCAST_DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
}


class SwitchedScaler(GradScaler):
    """A GradScaler that passes losses and steps through while the precision has no loss scale.

    Its scale and its counter survive meanwhile, and :meth:`state_dict` always returns them.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._can_scale = self._enabled

    def follow(self, precision: Precision) -> None:
        """Pass losses and steps through unless the precision has a loss scale."""
        # GradScaler asks for this attribute of its own in each of its methods, several times a step.
        self._enabled = self._can_scale and precision.scales

    def update(self, new_scale: Any = None) -> None:
        """As in ``GradScaler``; does nothing if the precision changed since the optimizer's step."""
        if new_scale is None and self._enabled and not self._per_optimizer_states:
            return
        super().update(new_scale)

    def state_dict(self) -> dict[str, Any]:
        with self._complete():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        with self._complete():
            super().load_state_dict(state_dict)

    @contextmanager
    def _complete(self) -> Iterator[None]:
        """Within, it has its state in every precision."""
        before, self._enabled = self._enabled, self._can_scale
        try:
            yield
        finally:
            self._enabled = before


class SwitchedAmp:
    """The autocast, the scaler and the float8 layers of a loop whose precision changes between two steps.

    ``like`` is a scaler whose scale and settings the loop's own scaler starts with. Raises ValueError if that
    one is disabled.
    """

    def __init__(self, device: torch.device, like: GradScaler | None = None) -> None:
        self.device = device
        self.scaler = SwitchedScaler(device.type)
        if like is not None:
            if not like.is_enabled():
                raise ValueError("the scaler is disabled; leave it out: amptui scales the loss in fp16 only")
            self.scaler.load_state_dict(like.state_dict())
        self.precisions = build_precisions(device, self.scaler)
        self._autocasts: dict[tuple[str, bool], torch.autocast] = {}
        """Of each precision, with and without a cache; never entered: an entered one is not reentrant."""
        self.linears: Float8Linears | None = None
        """The layers that can multiply in float8, if there are any."""
        self.follow(self.precisions["fp32"])

    def take_layers(self, models: Mapping[str, nn.Module], unsupported: Mapping[str, str]) -> dict[str, str]:
        """Let the Linear layers of ``models`` multiply in float8 in FP8.

        Returns ``unsupported`` with why they cannot, if so.
        """
        if self.linears is not None:
            self.linears.become(on=False)
        self.linears, unsupported = float8_linears(models, unsupported)
        for precision in self.precisions.values():
            precision.linears = self.linears
        return unsupported

    def begin(self, precision: str) -> str:
        """Run the script's first steps in ``precision``; return why that cannot be, if so."""
        why = self.precisions[precision].reason_not_to_enter()
        if not why:
            self.follow(self.precisions[precision])
            self.precision.enter()
        return why

    def leave_float8(self) -> None:
        """Give the script its own layers back; what it trains from here on in FP8 is in bfloat16."""
        if self.linears is not None:
            self.linears.become(on=False)
        if self.precision.float8:
            self.follow(self.precisions["bf16"])

    def follow(self, precision: Precision) -> None:
        """Run the steps from here on in ``precision``."""
        self.precision = precision
        self.scaler.follow(precision)

    def autocast(self, *, cache_enabled: bool = True) -> torch.autocast:
        """The context for a forward pass and its loss, in the current precision.

        ``cache_enabled``: torch.autocast's; a weight that is used twice gets other gradient bits without it.
        """
        if torch.compiler.is_compiling():
            return self._new_autocast(cache_enabled=cache_enabled)
        # A copy: the constructor asks the device each time what it supports.
        key = self.precision.name, cache_enabled
        template = self._autocasts.get(key)
        if template is None:
            template = self._autocasts[key] = self._new_autocast(cache_enabled=cache_enabled)
        context = object.__new__(torch.autocast)
        context.__dict__.update(template.__dict__)
        if not template._enabled:
            context.fast_dtype = torch.get_autocast_dtype(context.device)  # which it leaves as it is
        return context

    def _new_autocast(self, *, cache_enabled: bool) -> torch.autocast:
        dtype = AUTOCAST_DTYPES.get(self.precision.name)
        return torch.autocast(
            self.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=cache_enabled
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script:
    """What a script trains."""

    first: NamedOptimizer
    """The most important optimizer, with its model."""
    others: tuple[NamedOptimizer, ...] = ()
    samples_per_step: int | None = None
    loop: ObservedLoop | None = None
    """What has seen the first step so far, if the run begins with it."""

    @property
    def model(self) -> nn.Module:
        """The one that is trained."""
        return self.first.model

    @property
    def optimizer(self) -> Optimizer:
        """The one that trains it now."""
        return self.first.optimizer

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """All that the script has named, or what came in their places."""
        return models_of((self.first, *self.others))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedScript(Script):
    """A script whose loop keeps its own autocast and scaler."""

    scaler: GradScaler | None = None
    reason: str = ONLY_OBSERVED
    """Why requests are refused."""

    @property
    def amp_precision(self) -> str:
        """What AMP would be here."""
        scales = self.scaler is not None and self.scaler.is_enabled()
        devices = {parameter.device for parameter in self.model.parameters() if not parameter.is_meta}
        return "fp16" if scales or "fp16" in map(amp_of, devices) else "bf16"

    def refuses(self) -> Mapping[str, str]:
        """The requests that its run never takes, each with the reason."""
        return dict.fromkeys(REQUEST_KINDS - {"stop"}, self.reason)

    def not_switchable(self, precision: str) -> Mapping[str, str]:
        """The precisions that cannot be switched to from ``precision``, each with the reason."""
        return {name: self.reason for name in PRECISIONS if name != precision}


class _ForwardPasses(Experiment):
    """The script's forward passes as probes call them: a batch is a function that returns its loss."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ARG002 - the function knows its model
        loss: Tensor = batch()
        return loss


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WatchedScript(Script):
    """A script whose precision amptui switches."""

    amp: SwitchedAmp
    amp_precision: str
    """What AMP means in it."""
    unsupported: Mapping[str, str]
    """The precisions that its device or its optimizer does not support, each with the reason."""
    save: Callable[[], object] | None = None
    """The script's own function that writes what it resumes from; may return its path."""
    ends_steps: bool = False
    """Whether the loop calls :meth:`SwitchedOptimizer.end_step` where its own count of a step is complete."""
    no_closure: str = NO_CLOSURE
    """Why nothing can run a forward pass again, unless the steps are functions."""

    @property
    def scaler(self) -> GradScaler:
        """The one that follows the precision."""
        return self.amp.scaler

    @property
    def trained(self) -> Trained:
        """What its first optimizer trains."""
        return Trained(
            first=self.first,
            device=self.amp.device,
            experiment=_ForwardPasses(),
            precisions=self.amp.precisions,
            precision=self.amp.precision.name,
            amp_precision=self.amp_precision,
            unsupported=self.unsupported,
            probes=not is_sharded(self.model),
        )

    def refuses(self) -> Mapping[str, str]:
        """The requests that its run never takes, each with the reason."""
        refusals = {} if self.save is not None else {"checkpoint": NO_SAVE}
        if self.no_closure != NO_CLOSURE:  # a framework's loop never has functions
            refusals["x-ray"] = self.no_closure
        return refusals

    def not_switchable(self, _precision: str) -> Mapping[str, str]:
        """The precisions that cannot be switched to, each with the reason."""
        return self.unsupported
