"""The models and optimizers that a script names to ``observe()`` and ``watch()``, checked."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

_REFERENCES = 2
"""To an optimizer that only its NamedOptimizer holds, while they are counted."""

Pairs = Mapping[str, tuple[nn.Module, Optimizer]]
"""Models with their optimizers, by names for the screen."""


@dataclass(slots=True, eq=False)
class NamedOptimizer:
    """An optimizer, the model whose parameters it changes, and what a screen calls it.

    Nothing else of ours keeps the two alive; others may come in their place.
    """

    name: str
    model: nn.Module
    optimizer: Optimizer

    @property
    def is_dropped(self) -> bool:
        """Whether the script has dropped the optimizer: only this object refers to it."""
        return sys.getrefcount(self.optimizer) <= _REFERENCES


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
