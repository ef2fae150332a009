"""One Inf among the gradients of a precision without a scaler: found, stopped, and there is a way back."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui.base.errors import ExperimentError
from amptui.engine.checkpoint.file import checkpoints, read
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import NonFinite, Note
from tests.tiny import Log, Tiny, log_of, losses, prepare, train

WITHIN_STEPS = 10


class Worded(nn.Module):
    """A small network, and an embedding of two words, of which it reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
        self.words = nn.Embedding(2, 4)

    def forward(self, inputs: Tensor, word: int = 0) -> Tensor:
        logits: Tensor = self.layers(inputs) + self.words(inputs.new_full((len(inputs),), word).long())
        return logits


class InfGradient(Tiny):
    """In one step the gradient of the word that it reads is Inf in one place, and the loss is finite."""

    epochs: int = 8
    """Of eight steps each."""
    at: int = 12
    rare: int = 0
    """Only the step of the trouble reads that word, and each seventh from this one on; 0: each reads it."""

    def build_model(self) -> nn.Module:
        model = Worded()
        self.calls = 0
        model.words.weight.register_hook(self.spoil)
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate)

    def spoil(self, gradient: Tensor) -> Tensor:
        if self.calls == self.at:
            gradient = gradient.clone()
            gradient[1, 2] = math.inf
        return gradient

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        self.calls += model.training
        again = self.calls >= self.rare and (self.calls - self.rare) % 7 == 0
        word = int(not self.rare or self.calls == self.at or again)
        return functional.cross_entropy(model(inputs, word if model.training else 0), targets)


def fail(experiment: Tiny, log: Log, folder: Path, **options: Any) -> ExperimentError:
    with pytest.raises(ExperimentError, match="parameters contain NaN") as failed:
        train(prepare(experiment, **options), log, checkpoints=folder)
    return failed.value


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_that_hold_inf_and_no_nan_yet_are_no_checkpoint_to_go_back_to(
    precision: str, tmp_path: Path
) -> None:
    # SGD makes -Inf of it, after the last step of an epoch, and nothing else is wrong when that is written.
    log = Log()
    error = fail(InfGradient(at=16), log, tmp_path, precision=precision)
    assert [record.name for record in log.of(CheckpointWritten)] == ["step-000000008.pt"]
    (checkpoint_file,) = checkpoints(tmp_path)
    assert all(bool(value.isfinite().all()) for value in read(checkpoint_file).model.values())
    assert checkpoint_file.name in error.hint


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("at", "rare", "options", "bad_losses"),
    [
        (12, 10_000, {"clip_norm": 1.0}, 0),
        (63, 10_000, {"clip_norm": 1.0}, 0),
        # Without probes nothing but the loss of step 20 tells; the steps after it do not read that word.
        (12, 20, {"probes": False}, 1),
    ],
    ids=["in the norm that clipping used", "at the end", "in a loss that recovers"],
)
def test_what_hardly_shows_is_found_within_ten_steps(
    precision: str, at: int, rare: int, options: dict[str, Any], bad_losses: int, tmp_path: Path
) -> None:
    log = Log()
    error = fail(InfGradient(at=at, rare=rare), log, tmp_path, precision=precision, **options)
    assert sum(not math.isfinite(loss or math.nan) for loss in losses(log)) == bad_losses
    shown = at if bad_losses == 0 else rare
    assert shown < len(losses(log)) <= min(64, shown + WITHIN_STEPS)
    assert "0000008.pt" in error.hint or at == 63
    assert bad_losses or "1 of 5 parameters" in error.what


class Masked(Tiny):
    """One of its parameters is a mask of -Inf, and one batch is bad."""

    epochs: int = 4

    def build_model(self) -> nn.Module:
        model = super().build_model()
        mask = torch.zeros(4)
        mask[3] = -math.inf
        model.mask = nn.Parameter(mask)
        self.calls = 0
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        self.calls += model.training
        assert isinstance(model.mask, Tensor)
        loss = functional.cross_entropy(model(inputs) + model.mask, targets.clamp(max=2))
        return loss + math.inf if self.calls == 12 else loss


@pytest.mark.parametrize("precision", ["ieee", "bf16"])
def test_inf_that_was_there_from_the_start_is_meant(precision: str, tmp_path: Path) -> None:
    log = Log()
    assert train(prepare(Masked(), precision=precision), log, checkpoints=tmp_path) == "done"
    assert [record.step for record in log.of(NonFinite) if record.what == "loss"] == [12]
    assert [record.step for record in log.of(CheckpointWritten)][-1] == 32


@pytest.mark.parametrize(
    ("start", "switches", "notes"),
    [
        ("fp32", {3: "bf16", 6: "fp32", 9: "bf16"}, 1),
        ("fp16", {3: "fp32"}, 1),
        ("fp16", {3: "ieee", 6: "bf16"}, 1),
        ("fp32", {3: "fp16"}, 0),
        ("fp32", {3: "ieee", 6: "fp32"}, 0),
        ("bf16", {}, 0),
    ],
)
def test_a_switch_that_leaves_the_scaler_out_says_so_once(
    start: str, switches: dict[int, str], notes: int
) -> None:
    log = log_of(prepare(Tiny(), precision=start, steps=14), at=switches)
    assert sum("has no loss scaler" in note.text for note in log.of(Note)) == notes
