"""How the ranks of a script share its training, as its model says: which of them take samples of their own.

The wrappers say it exactly: DDP, FSDP and FSDP2 hold the group or the mesh over which they average gradients.
Parameters that are DTensors on further dimensions of a mesh are tensor-parallel: those ranks share their
samples. What is left of the ranks is told apart by the usual names of a mesh's dimensions.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amptui.guest.loop.parameter_owner import modules_around

_STAGES = ("pp", "pipe", "pipeline", "stage")
_SEQUENCE_PARTS = ("cp", "context", "ring", "ulysses")
_TENSOR = ("tp", "tensor")
_DATA = ("dp", "data", "ddp", "replicate", "fsdp", "shard")
"""How dimensions of a mesh are called whose ranks share their samples, as stages of a pipeline, parts of a
sequence or of tensors; and whose ranks take their own. A name counts to its underscore: ``dp_replicate``."""

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Classes of torch's; a model that ``fully_shard`` was given becomes one of the last."""

UNKNOWN = "neither the model nor its device mesh says which of the ranks take samples of their own"
_PIPELINE = "the stages of a pipeline share their samples, and the model does not say how many there are"


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How many of the ranks take samples of their own, and what the ranks do together."""

    data_parallel: int
    """0 where it is not known."""
    kinds: tuple[str, ...] = ()
    """``ddp``, ``fsdp``, ``fsdp2`` or ``hsdp``, then ``tp`` and ``pp``, as far as they apply."""
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
        modules = [m for m in around if any(base.__name__ in _WRAPPERS for base in type(m).__mro__)]
        wrapper = _wrapper(modules)
    meshes = sorted(_meshes(model), key=lambda mesh: -mesh.size())
    kind, data = wrapper.kind, wrapper.ranks
    covered = meshes[0].size() if meshes else 1
    if not kind and meshes:  # whoever distributed the parameters averages their gradients
        data = _product(_sizes(meshes[0]), _DATA)
    tensor = max(covered // data, 1) if wrapper.is_on_mesh or not kind else covered
    kinds = tuple(name for name in (kind, "tp" if tensor > 1 else "") if name)
    if not kinds:
        pipelines = "torch.distributed.pipelining" in sys.modules
        return ParallelLayout(0, (), _PIPELINE) if pipelines else ParallelLayout(world_size)
    other_ranks, odd = divmod(world_size, data * tensor)
    # DDP may have been given a mesh in place of a group.
    of_ddp = [getattr(m, "device_mesh", None) for m in modules if isinstance(m, DistributedDataParallel)]
    roots = [_root(mesh) for mesh in (*meshes, *of_ddp) if mesh is not None]
    whole = next((root for root in roots if root.size() == world_size and root.mesh_dim_names), None)
    sizes = {} if whole is None else _sizes(whole)
    sequence = _product(sizes, _SEQUENCE_PARTS)
    if odd or (sequence > 1 and other_ranks < sequence):  # FSDP may be over the parts of sequences too
        return ParallelLayout(0, kinds, UNKNOWN)
    if other_ranks == 1:
        return ParallelLayout(data, kinds)
    stages = _product(sizes, _STAGES)
    parts = _product(sizes, _TENSOR) if tensor == 1 else 1  # DDP's parameters are no DTensors any more
    replicas = 1 if kind else _product(sizes, _DATA) // data
    if other_ranks != stages * sequence * parts * replicas:
        return ParallelLayout(0, kinds, UNKNOWN)
    more = ("tp" if parts > 1 else "", "pp" if stages > 1 else "")
    return ParallelLayout(data * replicas, (*kinds, *filter(None, more)))


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
            wrappers += [_of_mesh(group.mesh_info) for group in _parameter_groups(get_state())]
    return max(wrappers, key=lambda wrapper: wrapper.ranks if wrapper.kind else 0)


def _parameter_groups(state: Any) -> Iterable[Any]:
    """FSDP2's; newer versions have several for a module."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        group = getattr(state, "_fsdp_param_group", None)
        groups = () if group is None else (group,)
    return tuple(groups)


def _of_mesh(info: Any) -> _Wrapper:
    shards = getattr(info, "shard_mesh_size", None)
    replicas = getattr(info, "replicate_mesh_size", None)
    kind = "ddp" if shards is None else "fsdp2" if replicas is None else "hsdp"
    return _Wrapper(kind, (shards or 1) * (replicas or 1), is_on_mesh=True)


def _meshes(model: nn.Module) -> Iterator[Any]:
    """Those that parameters lie on."""
    mesh_ids = set()
    for _, parameter in model.named_parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        if type(parameter).__name__ == "DTensor" and mesh is not None and id(mesh) not in mesh_ids:
            mesh_ids.add(id(mesh))
            yield mesh


def _sizes(mesh: Any) -> dict[str, int]:
    return {name: mesh.size(place) for place, name in enumerate(mesh.mesh_dim_names or ())}


def _root(mesh: Any) -> Any:
    own = getattr(mesh, "_get_root_mesh", None)  # a method of the mesh's in newer versions only
    if own is not None:
        return own()
    from torch.distributed import device_mesh

    return device_mesh._mesh_resources.get_root_mesh(mesh)


def _product(sizes: Mapping[str, int], names: tuple[str, ...]) -> int:
    return prod(size for name, size in sizes.items() if name.lower().partition("_")[0] in names)
