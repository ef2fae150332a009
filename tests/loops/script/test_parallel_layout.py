"""How many of the ranks take samples of their own: as DDP, FSDP2 and a device mesh say, for each layout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amptui.loops.script.script_model import UNKNOWN, ParallelLayout, layout_of

pytestmark = pytest.mark.ci  # torch.distributed.tensor is imported


@contextmanager
def group_of(world_size: int) -> Iterator[None]:
    """This process as the first of so many, whose others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def mesh(*sizes: int, names: tuple[str, ...] | None = None) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def sharded(on: Any, model: nn.Module | None = None) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = layers() if model is None else model
    fully_shard(model, mesh=on)
    return model


def tensor_parallel(on: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(layers(), on, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def _ddp_and_tp() -> nn.Module:
    both = mesh(2, 2, names=("dp", "tp"))
    return DistributedDataParallel(tensor_parallel(both["tp"]), device_mesh=both["dp"])


def _fsdp2_and_tp(*sizes: int, names: tuple[str, ...]) -> nn.Module:
    whole = mesh(*sizes, names=names)
    data = tuple(name for name in names if name.startswith("dp"))
    return sharded(whole[data], tensor_parallel(whole["tp"]))


def _pipelined_fsdp2() -> nn.Module:
    return sharded(mesh(2, 4, names=("pp", "dp"))["dp"])


def _inside_ddp() -> nn.Module:
    inside = layers()
    wrapper = DistributedDataParallel(inside)
    inside.__dict__["kept"] = wrapper  # the script's
    return inside


def _distributed_by_hand() -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    both, model = mesh(2, 2, names=("dp", "tp")), nn.Linear(8, 8, bias=False)
    whole = distribute_tensor(model.weight.detach(), both, [Replicate(), Shard(0)])
    model.weight = nn.Parameter(whole)
    return model


LAYOUTS: dict[str, tuple[int, Callable[[], nn.Module], ParallelLayout]] = {
    "plain": (4, layers, ParallelLayout(4)),
    "DDP": (4, lambda: DistributedDataParallel(layers()), ParallelLayout(4, ("ddp",))),
    "FSDP2": (4, lambda: sharded(mesh(4)), ParallelLayout(4, ("fsdp2",))),
    "HSDP": (4, lambda: sharded(mesh(2, 2, names=("replicas", "shards"))), ParallelLayout(4, ("hsdp",))),
    "TP": (4, lambda: tensor_parallel(mesh(4)), ParallelLayout(1, ("tp",))),
    "DDP and TP": (4, _ddp_and_tp, ParallelLayout(0, ("ddp",), UNKNOWN)),
    "FSDP2 and TP": (8, lambda: _fsdp2_and_tp(2, 4, names=("dp", "tp")), ParallelLayout(2, ("fsdp2", "tp"))),
    "HSDP and TP": (
        8,
        lambda: _fsdp2_and_tp(2, 2, 2, names=("dp_replicate", "dp_shard", "tp")),
        ParallelLayout(4, ("hsdp", "tp")),
    ),
    "FSDP2 in a pipeline": (8, _pipelined_fsdp2, ParallelLayout(0, ("fsdp2",), UNKNOWN)),
    "the model inside DDP": (4, _inside_ddp, ParallelLayout(4, ("ddp",))),
    "replicas on the mesh of the parameters": (4, _distributed_by_hand, ParallelLayout(0, ("tp",), UNKNOWN)),
    "shards over parts of sequences": (
        8,
        lambda: sharded(mesh(4, 2, names=("dp", "cp"))["dp", "cp"]._flatten("dp_cp")),
        ParallelLayout(0, ("fsdp2",), UNKNOWN),
    ),
    "a part of the ranks": (
        8,
        lambda: DistributedDataParallel(layers(), process_group=dist.new_group([0, 1])),
        ParallelLayout(0, ("ddp",), UNKNOWN),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_ranks_that_take_samples_of_their_own_are_counted(name: str) -> None:
    world_size, build, expected = LAYOUTS[name]
    with group_of(world_size):
        assert layout_of(build(), world_size) == expected


def test_a_model_that_says_nothing_may_be_a_stage_of_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining", None)
    assert layout_of(layers(), 4) == ParallelLayout(0, (), UNKNOWN)
