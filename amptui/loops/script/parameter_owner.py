"""Finds the module whose parameters an optimizer changes, where nobody says which one it is."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

from amptui.recipe.float8 import has_float8_layers

_WRAPPERS = (
    "torch.nn.parallel",
    "torch.distributed",
    "torch._dynamo",
    "lightning.fabric",
    "lightning_fabric",
)
"""Modules of these packages stand around a model of somebody's."""


class LooseParameters(nn.Module):
    """The parameters of an optimizer that no one module holds; none is registered here.

    ``has_float8_layers``: whether one of the modules that hold them is a float8 layer of torchao's.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        has_float8_layers: bool = False,
    ) -> None:
        super().__init__()
        self._named_tensors = tuple(parameters)
        self.has_float8_layers = has_float8_layers

    def named_parameters(self, *_: object, **__: object) -> Iterator[tuple[str, Parameter]]:
        yield from self._named_tensors  # type: ignore[misc]  # an optimizer takes any leaf tensor


@dataclass(frozen=True, slots=True)
class _Holder:
    """A module with some of the parameters, and all of its own by their names."""

    module: nn.Module
    tensors: dict[str, Tensor]
    optimized_ids: frozenset[int]
    """The ids of those that the optimizer changes."""
    size: int
    """Modules in it."""


def owner_of(optimizer: Optimizer) -> nn.Module:
    """The module whose parameters ``optimizer`` changes, found among the objects of this process.

    Of several it is the one with the fewest trainable parameters, of those the outermost, apart from wrappers
    such as DistributedDataParallel. If no module has all parameters, a stand-in that names each by the module
    that has it. Calls no code of theirs.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    parameter_ids = frozenset(id(p) for params in groups for p in params)
    around = modules_around(p for params in groups for p in params)
    modules = [module for module in around if not _is_wrapper(type(module))]
    holders = [_holder(module, parameter_ids) for module in modules]
    complete = [holder for holder in holders if holder.optimized_ids == parameter_ids]
    if complete:
        return min(complete, key=lambda holder: (_trainable(holder), -holder.size)).module
    names = {
        id(p): f"group {g}, parameter {n}" for g, params in enumerate(groups) for n, p in enumerate(params)
    }
    # The last to name a parameter has the most of them, and is the outermost.
    for holder in sorted(holders, key=lambda holder: (len(holder.optimized_ids), holder.size)):
        kind = type(holder.module).__name__
        names |= {id(p): f"{kind}.{name}" for name, p in holder.tensors.items() if id(p) in parameter_ids}
    has_float8 = any(has_float8_layers(holder.module) for holder in holders)
    parameters = ((names[id(p)], p) for params in groups for p in params)
    return LooseParameters(parameters, has_float8_layers=has_float8)


def modules_around(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """All modules of this process that hold any of ``parameters``, directly or in a part.

    Found from the inside out by what refers to what. A list of all objects of the process would hold those
    that another thread is building, a tuple among them: Python raises SystemError there.
    """
    modules_by_id: dict[int, nn.Module] = {}
    waiting = {id(p): p for p in parameters}
    while waiting:
        # One parameter leads to all modules around it, which often have the others.
        modules: list[nn.Module] = []
        level = _holders_of([waiting.popitem()[1]])
        while level := [module for module in level if id(module) not in modules_by_id]:
            modules_by_id |= {id(module): module for module in level}
            modules += level
            level = _holders_of(level)
        for module in modules:
            for _, part in _inside(module, "", set()):
                for _, p in _registered(part, "_parameters"):
                    waiting.pop(id(p), None)
    return list(modules_by_id.values())


def _holders_of(values: Sequence[Any]) -> list[nn.Module]:
    """The modules that have any of ``values`` registered as a parameter or a part."""
    tables = [table for table in gc.get_referrers(*values) if isinstance(table, dict)]
    around = gc.get_referrers(*tables) if tables else []
    dicts = [holder for holder in around if type(holder) is dict and "_parameters" in holder]
    if dicts:
        around += gc.get_referrers(*dicts)
    ids = {id(table) for table in tables}
    modules = {id(holder): holder for holder in around if nn.Module in type(holder).__mro__}
    names = ("_parameters", "_modules")
    around.clear()  # it is among what refers to its own items
    return [m for m in modules.values() if any(id(vars(m).get(name)) in ids for name in names)]


def optimizers_alive() -> list[Optimizer]:
    """Those of this process. Only types are looked at: a proxy may act."""
    kinds, waiting = {Optimizer}, [Optimizer]
    while waiting:
        below = [kind for kind in type.__subclasses__(waiting.pop()) if kind not in kinds]
        kinds.update(below)
        waiting += below
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds and "param_groups" in vars(one)]


def _is_wrapper(kind: type) -> bool:
    """Not so the class that FSDP2 makes of a model's own."""
    return kind.__module__.startswith(_WRAPPERS) and all(
        base.__name__ != "FSDPModule" for base in kind.__mro__
    )


def _holder(module: nn.Module, parameter_ids: frozenset[int]) -> _Holder:
    tensors: dict[str, Tensor] = {}
    modules = dict(_inside(module, "", set()))
    for prefix, submodule in modules.items():
        tensors |= {prefix + name: p for name, p in _registered(submodule, "_parameters") if p is not None}
    return _Holder(module, tensors, parameter_ids & {id(p) for p in tensors.values()}, len(modules))


def _inside(module: nn.Module, prefix: str, visited: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """The module and those in it, each once, without a call of methods that a class may have replaced."""
    if id(module) not in visited:
        visited.add(id(module))
        yield prefix, module
        for name, child in _registered(module, "_modules"):
            if child is not None:
                yield from _inside(child, f"{prefix}{name}.", visited)


def _registered(module: nn.Module, kind: str) -> Iterable[tuple[str, Any]]:
    return list(vars(module).get(kind, {}).items())


def _trainable(holder: _Holder) -> int:
    return sum(p.requires_grad for p in holder.tensors.values())


def kind_of(model: nn.Module) -> str:
    """What a screen calls a model that has no name."""
    return "several modules" if isinstance(model, LooseParameters) else type(model).__name__
