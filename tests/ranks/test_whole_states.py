"""Whole states of a sharded model, gathered and divided again, in a group of one process."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from amptui.ranks.parallel.sharded import divided_model, divided_optimizer, gathered


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """The processes of a group: this one."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model after one step, and its optimizer."""
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_a_model_s_state_is_plain_when_gathered_and_sharded_when_divided() -> None:
    model, _ = trained()
    state = model.state_dict()
    whole = gathered(state, keep=True)
    assert not any(isinstance(value, DTensor) for value in whole.values())
    assert whole._metadata == state._metadata  # type: ignore[attr-defined]
    assert isinstance(state["0.weight"], DTensor)

    other, _ = trained()
    divided = divided_model(whole, other.state_dict())
    assert divided._metadata == state._metadata  # type: ignore[attr-defined]
    other.load_state_dict(divided)
    again = gathered(other.state_dict(), keep=True)
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_an_optimizer_s_moments_are_divided_and_its_counters_are_not() -> None:
    model, optimizer = trained()
    whole = gathered(optimizer.state_dict(), keep=True)
    assert not isinstance(whole["state"][0]["exp_avg"], DTensor)
    assert isinstance(optimizer.state_dict()["state"][0]["exp_avg"], DTensor)  # it keeps its own

    divided = divided_optimizer(whole, model.parameters())
    assert isinstance(divided["state"][0]["exp_avg_sq"], DTensor)
    assert not isinstance(divided["state"][0]["step"], DTensor)
    assert divided["param_groups"] == whole["param_groups"]
    optimizer.load_state_dict(divided)


def test_a_rank_that_only_takes_part_keeps_nothing() -> None:
    model, _ = trained()
    assert gathered(model.state_dict(), keep=False)["0.weight"] is None
