"""Loaders with workers of every kind: a data set of a model file reaches them, and who dies is named."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from amptui.base.errors import DataError
from amptui.base.fork import end_workers
from amptui.data.batches import Batches, open_batches
from amptui.device.failure import explain
from amptui.recipe.modelfile import import_file

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


def opened(how: str, **options: Any) -> Batches:
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
    batches = opened(how)
    with pytest.raises(DataError, match=f"DataLoader worker 1 of 2 {said}"):
        trainer.submit(lambda: list(batches.epoch(1))).result()
    batches.close()
    end_workers()
    assert multiprocessing.active_children() == []


def test_what_a_worker_raises_is_told_in_one_line_with_its_place(trainer: ThreadPoolExecutor) -> None:
    batches = opened("raise")
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 1") as raised:
        trainer.submit(lambda: list(batches.epoch(1))).result()
    batches.close()
    line = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "two\\n" in line)
    assert str(explain(raised.value, doing="in step 5", batch_size=8)) == (
        f"ValueError: two lines ({__file__}:{line}, in DataLoader worker process 1, in step 5)"
    )


@pytest.mark.parametrize("ending", ["close", "end"])
def test_no_worker_outlives_its_batches_or_the_end(ending: str, trainer: ThreadPoolExecutor) -> None:
    batches = opened("exit1", persistent_workers=True)
    trainer.submit(lambda: next(batches.epoch(1))).result()
    assert len(multiprocessing.active_children()) == 2
    if ending == "close":
        batches.close()
    else:
        end_workers()
    assert multiprocessing.active_children() == []
