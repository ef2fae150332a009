"""The loop, run for real on the CPU."""

import math
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from amptui import Data, DataRequest
from amptui.base.errors import UsageError
from amptui.engine.warm_up import MAX_STEPS, MIN_STEPS
from amptui.records.control import Control, PauseRequest, PrecisionRequest, StopRequest
from amptui.records.run import (
    BlockFinished,
    EpochFinished,
    Note,
    PauseChanged,
    PhaseChanged,
    PrecisionChanged,
    Record,
)
from amptui.records.steps import StepRecord
from tests.tiny import NO_TF32, Log, Tiny, log_of, losses, prepare, switching, train


@pytest.mark.parametrize("precision", ["fp32", "ieee", "bf16", "fp16"])
def test_same_seed_and_precision_give_the_same_losses_twice(precision: str) -> None:
    first, second = Log(), Log()
    for log in (first, second):
        train(prepare(Tiny(), precision=precision, seed=7), log)
    assert losses(first) == losses(second)
    assert len(losses(first)) == 16


def test_another_seed_gives_other_losses() -> None:
    first, second = Log(), Log()
    train(prepare(Tiny(), seed=1), first)
    train(prepare(Tiny(), seed=2), second)
    assert losses(first) != losses(second)


def test_steps_are_counted_from_one_without_a_gap_and_epochs_too() -> None:
    log = Log()
    assert train(prepare(Tiny(epochs=3)), log) == "done"
    steps = log.of(StepRecord)
    assert [record.step for record in steps] == list(range(1, 25))
    assert [record.epoch for record in steps] == [1] * 8 + [2] * 8 + [3] * 8
    assert all(record.samples == 8 for record in steps)


def test_training_lowers_the_loss() -> None:
    log = log_of(prepare(Tiny(epochs=20)))
    finite_losses = [loss for loss in losses(log) if loss is not None]
    assert sum(finite_losses[-8:]) < 0.5 * sum(finite_losses[:8])


def test_steps_alone_run_as_many_epochs_as_it_takes() -> None:
    log = Log()
    assert train(prepare(Tiny(epochs=1), steps=20), log) == "done"
    assert len(losses(log)) == 20
    assert len(log.of(EpochFinished)) == 2


def test_steps_end_a_run_within_an_epoch() -> None:
    log = Log()
    assert train(prepare(Tiny(epochs=5), steps=3), log) == "done"
    assert len(losses(log)) == 3
    assert log.of(EpochFinished) == []


def test_an_epoch_ends_with_its_validation() -> None:
    log = log_of(prepare(Tiny(epochs=1)))
    (epoch,) = log.of(EpochFinished)
    assert epoch.step == 8
    assert epoch.mean_loss == pytest.approx(sum(loss or 0 for loss in losses(log)) / 8)
    assert epoch.validation is not None
    assert epoch.validation.samples == 64
    assert epoch.validation.loss is not None
    assert 0 <= (epoch.validation.accuracy or -1) <= 1
    assert epoch.seconds == pytest.approx(sum(record.step_seconds or 0 for record in log.of(StepRecord)))


def test_validation_leaves_the_model_as_it_was() -> None:
    class Frozen(Tiny):
        def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            batch_norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm1d))
            batch_norm.eval()
            return super().build_optimizer(model)

        def load_data(self, request: DataRequest) -> Data:
            return super().load_data(request)

    prepared = prepare(Frozen(epochs=1))
    batch_norm = next(m for m in prepared.model.modules() if isinstance(m, nn.BatchNorm1d))
    batch_norm.eval()
    train(prepared, Log())
    assert not batch_norm.training
    assert prepared.model.training


def test_a_switch_takes_place_at_the_next_step_boundary() -> None:
    log = log_of(prepare(Tiny()), at={5: "bf16", 9: "fp32"})
    assert [record.precision for record in log.of(StepRecord)] == ["fp32"] * 5 + ["bf16"] * 4 + ["fp32"] * 7
    changes = [(record.step, record.previous, record.current) for record in log.of(PrecisionChanged)]
    assert changes == [(6, "fp32", "bf16"), (10, "bf16", "fp32")]
    blocks = [(record.precision, record.steps) for record in log.of(BlockFinished)]
    assert blocks == [("fp32", 5), ("bf16", 4), ("fp32", 7)]


