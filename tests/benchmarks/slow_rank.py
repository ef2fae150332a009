"""Whether a rank that is slow on purpose is found, and with its cause: real ranks over gloo, trained by DDP.

``python -m tests.benchmarks.slow_rank [--ranks 2] [--runs 20] [--at-once 4]`` prints a table. In each run a
random rank loses a fifth of a step in its input, its forward or its backward pass; in as many, none does.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from amptui import Data, DataRequest
from amptui.telemetry.session import Session
from tests.living import records_of
from tests.tiny import Tiny

PLACES = ("input", "forward", "backward")

CAUSES = {"input": "input", "forward": "compute", "backward": "compute"}

STEP_SECONDS = 0.02
"""Of each rank's own: half of it in the forward, half in the backward pass."""

LOST_SECONDS = 0.005

STEPS = 1000
"""Enough for the twenty samples of a verdict."""


class SlowRank(Tiny):
    """Sleeps instead of computing, so that any number of ranks can do so on two cores."""

    epochs: int = 1_000_000
    samples: int = 4096
    slow: int = -1
    place: str = ""

    def load_data(self, request: DataRequest) -> Data:
        generator = torch.Generator().manual_seed(request.seed)
        inputs = torch.randn(self.samples, 16, generator=generator)
        data = _Samples(inputs, inputs.argmax(1) % 4, LOST_SECONDS * self.is_slow("input"))
        return Data(name="made up", real=False, train=DataLoader(data, batch_size=self.batch_size))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        time.sleep(STEP_SECONDS / 2 + LOST_SECONDS * self.is_slow("forward"))
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        slow: Tensor = _SlowGradient.apply(loss, STEP_SECONDS / 2 + LOST_SECONDS * self.is_slow("backward"))
        return slow

    def is_slow(self, place: str) -> bool:
        """Whether this process is the slow rank, and slow there."""
        return self.place == place and os.environ.get("RANK") == str(self.slow)


class _Samples(Dataset[Any]):
    def __init__(self, inputs: Tensor, labels: Tensor, lost_seconds: float) -> None:
        self._inputs, self._labels = inputs, labels
        self._lost_seconds = lost_seconds

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        time.sleep(self._lost_seconds)
        return [(self._inputs[number], self._labels[number]) for number in numbers]


class _SlowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


def found_in(folder: Path, ranks: int, slow: int, place: str) -> tuple[int, str] | None:
    """Train once; the slow rank that the screen shows at the end, and why."""
    command = [sys.executable, "-m", "amptui", "train", f"{__file__}:SlowRank", "--device", "cpu"]
    options = ["--nproc", str(ranks), "--steps", str(STEPS), "--headless"]
    chosen = ["--set", f"slow={slow}", "--set", f"place={place}", "--run-dir", str(folder)]
    subprocess.run(
        [*command, *options, *chosen],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    session = Session()
    session.fold(records_of(folder))
    seen = session.view().ranks
    assert seen is not None, "there are ranks"
    return None if seen.straggler is None else (seen.straggler.rank, seen.straggler.cause)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    injected = [(draw.randrange(options.ranks), PLACES[run % len(PLACES)]) for run in range(options.runs)]
    injected += [(-1, "none")] * options.runs
    right: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.at_once) as pool:
        folders = [Path(name) / str(run) for run in range(len(injected))]
        runs = [pool.submit(found_in, *each) for each in _arguments(folders, options.ranks, injected)]
        for (slow, place), run in zip(injected, runs, strict=True):
            right[place] += run.result() == (None if slow < 0 else (slow, CAUSES[place]))
    made = Counter(place for _, place in injected)
    for place, count in made.items():
        print(f"{place:10} {right[place]} of {count}")


def _arguments(
    folders: Sequence[Path], ranks: int, injected: Sequence[tuple[int, str]]
) -> list[tuple[Path, int, int, str]]:
    return [(folder, ranks, slow, place) for folder, (slow, place) in zip(folders, injected, strict=True)]


if __name__ == "__main__":
    main()
