"""A loop that calls amptui.watch() or amptui.observe() keeps its bits, and its journal has its numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amptui
from tests.experiments.by_hand import Batch, Loop, Step, Training, shared
from tests.experiments.experiments import CI, TORCH, row
from tests.experiments.recorded import assert_same_tensors, differences, journal, steps_of
from tests.experiments.script import TRAINING
from tests.warm import WarmSource

TRAININGS = [
    row("FP32"),
    row("IEEE FP32, accumulated", CI, precision="ieee", accumulate=3),
    row("bf16, a schedule", CI, precision="bf16", schedule="cosine", optimizer="momentum"),
    row("bf16, accumulated and clipped", precision="bf16", accumulate=2, clip_norm=0.05, norm=True),
    row("fp16, skips", TORCH, precision="fp16", spoilt="2,3", schedule="exponential", average=0.9),
    row("fp16, accumulated and clipped", precision="fp16", accumulate=3, clip_norm=0.05, spoilt="4"),
    row("fp16, fused, in two groups", CI, precision="fp16", optimizer="fused adam", groups=True, spoilt="3"),
    row("fp16, calibration", precision="fp16", factor=1e4, optimizer="sgd", lr=1e-4, dropout=0.2),
]


class Observed(Loop):
    """The loop by hand, which says what its epochs and batches are."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.monitor: Any = amptui.observe(self.model, self.optimizer, self.scaler)

    def epoch_numbers(self) -> Iterable[int]:
        return self.monitor.epochs(super().epoch_numbers())  # type: ignore[no-any-return]

    def batches(self, epoch: int) -> Iterable[Batch]:
        return self.monitor.steps(super().batches(epoch))  # type: ignore[no-any-return]


class Watched(Observed):
    """It takes autocast and steps from the monitor."""

    def __init__(self, training: Training) -> None:
        Loop.__init__(self, training)
        precision: Any = training.precision
        self.monitor = amptui.watch(
            self.model, self.optimizer, precision=precision, clip_norm=training.clip_norm
        )
        self.scaler = self.monitor.scaler

    def update(self, _precision: str, batches: Sequence[Batch], samples: Sequence[int]) -> Step:
        total = torch.zeros(())
        for batch in batches:
            with self.monitor.autocast():
                loss = shared(self.parts(batch)["loss"], len(batch[0]), samples)
            self.monitor.backward(loss)
            total = total + loss.detach()
        self.monitor.step()
        return {"loss": float(total)}


class WithScaler(Watched):
    """An AMP loop that has the monitor's scaler in the place of its own."""

    def update(self, _precision: str, batches: Sequence[Batch], samples: Sequence[int]) -> Step:
        total = torch.zeros(())
        self.optimizer.zero_grad()
        for batch in batches:
            with self.monitor.autocast():
                loss = shared(self.parts(batch)["loss"], len(batch[0]), samples)
            self.scaler.scale(loss).backward()
            total = total + loss.detach()
        self.scaler.unscale_(self.optimizer)
        if self.training.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"loss": float(total)}


class Whole(Watched):
    """Its steps are functions that the monitor may run again."""

    def update(self, _precision: str, batches: Sequence[Batch], _samples: Sequence[int]) -> Step:
        def compute(batch: Batch) -> Tensor:
            return self.parts(batch)["loss"]

        loss = self.monitor.train_step(*[lambda batch=batch: compute(batch) for batch in batches])
        return {"loss": loss.item()}


@pytest.mark.parametrize("kind", [Observed, Watched, WithScaler, Whole])
@pytest.mark.parametrize("training", TRAININGS)
def test_a_watched_loop_keeps_its_bits(training: Training, kind: type[Observed], runs: Path) -> None:
    recipe = {"data": "own order", "validates": False, "samples": 64}
    training = replace(training, recipe={**recipe, **training.recipe})
    expected = Loop(training).run()
    loop = kind(training)
    ledger = loop.run()
    loop.monitor.close()
    assert_same_tensors(ledger.weights, expected.weights)
    (run,) = runs.iterdir()
    for step in expected.steps:
        step.pop("grad_norm", None)  # measured now and then, before clipping
        if kind is Observed and step["precision"] == "ieee":
            step["precision"] = "fp32"  # whose meaning is the script's own
    assert differences(steps_of(journal(run)), expected.steps) == []


@pytest.mark.ci
def test_a_script_that_is_observed_from_outside_keeps_its_bits(
    tmp_path: Path, runs: Path, warm: WarmSource
) -> None:
    ended = warm.run(
        "run", "--observe", "--headless", "-m", "tests.experiments.script", str(tmp_path / "weights.pt")
    )
    assert ended.returncode == 0, ended.stderr.decode()
    expected = Loop(TRAINING).run()
    assert_same_tensors(torch.load(tmp_path / "weights.pt"), expected.weights)
    (run,) = runs.iterdir()
    for step in expected.steps:
        for name in ("grad_norm", "epoch", "samples"):  # which nobody tells, or not in every step
            del step[name]
    assert differences(steps_of(journal(run)), expected.steps) == []
