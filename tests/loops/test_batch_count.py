"""What a loader leaves out or does not deliver is told, and no epoch passes without a batch."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from amptui import Data, DataRequest
from amptui.base.errors import DataError
from amptui.data.sources import Arrays, Source
from amptui.records.run import EpochFinished, Note
from tests.builders import StepRow
from tests.tiny import Log, Tiny, losses, prepare, train

BATCHES = 8
"""Of 8 samples each: what an epoch of :class:`Tiny` has."""


class Loaded(Tiny):
    """Its batches come through ``loader``, made of the images in ``load_data``."""

    def __init__(self, loader: Callable[[Any], Source], validation: Callable[[Any], Source] | None = None):
        super().__init__()
        self.loader, self.held_out = loader, validation

    def load_data(self, request: DataRequest) -> Data:
        data = super().load_data(request)
        assert isinstance(data.train, Arrays)
        pairs = list(zip(data.train.inputs / 255, data.train.targets, strict=True))
        held_out = self.held_out(pairs) if self.held_out else None
        return replace(data, train=self.loader(pairs), validation=held_out)


class Dropping:
    """A ``collate_fn`` that returns None for some batches: none of their samples could be read."""

    def __init__(self, bad: Iterable[int]) -> None:
        self.bad = frozenset(bad)
        self.calls = -1

    def __call__(self, samples: list[Any]) -> Any:
        self.calls += 1
        return None if self.calls % BATCHES in self.bad else default_collate(samples)


def dropping(*bad: int) -> Callable[[Any], DataLoader[Any]]:
    return lambda pairs: DataLoader(pairs, 8, collate_fn=Dropping(bad))


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Some of the samples, whatever its length says."""

    def __init__(self, pairs: list[Any], delivered: int) -> None:
        self.pairs, self.delivered = pairs, delivered

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.pairs[n % len(self.pairs)] for n in range(self.delivered))


class Sized(Stream):
    def __len__(self) -> int:
        return len(self.pairs)


class Once(Stream):
    """Delivers its samples once: an iterator taken for a data set."""

    def __init__(self, pairs: list[Any]) -> None:
        super().__init__(pairs, len(pairs))
        self.left = iter(pairs)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.left


def notes_of(log: Log) -> list[str]:
    return [note.text for note in log.of(Note)]


@settings(max_examples=20)
@given(bad=st.sets(st.integers(0, BATCHES - 1)))
def test_batches_that_are_none_are_skipped_and_counted(bad: set[int]) -> None:
    log, experiment = Log(), Loaded(dropping(*bad))
    if len(bad) == BATCHES:
        with pytest.raises(DataError, match="epoch 1: all 8 training batches were None"):
            train(prepare(experiment), log)
    else:
        assert train(prepare(experiment), log) == "done"
        assert [record.epoch for record in log.of(StepRow)] == [
            epoch for epoch in (1, 2) for _ in range(BATCHES - len(bad))
        ]
        assert len(log.of(EpochFinished)) == 2
        totals = [f"epoch {epoch}: {len(bad)} of 8 training batches were None" for epoch in (1, 2)]
        # The first is told at once, their number when the epoch is over.
        assert [any(text.startswith(total) for text in notes_of(log)) for total in totals] == [bool(bad)] * 2
        assert len(notes_of(log)) == (3 if bad else 0)


@pytest.mark.parametrize("stream", [lambda pairs: Stream(pairs, 0), lambda pairs: Stream(pairs, 7), Once])
def test_a_stream_that_yields_no_batch_is_an_error(stream: Callable[[Any], Source]) -> None:
    epoch = 2 if stream is Once else 1
    with pytest.raises(DataError, match=f"epoch {epoch}: no training batches"):
        train(prepare(Loaded(stream)), Log())


ENDED = "the {} data ended after 5 batches, but len() is 8"


class Generous(DataLoader[Any]):
    """Knows of fewer batches than it has."""

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("loader", "options", "steps", "said"),
    [
        (lambda pairs: Sized(pairs, 40), {}, 10, ENDED),
        (lambda pairs: DataLoader(Sized(pairs, 40), 8), {}, 10, ENDED),
        (lambda pairs: Generous(pairs, 8), {}, 16, "the {} data has 8 batches, but len() is 5"),
        (lambda pairs: Generous(pairs, 8), {"steps": 7}, 7, ""),
    ],
    ids=["short stream", "short loader", "longer", "longer, and ended by steps"],
)
def test_an_epoch_has_the_batches_that_come_and_a_wrong_length_is_told_once(
    loader: Callable[[Any], Source], options: dict[str, Any], steps: int, said: str
) -> None:
    log = Log()
    assert train(prepare(Loaded(loader, loader), **options), log) == "done"
    assert len(losses(log)) == steps
    assert notes_of(log) == [said.format(name) for name in ("training", "validation") if said]
    validated = {epoch.validation and epoch.validation.samples for epoch in log.of(EpochFinished)}
    assert validated == (set() if steps == 7 else {4 * steps})


@pytest.mark.parametrize("nothing", [lambda pairs: Stream(pairs, 0), dropping(*range(BATCHES))])
def test_a_validation_without_batches_is_an_error_but_keeps_the_epoch(
    nothing: Callable[[Any], Source],
) -> None:
    log = Log()
    assert train(prepare(Loaded(lambda pairs: DataLoader(pairs, 8), nothing)), log) == "done"
    assert [epoch.validation for epoch in log.of(EpochFinished)] == [None, None]
    assert [note.severity for note in log.of(Note)].count("error") == 2
    assert torch.isfinite(torch.tensor(losses(log), dtype=torch.float64)).all()
