"""Batches do not depend on who loads them: random samples are the same with any number of workers."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from amptui import Data, DataRequest
from amptui.data.batches import Batches, open_batches
from amptui.data.sources import Arrays
from amptui.loops import setup
from amptui.recipe.request import TrainRequest
from tests.data.samples import CPU, arrays
from tests.tiny import Tiny, prepare


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images with noise from all three generators that people use, whoever loads them."""

    def __init__(self, source: Arrays) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(()) + random.random() + float(np.random.random())
        return self.source.inputs[index] / 255 + 0.1 * noise, self.source.targets[index]


class Together(Augmented):
    """It loads whole batches at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        assert type(indices) is list
        return [self[index] for index in indices]


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens batches, and ends their workers."""
    made: list[Batches] = []

    def open_(source: Any = None, **options: Any) -> Batches:
        source = Augmented(arrays(40)) if source is None else source
        options = {"device": CPU, "batch_size": 4, "seed": 3, "training": True, **options}
        made.append(open_batches(source, **options))
        return made[-1]

    yield open_
    for batches in made:
        batches.close()


def contents(batches: Batches, epoch: int, skip: int = 0) -> list[tuple[list[Any], list[Any]]]:
    return [(one.tolist(), other.tolist()) for one, other in batches.epoch(epoch, skip=skip)]


@pytest.mark.ci
@pytest.mark.parametrize("kind", [Augmented, Together])
def test_random_samples_are_the_same_with_any_number_of_workers(kind: Any, opened: Any) -> None:
    expected = contents(opened(kind(arrays(40)), workers=0), 2)
    assert len(expected) == 10
    for workers in (1, 2, 3):
        batches = opened(kind(arrays(40)), workers=workers)
        assert contents(batches, 2) == expected
        assert contents(batches, 2, skip=7) == expected[7:]
    others = [contents(opened(workers=0), 3), contents(opened(workers=0, seed=4), 2)]
    assert expected not in others


def test_loading_in_the_training_s_own_process_takes_nothing_from_its_generators(opened: Any) -> None:
    before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    for source in (None, arrays(40)):
        contents(opened(source, workers=0), 1)
    assert random.getstate() == before[0]
    assert str(np.random.get_state(legacy=False)) == str(before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


# ------------------------------------------------------------------------- a whole training


class Augmenting(Tiny):
    def load_data(self, request: DataRequest) -> Data:
        data = super().load_data(request)
        assert isinstance(data.train, Arrays)
        return replace(data, train=Augmented(data.train), validation=Augmented(data.train))


def test_batches_are_made_as_the_experiment_makes_them() -> None:
    class Collating(Augmenting):
        def collate_fn(self, samples: list[Any]) -> Any:
            inputs, targets = zip(*samples, strict=True)
            return torch.stack(inputs).double(), torch.stack(targets)

    prepared: Any = prepare(Collating())
    inputs, targets = next(prepared.training.epoch(1))
    assert (inputs.dtype, inputs.shape, targets.shape) == (torch.float64, (8, 1, 4, 4), (8,))
    assert next(prepared.validation.epoch(0))[0].dtype == torch.float64
    assert next(prepare(Augmenting()).training.epoch(1))[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("kind", "told"),
    [(Tiny, ["--workers 2 has no effect: the data is in memory already"]), (Augmenting, [])],
)
def test_workers_that_nothing_is_there_for_are_told_of(kind: Any, told: list[str]) -> None:
    request, found = TrainRequest(model="tiny", device="cpu", workers=2), list[str]()
    asked = DataRequest(data_dir=Path("unused"), workers=2, warn=found.append)
    setup.assemble(request, kind(), setup.choose(request), data_request=asked)
    assert found == told
