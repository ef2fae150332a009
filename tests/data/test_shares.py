"""Which samples each rank takes: of a data set in our order, and of a DataLoader of one's own."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from amptui.base.errors import AmptuiError, DataError, UsageError
from amptui.data.batches import Batches, open_batches
from amptui.data.order import Order, Share
from amptui.data.sources import Source
from tests.data.samples import CPU, Numbers, Stream

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


# ------------------------------------------------------------------ a DataLoader of one's own


def shared(source: Source, ranks: int, rank: int, *, training: bool = True, seed: int = 1) -> Batches:
    return open_batches(
        source, device=CPU, batch_size=99, seed=seed, training=training, share=Share(rank, ranks)
    )


def numbers_of(batches: Batches, epoch: int = 1, skip: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in batches.epoch(epoch, skip=skip)]


@pytest.mark.parametrize("shuffled", [False, True])
def test_ranks_share_a_loader_s_samples_as_those_of_its_data_set(shuffled: bool) -> None:
    loader = DataLoader(Numbers(23), 3, shuffle=shuffled)
    shares = [shared(loader, 2, rank) for rank in range(2)]
    parts = [numbers_of(each) for each in shares]
    assert [each.batches_per_epoch for each in shares] == [3, 3]
    together = [list(chain(*group)) for group in zip(*parts, strict=True)]
    alone = Order(23, 6, 1, training=True)
    in_order = [list(range(start, start + 6)) for start in (0, 6, 12)]
    assert together == ([batch.tolist() for batch in alone.batches(1)] if shuffled else in_order)
    assert numbers_of(shares[0], 1, skip=1) == parts[0][1:]
    held_out = [numbers_of(shared(loader, 2, rank, training=False), 0) for rank in range(2)]
    assert sorted(chain(*chain(*held_out))) == list(range(23))


def test_workers_and_a_collate_function_of_one_s_own_are_kept() -> None:
    loader = DataLoader(Numbers(8), 2, num_workers=1, collate_fn=lambda each: torch.tensor(each) + 100)
    batches = shared(loader, 2, 1)
    assert numbers_of(batches) == [[102, 103], [106, 107]]
    batches.close()


def test_a_distributed_sampler_splits_the_data_itself() -> None:
    def opened(rank: int, of: int = 2) -> Batches:
        sampler: DistributedSampler[int] = DistributedSampler(Numbers(12), of, rank, seed=5)
        return shared(DataLoader(Numbers(12), 3, sampler=sampler), 2, 0 if of != 2 else rank)

    parts = [numbers_of(opened(rank)) for rank in range(2)]
    assert sorted(chain(*chain(*parts))) == list(range(12))
    assert numbers_of(opened(0), 2) != parts[0]
    with pytest.raises(UsageError, match="rank 1 of 3 on rank 0 of 2"):
        opened(1, of=3)


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (Stream(), UsageError, "the training data is a stream"),
        (Numbers(1), DataError, "the training set has 1 samples, .*; use fewer ranks"),
        (Numbers(190), DataError, "each of 2 ranks; use --batch-size 95 or less"),
        (
            DataLoader(Numbers(3), 2),
            DataError,
            "3 samples, fewer than one batch of 2 for each of 2 ranks; use a DataLoader with batch_size 1 or",
        ),
        (
            DataLoader(Numbers(8), 2, sampler=WeightedRandomSampler([1.0] * 8, 8)),
            UsageError,
            "the training DataLoader has a sampler",
        ),
        (
            DataLoader(Numbers(8), batch_sampler=BatchSampler(RandomSampler(Numbers(8)), 2, drop_last=True)),
            UsageError,
            "the training DataLoader has a sampler",
        ),
        (
            DataLoader(Numbers(8), 2, sampler=RandomSampler(Numbers(8), replacement=True)),
            UsageError,
            "the training DataLoader has a sampler",
        ),
    ],
    ids=["stream", "one sample", "few samples", "too few", "own sampler", "own batches", "replacement"],
)
def test_what_ranks_cannot_share_is_refused(source: Source, kind: type[AmptuiError], said: str) -> None:
    with pytest.raises(kind, match=said):
        numbers_of(shared(source, 2, 0))
