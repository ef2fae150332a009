"""What ranks post for each other, and how far they are in the collectives of all their groups."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from amptui.ranks.agreement.board import Board, collectives_by_group, is_ahead, is_same_place


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A second group of a process alone, as of a device mesh."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        made = dist.new_group([0])
        assert isinstance(made, dist.ProcessGroup)
        yield made
    finally:
        dist.destroy_process_group()


def test_collectives_are_counted_in_every_group(group: dist.ProcessGroup) -> None:
    before = collectives_by_group()
    assert len(before) == 2
    dist.all_reduce(torch.zeros(1), group=group)
    after = collectives_by_group()
    assert sum(after.values()) == sum(before.values()) + 1
    assert is_ahead(after, before)
    assert not is_ahead(before, after)
    assert not is_same_place([(4, before), (4, after)])
    assert is_same_place([(4, after), (4, after)])


def test_without_a_group_nothing_is_counted() -> None:
    assert collectives_by_group() == {}


def test_groups_that_ranks_do_not_share_say_nothing() -> None:
    """As the two halves of a device mesh: each rank is in one of them."""
    everybody = {"0": 7}
    assert is_same_place([(4, {**everybody, "left": 3}), (4, {**everybody, "right": 9})])
    assert not is_same_place([(4, {**everybody, "left": 3}), (4, {**everybody, "left": 4, "right": 9})])
    assert not is_same_place([(4, everybody), (5, everybody)])
    assert not is_ahead({"right": 9}, {"left": 3})


def test_the_first_to_decide_counts() -> None:
    store = HashStore()
    first, other = Board(store, "test"), Board(store, "test")
    assert first.look("verdict") is None
    assert first.decide("verdict", False) is False
    assert other.decide("verdict", "yes") is False
    assert first.count("ranks", 1) + other.count("ranks", 1) == 3
    other.remove("verdict")
    assert first.look("verdict") is None
