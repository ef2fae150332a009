"""Batches: what is in them and in which order, from every kind of source."""

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset

from amptui.base.errors import DataError
from amptui.data import batches as batches_module
from amptui.data.batches import Batches, count_samples
from amptui.data.loaders import move
from amptui.data.sources import Arrays, Source
from tests.data.samples import CPU, Numbers, Pair, Stream, arrays, opened


def targets(batches: Batches, epoch: int) -> list[int]:
    """The numbers of an epoch's samples, in order."""
    return [
        n
        for batch in batches.epoch(epoch)
        for n in (batch if isinstance(batch, Tensor) else batch[1]).tolist()
    ]


SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300)).map(sorted)


@given(sizes=SIZES, seed=st.integers(-(2**63), 2**64), epoch=st.integers(0, 10**6))
def test_a_training_epoch_has_every_sample_at_most_once_in_whole_batches(
    sizes: list[int], seed: int, epoch: int
) -> None:
    batch_size, samples = sizes
    batches = opened(arrays(samples), batch_size=batch_size, seed=seed)
    seen = list(batches.epoch(epoch))
    assert batches.samples == samples
    assert batches.batches_per_epoch == len(seen) == samples // batch_size
    assert all(len(numbers) == batch_size for _, numbers in seen)
    order = targets(batches, epoch)
    assert len(set(order)) == len(order)
    assert set(order) <= set(range(samples))


@given(sizes=SIZES, epoch=st.integers(0, 5))
def test_validation_has_every_sample_once_in_order(sizes: list[int], epoch: int) -> None:
    samples, batch_size = sizes
    for source in (arrays(samples), Numbers(samples)):
        batches = opened(source, batch_size=batch_size, training=False)
        assert targets(batches, epoch) == list(range(samples))
        assert batches.batches_per_epoch == -(-samples // batch_size)


@pytest.mark.parametrize("source", [arrays(64), Numbers(64)], ids=["arrays", "dataset"])
def test_any_epoch_can_be_made_again_without_those_before(source: Source) -> None:
    whole_run = opened(source, batch_size=1, seed=3)
    orders = [targets(whole_run, epoch) for epoch in range(1, 6)]
    assert targets(opened(source, batch_size=1, seed=3), 4) == orders[3]
    assert targets(whole_run, 2) == orders[1]
    assert len({tuple(order) for order in orders}) == 5
    assert targets(opened(source, batch_size=1, seed=4), 1) != orders[0]
    assert targets(opened(source, batch_size=1, seed=1), 3) != orders[0], "neither stands in for the other"


def test_every_pixel_value_becomes_its_fraction_of_255_exactly() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    batches = opened(Arrays(pixels, torch.arange(256)), batch_size=256, training=False)
    for epoch in (1, 2):
        ((inputs, targets),) = batches.epoch(epoch)
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs.flatten(), torch.arange(256) / 255)
        inputs.zero_()  # a step may change its batch: the data stays
        targets.zero_()


@pytest.mark.parametrize("source", [Stream(), DataLoader(Stream(), batch_size=4)], ids=["stream", "loader"])
def test_a_stream_does_not_know_its_length(source: Source) -> None:
    batches = opened(source, training=False)
    assert (batches.samples, batches.batches_per_epoch) == (None, None)
    assert [batch.tolist() for batch in batches.epoch(1)] == [[0, 1, 2, 3], [4]]
    assert [batch.tolist() for batch in batches.epoch(2)] == [[0, 1, 2, 3], [4]]
    assert [batch.tolist() for batch in opened(Stream()).epoch(1)] == [[0, 1, 2, 3]], "in training whole ones"


@pytest.mark.parametrize(
    ("source", "training", "said"),
    [
        (
            arrays(20),
            True,
            "the training set has 20 samples, fewer than one batch of 256; use --batch-size 20 or less",
        ),
        (Numbers(0), False, "the validation set is empty"),
        (
            DataLoader(Numbers(3), batch_size=4, drop_last=True),
            True,
            "the training DataLoader has no batches; use a smaller batch size or drop_last=False",
        ),
        (
            Dataset(),
            True,
            "the training set has no length; define __len__, or make it an IterableDataset",
        ),
    ],
)
def test_data_without_one_batch_is_refused_with_the_mend(source: Source, training: bool, said: str) -> None:
    with pytest.raises(DataError) as raised:
        opened(source, batch_size=256, training=training)
    assert str(raised.value) == said


