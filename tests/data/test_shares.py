"""Which samples each rank takes: of a data set in our order, and of a DataLoader of one's own."""

from collections.abc import Iterator
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

from amptui.base.errors import AmptuiError, DataError, UsageError
from amptui.data.batches import Batches, open_batches
from amptui.data.order import Order, Share, left_out
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
    left = samples - len(alone) * alone.batch_size
    told = left_out(Numbers(samples), batch_size, Share(0, ranks))
    assert told.startswith(f"{left} of {samples} training samples" if left and ranks > 1 else "")
    assert bool(told) == (left > 0 and ranks > 1)


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


@given(
    samples=st.integers(12, 40),
    batch_size=st.integers(1, 4),
    ranks=st.integers(2, 3),
    shuffled=st.booleans(),
    drop_last=st.booleans(),
)
def test_ranks_take_whole_groups_of_one_order_without_overlap(
    samples: int, batch_size: int, ranks: int, shuffled: bool, drop_last: bool
) -> None:
    loader = DataLoader(Numbers(samples), batch_size, shuffle=shuffled, drop_last=drop_last)
    shares = [shared(loader, ranks, rank) for rank in range(ranks)]
    parts = [numbers_of(each) for each in shares]
    count = samples // batch_size // ranks
    assert [each.batches_per_epoch for each in shares] == [len(part) for part in parts] == [count] * ranks
    seen = list(chain(*chain(*parts)))
    assert len(set(seen)) == len(seen) == count * batch_size * ranks
    assert {len(batch) for part in parts for batch in part} == {batch_size}
    left = -(-samples // batch_size) if not drop_last else samples // batch_size
    told = left_out(loader, 99, Share(0, ranks))
    assert told.startswith(f"the last {left - count * ranks} of {left} training batches" if told else "")
    assert bool(told) == (left > count * ranks)
    if not shuffled:
        in_order = [list(chain(*group)) for group in zip(*parts, strict=True)]
        assert list(chain(*in_order)) == list(range(count * batch_size * ranks))


@given(samples=st.integers(3, 40), batch_size=st.integers(1, 6), ranks=st.integers(2, 5))
def test_validation_leaves_no_sample_out(samples: int, batch_size: int, ranks: int) -> None:
    loader = DataLoader(Numbers(samples), batch_size)
    parts = [numbers_of(shared(loader, ranks, rank, training=False), 0) for rank in range(ranks)]
    assert sorted(chain(*chain(*parts))) == list(range(samples))


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_drawn_before() -> None:
    loader = DataLoader(Numbers(24), 4, shuffle=True)
    batches = shared(loader, 2, 0)
    first, second = numbers_of(batches, 1), numbers_of(batches, 2)
    torch.rand(3)
    state = torch.get_rng_state()
    assert numbers_of(shared(loader, 2, 0), 1) == first != second
    assert numbers_of(shared(loader, 2, 0), 2, skip=1) == second[1:]
    assert numbers_of(shared(loader, 2, 0, seed=2), 1) != first
    batches.checksum()
    assert shared(loader, 2, 0).checksum() == shared(loader, 2, 1).checksum()
    torch.set_rng_state(state)


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


class Buckets(Sampler[list[int]]):
    """Batches of different sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1], [2, 3], [4], [5, 6, 7])

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (Stream(), UsageError, "the training data is a stream"),
        (Numbers(1), DataError, "the training set has 1 samples, .*; use fewer ranks"),
        (Numbers(190), DataError, "each of 2 ranks; use --batch-size 95 or less"),
        (DataLoader(Numbers(3), 2), DataError, "the training DataLoader has 2 batches, not a whole one"),
        (
            DataLoader(Numbers(8), batch_sampler=Buckets()),
            DataError,
            r"training batches 3 to 4 have \[1, 3\]",
        ),
    ],
    ids=["stream", "one sample", "few samples", "too few", "unequal"],
)
def test_what_ranks_cannot_share_is_refused(source: Source, kind: type[AmptuiError], said: str) -> None:
    with pytest.raises(kind, match=said):
        numbers_of(shared(source, 2, 0))
