"""What of a script is watched: its models, optimizers and scaler, and what may be asked of its loop."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.switched_amp import SwitchedAmp
from amptui.recipe.experiment import Experiment
from amptui.recipe.precision import amp_of
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script:
    """What a script trains."""

    first: NamedOptimizer
    """The most important optimizer, with its model."""
    others: tuple[NamedOptimizer, ...] = ()
    samples_per_step: int | None = None
    data_parallel: int | None = None
    """How many ranks take samples of their own; None: as the model says."""
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
