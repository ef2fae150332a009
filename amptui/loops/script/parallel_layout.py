"""How the ranks of a script share its training, as far as its model says which take samples of their own.

The wrappers say it exactly: DDP, FSDP and FSDP2 hold the group or the mesh over which they average gradients.
Parameters that are DTensors on further dimensions of a mesh are tensor-parallel: those ranks share their
samples. What else ranks may share, as stages of a pipeline or parts of a sequence, only the script knows.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amptui.loops.script.parameter_owner import modules_around

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
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
        modules = [m for m in around if any(base.__name__ in _WRAPPERS for base in type(m).__mro__)]
        wrapper = _wrapper(modules)
    meshes = sorted(_meshes(model), key=lambda mesh: -mesh.size())
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


def _root(mesh: Any) -> Any:
    own = getattr(mesh, "_get_root_mesh", None)  # a method of the mesh's in newer versions only
    if own is not None:
        return own()
    from torch.distributed import device_mesh

    return device_mesh._mesh_resources.get_root_mesh(mesh)
