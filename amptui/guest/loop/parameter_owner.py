"""Finds the module whose parameters an optimizer changes, where nobody says which one it is."""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

_WRAPPERS = (
    "torch.nn.parallel",
    "torch.distributed",
    "torch._dynamo",
    "lightning.fabric",
    "lightning_fabric",
)
"""Modules of these packages stand around a model of somebody's."""


class LooseParameters(nn.Module):
    """The parameters of an optimizer that no one module holds; none is registered here."""

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._named = tuple(named)

    def named_parameters(self, *_: object, **__: object) -> Iterator[tuple[str, Parameter]]:
        yield from self._named  # type: ignore[misc]  # an optimizer takes any leaf tensor


@dataclass(frozen=True, slots=True)
class _Holder:
    """A module with some of the parameters, and all of its own by their names."""

    module: nn.Module
    named: dict[str, Tensor]
    held: frozenset[int]
    """The ids of those that the optimizer changes."""
    size: int
    """Modules in it."""


def owner_of(optimizer: Optimizer) -> nn.Module:
    """The module whose parameters ``optimizer`` changes, found among the objects of this process.

    Of several it is the one with the fewest trainable parameters, of those the outermost, apart from wrappers
    such as DistributedDataParallel. If no module has all parameters, a stand-in that names each by the module
    that has it. Takes a tenth of a second for a million objects and calls no code of theirs.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    wanted = frozenset(id(p) for params in groups for p in params)
    holders = [holder for module in _modules() if (holder := _holder(module, wanted)).held]
    complete = [holder for holder in holders if holder.held == wanted]
    if complete:
        return min(complete, key=lambda holder: (_trainable(holder), -holder.size)).module
    names = {
        id(p): f"group {g}, parameter {n}" for g, params in enumerate(groups) for n, p in enumerate(params)
    }
    # The last to name a parameter has the most of them, and is the outermost.
    for holder in sorted(holders, key=lambda holder: (len(holder.held), holder.size)):
        kind = type(holder.module).__name__
        names |= {id(p): f"{kind}.{name}" for name, p in holder.named.items() if id(p) in wanted}
    return LooseParameters((names[id(p)], p) for params in groups for p in params)


def _modules() -> list[nn.Module]:
    """Those that the garbage collector knows. Only types are looked at: a proxy may act when asked."""
    is_module: dict[type, bool] = {}
    found = []
    for each in gc.get_objects():
        kind = type(each)
        if kind not in is_module:
            is_module[kind] = nn.Module in kind.__mro__ and not _is_wrapper(kind)
        if is_module[kind] and "_parameters" in vars(each):
            found.append(each)
    return found


def _is_wrapper(kind: type) -> bool:
    """Not so the class that FSDP2 makes of a model's own."""
    return kind.__module__.startswith(_WRAPPERS) and all(
        base.__name__ != "FSDPModule" for base in kind.__mro__
    )


def _holder(module: nn.Module, wanted: frozenset[int]) -> _Holder:
    named: dict[str, Tensor] = {}
    inside = dict(_inside(module, "", set()))
    for prefix, each in inside.items():
        named |= {prefix + name: p for name, p in _registered(each, "_parameters") if p is not None}
    return _Holder(module, named, wanted & {id(p) for p in named.values()}, len(inside))


def _inside(module: nn.Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """The module and those in it, each once, without a call of methods that a class may have replaced."""
    if id(module) not in seen:
        seen.add(id(module))
        yield prefix, module
        for name, child in _registered(module, "_modules"):
            if child is not None:
                yield from _inside(child, f"{prefix}{name}.", seen)


def _registered(module: nn.Module, kind: str) -> Iterable[tuple[str, Any]]:
    return list(vars(module).get(kind, {}).items())


def _trainable(holder: _Holder) -> int:
    return sum(p.requires_grad for p in holder.named.values())


def kind_of(model: nn.Module) -> str:
    """What a screen calls a model that has no name."""
    return "several modules" if isinstance(model, LooseParameters) else type(model).__name__
