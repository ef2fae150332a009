"""FSDP2 around an experiment's loss: weights, gradients and optimizer states are divided among all ranks."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from amptui.base.errors import ExperimentError
from amptui.checkpoint.file import whole_room
from amptui.checkpoint.states import Keys, NotPlainError, Part, replaced
from amptui.data.batches import Batch
from amptui.device.accelerator import capabilities
from amptui.probes.gradients import GradientProbe
from amptui.ranks.group import RankGroup
from amptui.ranks.parallel.data_parallel import DataParallel, LossRoot
from amptui.recipe.experiment import Experiment
from amptui.recipe.sharding import local_part

T = TypeVar("T")


_ALL_GATHER_NAMES = ("all_gather_single", "all_gather_into_tensor")
"""One collective: torch 2.14 introduced the first name and warns of the second, which is all that 2.9 has."""


class ShardedDataParallel(DataParallel):
    """The loss of this rank's share of a global batch, of a model of which each rank keeps a part.

    The model's blocks (:func:`blocks_of`) are gathered one by one as they run, and all other parameters once
    for a whole forward pass, so that ``loss()`` may use them in any way. The optimizer is built after the
    constructor, over this rank's parts. ``keeps_weights``: whether rank 0 takes the whole model at the end.
    """

    kind = "fsdp2"

    sharded = needs_others = True

    def __init__(
        self, group: RankGroup, experiment: Experiment, model: nn.Module, *, keeps_weights: bool = False
    ) -> None:
        super().__init__(group, experiment, model)
        self._keeps_weights = keeps_weights
        group.meet("weights")
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        group.check_equal({"parameters": sum(p.numel() for p in model.parameters()), "tensors": len(names)})
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                torch.distributed.broadcast(tensor, src=0)
        self._root = LossRoot(model, [group.world.size])
        try:
            self._sharded = shard(self._root, group.world.size)
        except (ValueError, NotImplementedError) as error:
            what = f"FSDP cannot shard this model: {' '.join(str(error).split())[:300]}"
            raise ExperimentError(what, hint="train without --fsdp") from error
        self._mean = self._root.loss.mean  # its part: while weights are gathered, the module has another

    def _run(self, batch: Batch, *, first: bool, last: bool) -> object:  # noqa: ARG002 - nothing is timed
        self._sharded.set_requires_gradient_sync(last)
        return self._root(partial(self._unsharded_loss, batch))

    def _unsharded_loss(self, batch: Batch) -> object:
        result = self._loss(batch)
        if isinstance(result.get("loss") if isinstance(result, dict) else result, DTensor):
            what = "loss() used the weights of a block outside its forward()"
            raise ExperimentError(what, hint="call the block itself, or train without --fsdp")
        return result

    def evaluate(self, compute: Callable[[], T]) -> T:
        result: T = self._root(compute)
        return result

    def _mean_gradient(self) -> Tensor | None:
        if (gradient := super()._mean_gradient()) is None:
            return None
        with torch.no_grad():
            return local_part(gradient).reshape(())

    def gradients(self, model: nn.Module) -> GradientProbe:
        return ShardedGradients(model, self.ranks)

    def states(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any], list[Part]]:
        parts: list[Part] = []
        model = self._model.state_dict()
        states = {"model": model, "optimizer": optimizer.state_dict()}
        split = replaced(states, partial(_take_part, parts))
        model.update(split["model"])  # it keeps its versions
        return model, split["optimizer"], parts

    def room(self, optimizer: Optimizer) -> Callable[[Keys, Tensor], Tensor]:
        like: dict[object, object] = dict(enumerate(_parameters(optimizer)))
        like.update(self._model.state_dict())
        return partial(_room, like)

    def load_states(self, model: dict[str, Any], state: dict[str, Any], optimizer: Optimizer) -> None:
        like, parameters = self._model.state_dict(), _parameters(optimizer)
        divided = copy(model)  # it keeps its versions
        divided.update({name: _part(value, like.get(name)) for name, value in model.items()})
        states = {
            number: {name: _part(value, parameters[number]) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        super().load_states(divided, {**state, "state": states}, optimizer)

    @torch.no_grad()
    def leave(self) -> None:
        if self._keeps_weights:
            state = copy(self._model.state_dict())
            for name, tensor in state.items():
                if isinstance(tensor, DTensor):
                    whole = tensor.full_tensor()  # one after the other, on all ranks
                    state[name] = whole.cpu() if self.leads else None
            self.state = state
        self._group.leave()

    def _average(self) -> None:
        """Sharded gradients are averaged already."""


class ShardedGradients(GradientProbe):
    """Rows and norms of the global gradient, the same on all ``ranks``; no host waits for a GPU.

    A rank that cannot measure its part, for lack of memory say, raises the error after it has told the
    others, whose results are then negative. Each method is a collective operation: all ranks call it in the
    same steps. None gathers a whole gradient.
    """

    together = True

    def __init__(self, model: nn.Module, ranks: int) -> None:
        super().__init__(model)
        self._ranks = ranks
        self._device = next((p.device for p in self.parameters), torch.device("cpu"))

    @torch.no_grad()
    def measure(self) -> Tensor:
        """One float32 row of 1 + n values, for :meth:`health`: the norm, and the largest of n parameters."""
        error = None
        try:
            own = super().measure()
        except Exception as failed:  # noqa: BLE001 - the others wait for this rank
            own, error = torch.full((1 + len(self.parameters),), -1.0, device=self._device), failed
        rows = self._gather(own)
        if error is not None:
            raise error
        norms = rows[:, 0]
        norm = torch.linalg.vector_norm(norms, dtype=_wide(norms.device)).float()
        norm = torch.where((norms < 0).any(), -1.0, norm)
        return torch.cat([norm.reshape(1), rows[:, 1:].amax(0)])

    @torch.no_grad()
    def total_norm(self) -> Tensor:
        """The L2 norm of all gradients; local squares are summed in float64 where there is one."""
        gradients = [local_part(p.grad) for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        squares = norm.to(_wide(norm.device)).square()
        dist.all_reduce(squares)
        return squares.sqrt().to(norm.dtype)

    def sum_of_counts(self, count: Callable[[], Tensor], length: int) -> Tensor:
        error = None
        try:
            counts = count()
        except Exception as failed:  # noqa: BLE001 - the others wait for this rank
            counts, error = torch.full((length,), -torch.inf, device=self._device), failed
        dist.all_reduce(counts)
        if error is not None:
            raise error
        return counts

    def largest_anywhere(self, largest: Tensor) -> Tensor:
        # Not all ranks may have a part in float64.
        return self._gather(largest.to(_wide(largest.device))).amax(0)

    def _gather(self, row: Tensor) -> Tensor:
        """[ranks, n]: everybody's row. A reduction by NCCL or gloo may lose a NaN, one here does not."""
        rows = row.new_empty(self._ranks * len(row))
        all_gather(rows, row.contiguous())
        return rows.view(self._ranks, -1)


