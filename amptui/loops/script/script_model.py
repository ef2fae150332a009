"""The model of a script, where nobody says which one it is, and how the ranks share its training.

The module whose parameters an optimizer changes is found among the objects of the process.

Which ranks take samples of their own, the wrappers say exactly: DDP, FSDP and FSDP2 hold the group or the
mesh over which they average gradients. Parameters that are DTensors on further dimensions of a mesh are
tensor-parallel: those ranks share their samples. What else ranks may share, as stages of a pipeline or parts
of a sequence, only the script knows.
"""

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
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


class _Holder:
    """A module with some of the parameters that an optimizer changes, and all of its own by their names."""

    def __init__(self, module: nn.Module, parameter_ids: frozenset[int]) -> None:
        parts = dict(_inside(module, "", set()))
        named = ((at + name, p) for at, part in parts.items() for name, p in _registered(part, "_parameters"))
        self.module, self.size = module, len(parts)
        self.tensors: dict[str, Tensor] = {name: p for name, p in named if p is not None}
        self.optimized_ids = parameter_ids & {id(p) for p in self.tensors.values()}
        self.trainable = sum(p.requires_grad for p in self.tensors.values())


def owner_of(optimizer: Optimizer) -> nn.Module:
    """The module whose parameters ``optimizer`` changes, found among the objects of this process.

    Of several it is the one with the fewest trainable parameters, of those the outermost, apart from wrappers
    such as DistributedDataParallel. If no module has all parameters, a stand-in that names each by the module
    that has it. Calls no code of theirs.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    parameter_ids = frozenset(id(p) for params in groups for p in params)
    around = modules_around(p for params in groups for p in params)
    holders = [_Holder(module, parameter_ids) for module in around if not _is_wrapper(type(module))]
    complete = [holder for holder in holders if holder.optimized_ids == parameter_ids]
    if complete:
        return min(complete, key=lambda holder: (holder.trainable, -holder.size)).module
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


def kind_of(model: nn.Module) -> str:
    """What a screen calls a model that has no name."""
    return "several modules" if isinstance(model, LooseParameters) else type(model).__name__


_AVERAGING = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Classes of torch's; a model that ``fully_shard`` was given becomes one of the last."""

UNKNOWN = "the model does not say which of the ranks take samples of their own"


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How many of the ranks take samples of their own, and what the ranks do together."""

    data_parallel: int
    """0 where it is not known."""
    kinds: tuple[str, ...] = ()
    """``ddp``, ``fsdp``, ``fsdp2`` or ``hsdp``, then ``tp``, as far as they apply."""
    unknown: str = ""
    """Why it is not known."""


def layout_of(model: nn.Module, world_size: int) -> ParallelLayout:
    """How ``world_size`` ranks train ``model``, after it was wrapped.

    A model that says nothing counts as a replica on each rank, unless pipelines were imported.
    """
    modules = list(model.modules())
    wrapper = _wrapper(modules)
    if not wrapper.kind:  # a script, or who searches it, may name what is inside
        around = modules_around(parameter for _, parameter in model.named_parameters())
        modules = [m for m in around if any(base.__name__ in _AVERAGING for base in type(m).__mro__)]
        wrapper = _wrapper(modules)
    parameters: list[Any] = [p for _, p in model.named_parameters() if type(p).__name__ == "DTensor"]
    meshes_by_id = {id(p.device_mesh): p.device_mesh for p in parameters if p.device_mesh is not None}
    meshes = sorted(meshes_by_id.values(), key=lambda mesh: -mesh.size())
    data, covered = wrapper.ranks, meshes[0].size() if meshes else 1
    tensor = max(covered // data, 1) if wrapper.is_on_mesh else covered
    kinds = tuple(name for name in (wrapper.kind, "tp" if tensor > 1 else "") if name)
    if not kinds:
        pipelines = "torch.distributed.pipelining" in sys.modules
        return ParallelLayout(0, (), UNKNOWN) if pipelines else ParallelLayout(world_size)
    of_ddp = [getattr(m, "device_mesh", None) for m in modules if isinstance(m, DistributedDataParallel)]
    # A mesh may be of several dimensions in one; without a wrapper one of them may be of replicas.
    is_plain = all(_root(mesh).ndim == mesh.ndim for mesh in (*meshes[:1], *of_ddp) if mesh is not None)
    if not is_plain or (not wrapper.kind and meshes[0].ndim > 1) or data * tensor != world_size:
        return ParallelLayout(0, kinds, UNKNOWN)
    return ParallelLayout(data, kinds)


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """What averages gradients over so many ranks; ``is_on_mesh``: parameters are DTensors on their mesh."""

    kind: str = ""
    ranks: int = 1
    is_on_mesh: bool = False


def _wrapper(modules: Iterable[nn.Module]) -> _Wrapper:
    """Of several the one over most ranks: experts, say, have fewer replicas than the rest."""
    wrappers = [_Wrapper()]
    for module in modules:
        if isinstance(module, DistributedDataParallel):
            wrappers.append(_Wrapper("ddp", module.process_group.size()))
        elif type(module).__name__ == "FullyShardedDataParallel":
            fsdp: Any = module
            ranks: int = fsdp.process_group.size()
            nodes: Any = getattr(fsdp, "_inter_node_pg", None)  # HYBRID_SHARD's second group
            hybrid = None if nodes is None else _Wrapper("hsdp", ranks * nodes.size())
            wrappers.append(hybrid or _Wrapper("fsdp", ranks))
        elif (get_state := getattr(module, "_get_fsdp_state", None)) is not None:
            state = get_state()  # FSDP2's; newer versions have several groups for a module
            groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
            for info in [group.mesh_info for group in groups if group is not None]:
                shards = getattr(info, "shard_mesh_size", None)
                replicas = getattr(info, "replicate_mesh_size", None)
                kind = "ddp" if shards is None else "fsdp2" if replicas is None else "hsdp"
                wrappers.append(_Wrapper(kind, (shards or 1) * (replicas or 1), is_on_mesh=True))
    return max(wrappers, key=lambda wrapper: wrapper.ranks if wrapper.kind else 0)


def _root(mesh: Any) -> Any:
    own = getattr(mesh, "_get_root_mesh", None)  # a method of the mesh's in newer versions only
    if own is not None:
        return own()
    from torch.distributed import device_mesh

    return device_mesh._mesh_resources.get_root_mesh(mesh)