META = torch.device("meta")


def test_a_nest_keeps_its_shape_and_types_on_the_way_to_the_device() -> None:
    class Named(NamedTuple):
        first: Any
        rest: Any

    ones = torch.ones(2)
    thing = object()
    nest: dict[str, Any] = {
        "named": Named(ones, [{"deep": ones}, "text", None, thing]),
        "default": defaultdict(int, x=ones),
        "packed": pack_sequence([torch.ones(3), torch.ones(2)]),
    }
    moved = move(nest, META)
    assert isinstance(moved["named"], Named)
    assert moved["named"].first.device == moved["named"].rest[0]["deep"].device == META
    assert moved["named"].rest[1:] == ["text", None, thing]
    assert moved["default"].default_factory is int
    assert moved["default"]["x"].device == META
    assert nest["default"]["x"] is ones, "the nest that was given is left as it was"
    assert isinstance(moved["packed"], PackedSequence)
    assert (moved["packed"].data.device, moved["packed"].batch_sizes.device) == (META, CPU)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(3, 2), 3),
        (torch.tensor(1.0), 0),
        ((torch.tensor(1.0), torch.ones(5)), 5),
        (pack_sequence([torch.ones(3), torch.ones(2)]), 2),
        (["name", {"x": [torch.ones(7)]}], 7),
        (Pair(torch.ones(2), torch.ones(9)), 2),
        ({}, 0),
        ("text", 0),
        (object(), 0),
    ],
)
def test_samples_are_counted_by_the_first_tensor(batch: Any, samples: int) -> None:
    assert count_samples(batch) == samples


class Opaque(Dataset[tuple[Tensor, int]]):
    """The same samples as :func:`arrays`, one at a time, counting how many were asked for."""

    def __init__(self, samples: int) -> None:
        self.source = arrays(samples)
        self.loaded = 0

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.loaded += 1
        return self.source.inputs[index], int(self.source.targets[index])


def sources(samples: int) -> list[Source]:
    """Everything that can be trained on, with the same samples in it."""
    return [arrays(samples), Opaque(samples), DataLoader(Opaque(samples), batch_size=4, drop_last=True)]


@given(samples=st.integers(4, 40), data=st.data(), streamed=st.booleans())
def test_what_is_skipped_is_the_beginning_of_the_same_epoch(
    samples: int, data: st.DataObject, streamed: bool
) -> None:
    skip, epoch = data.draw(st.integers(0, samples // 4)), data.draw(st.integers(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        if streamed:
            patch.setattr(batches_module, "_fits", lambda _arrays, _device: False)
        in_our_order = list[list[list[int]]]()
        for source in sources(samples):
            batches = opened(source)
            whole = [numbers.tolist() for _, numbers in batches.epoch(epoch)]
            in_our_order.append(whole)
            assert [numbers.tolist() for _, numbers in batches.epoch(epoch, skip=skip)] == whole[skip:]
            assert [numbers.tolist() for _, numbers in batches.epoch(epoch)] == whole
        assert in_our_order[0] == in_our_order[1], "in memory, or too large for the device, or one by one"


def test_our_own_order_skips_without_loading_and_a_loader_of_the_user_s_has_to_load() -> None:
    ours, theirs = Opaque(40), Opaque(40)
    next(opened(ours).epoch(1, skip=5))
    assert ours.loaded == 4
    told = list[int]()

    def passed(done: int) -> bool:
        told.append(done)
        return True

    left = opened(DataLoader(theirs, batch_size=4)).epoch(1, skip=5, passed=passed)
    assert theirs.loaded == 20
    assert told == [1, 2, 3, 4, 5]
    assert len(list(left)) == 5
    broken_off = Opaque(40)
    opened(DataLoader(broken_off, batch_size=4)).epoch(1, skip=9, passed=lambda done: done < 2)
    assert broken_off.loaded == 8


def test_a_loader_with_fewer_batches_than_are_to_be_skipped_is_refused_with_the_mend() -> None:
    with pytest.raises(DataError, match=r"at batch 3 .* only 2 batches.*resume with the data that"):
        opened(DataLoader(Opaque(8), batch_size=4)).epoch(1, skip=3)
