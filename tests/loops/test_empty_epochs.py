"""No epoch passes without a batch, and each has those that come."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from amptui import Data, DataRequest
from amptui.base.errors import DataError
from amptui.data.sources import Arrays, Source
from amptui.records.run import EpochFinished, Note
from tests.tiny import Log, Tiny, losses, prepare, train


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


@pytest.mark.parametrize("source", [lambda pairs: Stream(pairs, 0), Once])
def test_an_epoch_without_a_batch_is_an_error(source: Callable[[Any], Source]) -> None:
    epoch = 2 if source is Once else 1
    with pytest.raises(DataError, match=f"epoch {epoch}: no training batches"):
        train(prepare(Loaded(source)), Log())


class Generous(DataLoader[Any]):
    """Knows of fewer batches than it has."""

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("loader", "options", "steps"),
    [
        (lambda pairs: Sized(pairs, 40), {}, 10),
        (lambda pairs: DataLoader(Sized(pairs, 40), 8), {}, 10),
        (lambda pairs: Generous(pairs, 8), {}, 16),
        (lambda pairs: Generous(pairs, 8), {"steps": 7}, 7),
    ],
    ids=["short stream", "short loader", "longer", "longer, and ended by steps"],
)
def test_an_epoch_has_the_batches_that_come_whatever_its_length_says(
    loader: Callable[[Any], Source], options: dict[str, Any], steps: int
) -> None:
    log = Log()
    assert train(prepare(Loaded(loader, loader), **options), log) == "done"
    assert len(losses(log)) == steps
    validated = {epoch.validation and epoch.validation.samples for epoch in log.of(EpochFinished)}
    assert validated == (set() if steps == 7 else {4 * steps})


def test_a_validation_without_batches_is_an_error_but_keeps_the_epoch() -> None:
    log, loaded = Log(), Loaded(lambda pairs: DataLoader(pairs, 8), lambda pairs: Stream(pairs, 0))
    assert train(prepare(loaded), log) == "done"
    assert [epoch.validation for epoch in log.of(EpochFinished)] == [None, None]
    assert [note.severity for note in log.of(Note)].count("error") == 2
    assert torch.isfinite(torch.tensor(losses(log), dtype=torch.float64)).all()
