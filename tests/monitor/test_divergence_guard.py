"""A run whose weights hold NaN is not trained to its end: within ten steps it fails, or pauses and asks."""

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from amptui.base.errors import ExperimentError
from amptui.checkpoint.file import checkpoints, read
from amptui.data.sources import Arrays, Data, DataRequest
from amptui.monitor.divergence_guard import SUSPECT_STEPS
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.findings import ModulesTraced
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import NonFinite, PauseChanged, Record
from amptui.telemetry.health import judge_trace
from tests.tiny import Log, Spoiled, Tiny, losses, prepare, resume, train

WITHIN_STEPS = 10


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["fp32", "ieee", "bf16"])
@settings(max_examples=8)
@given(at=st.integers(2, 40))
def test_a_non_interactive_run_fails_within_ten_steps_and_names_the_checkpoint(
    precision: str, at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    log = Log()
    with pytest.raises(ExperimentError, match=f"the loss has been nan since step {at}, and ") as failed:
        train(prepare(Spoiled(at=at), precision=precision), log, checkpoints=folder)
    assert at < len(losses(log)) <= at + WITHIN_STEPS
    assert next(r.step for r in log.of(NonFinite) if r.what == "loss") == at
    trace = log.of(ModulesTraced)[0]
    assert (trace.step > at, trace.first, trace.nearest) == (True, None, ())
    assert "4.weight" in trace.lost
    assert judge_trace(trace).state == "weights lost"
    written = checkpoints(folder)
    if written:
        assert f"{written[0].name}: amptui train --resume" in failed.value.hint
        assert int(written[0].stem.removeprefix("step-")) < at
        # From there another training of it goes on to its end.
        again = Log()
        assert resume(prepare(Spoiled(at=1000), precision=precision), folder, again) == "done"
        assert all(math.isfinite(loss or math.nan) for loss in losses(again))
    else:
        assert at <= 8
        assert "there is no earlier checkpoint" in failed.value.hint


class BadRow(Tiny):
    """One sample of its data is NaN."""

    def load_data(self, request: DataRequest) -> Data:
        data = super().load_data(request)
        assert isinstance(data.train, Arrays)
        inputs = data.train.inputs.float()
        inputs[5] = math.nan
        return replace(data, train=Arrays(inputs, data.train.targets), validation=None)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_bad_sample_is_found_in_its_own_batch_and_no_precision_is_blamed(precision: str) -> None:
    log = Log()
    with suppress(ExperimentError):  # a scaler skips the step, and the run goes on
        train(prepare(BadRow(), precision=precision), log)
    first, *others = log.of(ModulesTraced)
    assert first.step == next(record for record in log.of(NonFinite) if record.what == "loss").step
    assert (first.cause, first.inputs, judge_trace(first).state) == ("input", ("0",), "bad input")
    assert not others


@pytest.mark.parametrize(("answer", "last"), [("stop", "stopped"), ("go on", "done")])
def test_an_interactive_run_pauses_once_and_names_the_checkpoint(
    answer: str, last: str, tmp_path: Path
) -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PauseChanged) and record.paused:
            if answer == "stop":
                control.ask(RequestMade("stop", reason="the person"))
            control.ask(RequestMade("pause", paused=False))

    log = Log(watch)
    prepared = prepare(Spoiled(), precision="bf16")
    assert train(prepared, log, control, interactive=True, checkpoints=tmp_path) == last
    pauses = [record for record in log.of(PauseChanged) if record.paused]
    assert [record.cause for record in pauses] == ["weights"]
    assert pauses[0].step <= 12 + WITHIN_STEPS
    assert "parameters contain NaN" in pauses[0].reason
    assert len(losses(log)) == (64 if answer == "go on" else pauses[0].step)
    # What came after the NaN did not push out what is good.
    assert [record.name for record in log.of(CheckpointWritten)] == ["step-000000008.pt"]
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000008.pt"]
    told = [change.trouble for change in log.of(KeepingChanged)]
    assert answer == "stop" or "contains NaN (earlier checkpoints are kept)" in told[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("steps", [1, 2 * SUSPECT_STEPS + 1])
def test_nonfinite_losses_alone_do_not_end_a_run(value: float, steps: int) -> None:
    log, prepared = Log(), prepare(Spoiled(value=value, steps=steps, weights_too=False))
    assert train(prepared, log) == "done"
    assert len(losses(log)) == 64
    assert len([record for record in log.of(NonFinite) if record.what == "loss"]) == steps
    assert not any(parameter.isnan().any() for parameter in prepared.model.parameters())


@pytest.mark.parametrize("interactive", [False, True])
def test_a_run_without_a_finite_loss_fails_with_the_mend_and_asks_nobody(
    interactive: bool,
) -> None:
    log = Log()
    with pytest.raises(ExperimentError, match=r"the loss has been nan since step 1, and 6 of 6 .*--lr"):
        train(prepare(Spoiled(at=1, steps=1000)), log, interactive=interactive)
    assert len(losses(log)) == SUSPECT_STEPS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("precision", ["fp32", "ieee", "bf16"])
def test_a_gpu_s_weights_are_checked_in_time_without_waiting(precision: str) -> None:
    log = Log()
    with pytest.raises(ExperimentError, match="the loss has been nan since step 30, and 6 of 6 parameters"):
        train(prepare(Spoiled(at=30), precision=precision, device="cuda"), log)
    assert 30 < len(losses(log)) <= 30 + WITHIN_STEPS


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
