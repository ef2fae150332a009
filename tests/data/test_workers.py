"""Loaders with workers: batches do not depend on who loads them, model files reach them, deaths are named."""

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from amptui import Data, DataRequest
from amptui.base.errors import DataError
from amptui.base.fork import end_workers
from amptui.data.batches import Batches, open_batches
from amptui.data.sources import Arrays
from amptui.device.failure import explain
from amptui.loops import setup
from amptui.recipe.loading import import_file
from amptui.recipe.request import TrainRequest
from tests.data.samples import CPU, arrays
from tests.tiny import Jittered, Tiny, prepare

pytestmark = pytest.mark.usefixtures("no_trace_of_imports")


def test_a_model_file_is_run_anew_each_time_and_takes_no_other_module_s_name(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "same_name.py" for folder in ("one", "two")]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_text(f"WHICH = {number}\nRUNS = []\n")
    first, again, other = import_file(paths[0]), import_file(paths[0]), import_file(paths[1])
    assert (first.WHICH, again.WHICH, other.WHICH) == (0, 0, 1)
    assert first.RUNS is not again.RUNS
    assert sys.modules["same_name"] is again
    (tmp_path / "json.py").write_text("dumps = None\n")
    import_file(tmp_path / "json.py")
    assert sys.modules["json"].dumps is not None


class Ending(Dataset[torch.Tensor]):
    """One of its samples ends the worker that asks for it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 40:
            if self.how == "raise":
                raise ValueError("two\n  lines")
            if self.how.startswith("SIG"):
                faulthandler.disable()  # pytest's own word on it would stand among the dots
                os.kill(os.getpid(), getattr(signal, self.how))
                time.sleep(60)  # some signals take a moment
            os._exit(int(self.how.removeprefix("exit")))
        return torch.zeros(2)


@pytest.fixture
def trainer() -> Iterator[ThreadPoolExecutor]:
    """A thread as the trainer's is: in the main one torch would raise what it thinks of a worker's end."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with ThreadPoolExecutor(1) as thread:
        yield thread
    signal.signal(signal.SIGCHLD, before)


def loading(how: str, **options: Any) -> Batches:
    loader = DataLoader(Ending(how), 8, num_workers=2, **options)
    return open_batches(loader, device=torch.device("cpu"), batch_size=8, seed=0, training=True)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGKILL", "was killed by SIGKILL .*; if the machine ran out of memory"),
        ("exit3", "exited with status 3"),
    ],
)
def test_a_worker_that_dies_is_named_with_how_it_ended(
    how: str, said: str, trainer: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch looks after its workers every five seconds.
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))
    batches = loading(how)
    with pytest.raises(DataError, match=f"DataLoader worker 1 of 2 {said}"):
        trainer.submit(lambda: list(batches.epoch(1))).result()
    batches.close()
    end_workers()
    assert multiprocessing.active_children() == []


def test_what_a_worker_raises_is_told_in_one_line_with_its_place(trainer: ThreadPoolExecutor) -> None:
    batches = loading("raise")
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 1") as raised:
        trainer.submit(lambda: list(batches.epoch(1))).result()
    batches.close()
    line = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "two\\n" in line)
    assert str(explain(raised.value, doing="in step 5", batch_size=8)) == (
        f"ValueError: two lines ({__file__}:{line}, in DataLoader worker process 1, in step 5)"
    )


@pytest.mark.parametrize("ending", ["close", "end"])
def test_no_worker_outlives_its_batches_or_the_end(ending: str, trainer: ThreadPoolExecutor) -> None:
    batches = loading("exit1", persistent_workers=True)
    trainer.submit(lambda: next(batches.epoch(1))).result()
    assert len(multiprocessing.active_children()) == 2
    if ending == "close":
        batches.close()
    else:
        end_workers()
    assert multiprocessing.active_children() == []


class Augmented(Jittered):
    """Whoever loads them."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(()) + random.random() + float(np.random.random())
        return self.arrays.inputs[index] / 255 + 0.1 * noise, self.arrays.targets[index]


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