@given(st.dictionaries(st.integers(1, 15), st.sampled_from(["fp32", "ieee", "fp16", "bf16"]), max_size=6))
def test_any_switching_keeps_every_step_once_and_in_order(at: dict[int, str]) -> None:
    log = log_of(prepare(Tiny()), at=at)
    steps = log.of(StepRecord)
    assert [record.step for record in steps] == list(range(1, 17))
    expected, now = [], "fp32"
    for step in range(1, 17):
        expected.append(now)
        now = at.get(step, now)
    assert [record.precision for record in steps] == expected
    assert all(math.isfinite(record.loss or math.nan) for record in steps)
    assert sum(record.steps for record in log.of(BlockFinished)) == 16


def test_an_unsupported_precision_is_refused_and_training_goes_on() -> None:
    control = Control()
    log = Log(switching(control, {3: "tf32"}))
    assert train(prepare(Tiny()), log, control) == "done"
    assert log.of(PrecisionChanged) == []
    assert [note.text for note in log.of(Note)] == [f"no tf32 here: {NO_TF32}"]


def test_beginning_in_an_unsupported_precision_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=f"tf32: {NO_TF32}; use one of "):
        prepare(Tiny(), precision="tf32")


def test_the_first_steps_of_a_block_are_settling() -> None:
    log = log_of(prepare(Tiny(epochs=15)), at={60: "bf16"})
    for precision, first in (("fp32", 1), ("bf16", 61)):
        steps = [record for record in log.of(StepRecord) if record.precision == precision]
        settling = [record.step for record in steps if record.settling]
        assert MIN_STEPS <= len(settling) <= MAX_STEPS
        assert settling == list(range(first, first + len(settling)))


def test_pausing_stops_the_steps_until_it_ends_and_a_switch_meanwhile_counts() -> None:
    control = Control()
    paused = threading.Event()

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == 4:
            control.ask(PauseRequest(True))
        if isinstance(record, PauseChanged) and record.paused:
            paused.set()
        if isinstance(record, PrecisionChanged):
            control.ask(PauseRequest(False))

    log = Log(watch)
    thread = threading.Thread(target=train, args=(prepare(Tiny()), log, control))
    thread.start()
    assert paused.wait(60)
    delivered = len(losses(log))
    control.ask(PrecisionRequest("bf16"))
    thread.join(60)
    assert not thread.is_alive()
    assert delivered == 4
    assert [record.paused for record in log.of(PauseChanged)] == [True, False]
    assert [record.precision for record in log.of(StepRecord)] == ["fp32"] * 4 + ["bf16"] * 12


def test_stopping_ends_after_the_current_step_with_everything_reported() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == 5:
            control.ask(StopRequest("test"))

    log = Log(watch)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert len(losses(log)) == 5
    assert [block.steps for block in log.of(BlockFinished)] == [5]


def test_stopping_ends_a_pause() -> None:
    control = Control()
    control.ask(PauseRequest(True))
    log = Log(lambda record: control.ask(StopRequest("test")) if isinstance(record, PauseChanged) else None)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert losses(log) == []


def test_stopping_ends_a_validation() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PhaseChanged) and record.phase == "validating":
            control.ask(StopRequest("test"))

    log = Log(watch)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert log.of(EpochFinished) == []


def test_a_data_loader_of_ones_own_is_used_as_it_is() -> None:
    class Loader(Tiny):
        def load_data(self, request: DataRequest) -> Data:
            pairs = TensorDataset(torch.rand(20, 1, 4, 4), torch.randint(0, 4, (20,)))
            return Data(name="pairs", real=True, train=DataLoader(pairs, batch_size=6))

    log = log_of(prepare(Loader(epochs=1)))
    assert [record.samples for record in log.of(StepRecord)] == [6, 6, 6, 2]
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is None


def test_a_stream_without_a_length_runs_to_its_end() -> None:
    class Stream(IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for i in range(24):
                yield torch.rand(1, 4, 4), torch.tensor(i % 4)

    class Streaming(Tiny):
        def load_data(self, request: DataRequest) -> Data:
            return Data(name="stream", real=True, train=Stream())

    log = Log()
    assert train(prepare(Streaming(epochs=2)), log) == "done"
    assert len(losses(log)) == 6
