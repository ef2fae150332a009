"""A rank that compares NCCL's collectives on the device with gloo's on the host: ``collectives.py FILE``."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

LARGE = 300_000
"""Elements that one slot of the pretended NCCL has no room for."""


def tensors(rank: int) -> Iterator[Tensor]:
    """Of each type that is reduced, small and large; whole numbers, whose sums every type holds."""
    generator = torch.Generator().manual_seed(rank)
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
    ):
        for size in (1, 6, LARGE if dtype is torch.float32 else 10):
            yield torch.randint(0, 9, (size,), generator=generator).to(dtype)


def compare(own: Tensor, device: torch.device) -> None:
    """Every collective of ``own`` on the device gives what it gives on the host."""
    world = dist.get_world_size()
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        there, here = own.to(device), own.clone()
        dist.all_reduce(there, op)
        dist.all_reduce(here, op)
        assert torch.equal(there.cpu(), here), (op, own.dtype)
    for root in range(world):
        there, here = own.to(device), own.clone()
        dist.broadcast(there, root)
        dist.broadcast(here, root)
        assert torch.equal(there.cpu(), here), own.dtype
    there, here = (own.new_empty(world, len(own), device=place) for place in (device, "cpu"))
    dist.all_gather(list(there), own.to(device))
    dist.all_gather(list(here), own)
    assert torch.equal(there.cpu(), here), own.dtype
    # What each rank takes of the sum: a whole row of all rows.
    part = torch.empty_like(own, device=device)
    dist.reduce_scatter(part, [row.to(device) for row in here])
    assert torch.equal(part.cpu(), here[dist.get_rank()] * world), own.dtype


def main(file: Path) -> None:
    """Exit with an error unless all is as it should be; ``file`` is what rank 1 writes before it comes."""
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    for own in tensors(rank):
        compare(own, device)
    mean = torch.full((3,), float(rank), device=device)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [0.5] * 3
    alone = [dist.new_group([member]) for member in range(dist.get_world_size())][rank]
    assert isinstance(alone, dist.ProcessGroup)
    dist.all_reduce(mean, group=alone)
    assert mean.tolist() == [0.5] * 3
    # The host of the rank that comes first is blocked until the other one comes.
    if rank == 1:
        file.touch()
    dist.all_reduce(mean)
    assert file.exists()
    # torch 2.9 gives the number of this operation's error, and not the words.
    with pytest.raises(RuntimeError, match=r"is not pretended|NCCL Error 5: invalid usage"):
        dist.all_to_all_single(torch.empty(2, device=device), torch.ones(2, device=device))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
