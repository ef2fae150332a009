"""Which samples each rank takes."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.errors import DataError
from amptui.data.batches import open_batches
from amptui.data.order import Order, Share
from amptui.data.sources import Arrays

CPU = torch.device("cpu")

sizes = st.integers(1, 40)
worlds = st.integers(1, 9)


def orders(samples: int, batch_size: int, ranks: int, *, training: bool) -> list[Order]:
    return [
        Order(samples, batch_size, 7, training=training, share=Share(rank, ranks)) for rank in range(ranks)
    ]


@given(samples=sizes, batch_size=st.integers(1, 6), ranks=worlds, epoch=st.integers(1, 3))
def test_a_global_batch_is_that_of_one_process_cut_in_equal_parts(
    samples: int, batch_size: int, ranks: int, epoch: int
) -> None:
    shares = orders(samples, batch_size, ranks, training=True)
    alone = Order(samples, batch_size * ranks, 7, training=True)
    parts = [[batch.tolist() for batch in order.batches(epoch)] for order in shares]
    together = [list(chain(*each)) for each in zip(*parts, strict=True)]
    assert together == [batch.tolist() for batch in alone.batches(epoch)]
    assert {len(order) for order in shares} == {len(alone)} == {len(part) for part in parts}


@given(samples=sizes, batch_size=st.integers(1, 6), ranks=worlds)
def test_validation_deals_the_batches_of_one_process_to_the_ranks_in_turn(
    samples: int, batch_size: int, ranks: int
) -> None:
    shares = orders(samples, batch_size, ranks, training=False)
    alone = [batch.tolist() for batch in Order(samples, batch_size, 7, training=False).batches(0)]
    parts = [[batch.tolist() for batch in order.batches(0)] for order in shares]
    assert [len(order) for order in shares] == [len(part) for part in parts]
    assert parts == [alone[rank::ranks] for rank in range(ranks)]


def test_batches_of_different_ranks_draw_different_numbers_and_rank_0_those_of_one_process() -> None:
    alone = Order(32, 4, 7, training=True)
    shares = [alone, *orders(32, 4, 2, training=True)]
    for order in shares:
        order.seeds_batches = True
        order.epoch = 1
    seeds = [[batch.seed for batch in order] for order in shares]  # type: ignore[attr-defined]
    assert seeds[1] == seeds[0][:4]
    assert len({*seeds[1], *seeds[2]}) == 8


def test_ranks_get_batches_of_arrays_without_overlap() -> None:
    arrays = Arrays(torch.arange(12.0).reshape(12, 1), torch.arange(12))
    found = []
    for rank in range(2):
        batches = open_batches(arrays, device=CPU, batch_size=3, seed=1, training=True, share=Share(rank, 2))
        assert batches.batches_per_epoch == 2
        found += [int(label) for _, labels in batches.epoch(1) for label in labels]
    assert sorted(found) == list(range(12))


def test_fewer_samples_than_a_batch_for_each_rank_are_refused() -> None:
    arrays = Arrays(torch.zeros(7, 1), torch.zeros(7))
    with pytest.raises(DataError, match="each of 2 ranks; use --batch-size 3"):
        open_batches(arrays, device=CPU, batch_size=4, seed=1, training=True, share=Share(0, 2))