def all_gather(rows: Tensor, own_row: Tensor) -> None:
    """Fill ``rows``, [ranks * n], with the ``own_row``, [n], of each rank. All have to call it."""
    gather = next(getattr(dist, name) for name in _ALL_GATHER_NAMES if hasattr(dist, name))
    gather(rows, own_row)


def shard(root: LossRoot, ranks: int) -> FSDPModule:
    """Shard the blocks, then the rest; parameters of other types than float32 have no room for the loss."""
    mesh = init_device_mesh(root.loss.mean.device.type, (ranks,))
    blocks = blocks_of(root.model)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    inside = {parameter for block in blocks for parameter in block.parameters()}
    if any(p.dtype is not torch.float32 for p in root.model.parameters() if p not in inside):
        fully_shard(root.loss, mesh=mesh)
    return fully_shard(root, mesh=mesh)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The modules that are sharded one by one: what each ``ModuleList`` and ``Sequential`` holds.

    A list within a list is opened, unless it is a ``Sequential`` of single layers; a block is not. Left out
    are modules without parameters, and those that share a parameter or a module with others: its users have
    to be gathered together.
    """
    candidates = dict.fromkeys(_list_members(model))
    users: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter, set()).add(module)
    inside = {block: set(block.modules()) for block in candidates}
    shared = Counter(module for modules in inside.values() for module in modules)
    return [
        block
        for block, modules in inside.items()
        if all(users[p] <= modules for p in block.parameters())
        and all(shared[module] == 1 for module in modules)
    ]


def _list_members(module: nn.Module) -> Iterator[nn.Module]:
    """The members of all lists in ``module``, the outermost."""
    for child in module.children():
        # One block, such as a convolution and its norm; nobody calls a `ModuleList`.
        is_of_layers = type(child) is nn.Sequential and not any(any(layer.children()) for layer in child)
        if not _is_list(module) or (_is_list(child) and not is_of_layers):
            yield from _list_members(child)
        elif any(True for _ in child.parameters()):
            yield child


def _is_list(module: nn.Module) -> bool:
    # Subclasses of Sequential are blocks: Conv2dNormActivation of torchvision, say.
    return type(module) is nn.Sequential or isinstance(module, nn.ModuleList)


@torch.no_grad()
def _take_part(parts: list[Part], keys: Keys, tensor: Tensor) -> Tensor:
    """What stands for a tensor; a sharded one's part is added to ``parts``, unless it is empty."""
    if not isinstance(tensor, DTensor):
        return tensor
    local = tensor.to_local()
    if not tensor.numel() or all(placement.is_replicate() for placement in tensor.placements):
        return local.reshape(tensor.shape)
    if not all(placement.is_shard() for placement in tensor.placements):
        raise NotPlainError(
            f"{'.'.join(map(str, keys))} is a sum over ranks, which a checkpoint cannot store"
        )
    if local.numel():
        (chunk,) = tensor.__create_chunk_list__()
        parts.append(Part(keys, tensor.shape, chunk.offsets, local))
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _wide(device: torch.device) -> torch.dtype:
    """What sums of squares are computed in."""
    return torch.float64 if capabilities(device).float64 else torch.float32


def _room(like: Mapping[object, object], keys: Keys, meta: Tensor) -> Tensor:
    """Room for this rank's part of what has the shape of its parameter, or for another tensor as a whole."""
    parameter = like.get(keys[1] if keys[0] == "model" else keys[2])
    if isinstance(parameter, DTensor) and parameter.shape == meta.shape:
        return torch.empty_like(parameter, dtype=meta.dtype, requires_grad=False)
    return whole_room(keys, meta)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    """In the order of their numbers."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _part(whole: Any, like: object) -> Any:
    """Of what has the shape of a sharded tensor this rank's part; communicates with nobody."""
    if isinstance(whole, DTensor) or not (
        isinstance(like, DTensor) and isinstance(whole, Tensor) and whole.shape == like.shape
    ):
        return whole
    # Without a source rank each takes its part of what it has read itself.
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
