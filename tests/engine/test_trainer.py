"""The loop, run for real on the CPU."""

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from amptui import Data, DataRequest
from amptui.control import Control
from amptui.engine.trainer import HOPELESS_STEPS, LEAST_LOSS_SCALE, SETTLING_STEPS
from amptui.errors import ExperimentError, UsageError
from amptui.records import (
    BlockFinished,
    EpochFinished,
    LossScaleChanged,
    NonFinite,
    Note,
    PauseChanged,
    PhaseChanged,
    PrecisionChanged,
    Record,
    StepRecord,
    StepSkipped,
)
from tests.tiny import Exploding, Log, Tiny, prepare, train


def losses(log: Log) -> list[float | None]:
    return [record.loss for record in log.of(StepRecord)]


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
    log = Log()
    train(prepare(Tiny(epochs=20)), log)
    found = [loss for loss in losses(log) if loss is not None]
    assert sum(found[-8:]) < 0.5 * sum(found[:8])


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
    log = Log()
    train(prepare(Tiny(epochs=1)), log)
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


def switching(control: Control, at: dict[int, str]) -> Callable[[Record], None]:
    """Ask for a precision when a step's record arrives."""

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step in at:
            control.request_precision(at[record.step])

    return watch


def test_a_switch_takes_place_at_the_next_step_boundary() -> None:
    control = Control()
    log = Log(switching(control, {5: "bf16", 9: "fp32"}))
    train(prepare(Tiny()), log, control)
    assert [record.precision for record in log.of(StepRecord)] == ["fp32"] * 5 + ["bf16"] * 4 + ["fp32"] * 7
    changes = [(record.step, record.previous, record.current) for record in log.of(PrecisionChanged)]
    assert changes == [(6, "fp32", "bf16"), (10, "bf16", "fp32")]
    blocks = [(record.precision, record.steps) for record in log.of(BlockFinished)]
    assert blocks == [("fp32", 5), ("bf16", 4), ("fp32", 7)]


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.integers(1, 15), st.sampled_from(["fp32", "ieee", "fp16", "bf16"]), max_size=6))
def test_any_switching_keeps_every_step_once_and_in_order(at: dict[int, str]) -> None:
    control = Control()
    log = Log(switching(control, at))
    train(prepare(Tiny()), log, control)
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
    assert [note.text for note in log.of(Note)] == ["no tf32 here: TF32 is a format of NVIDIA GPUs"]


def test_beginning_in_an_unsupported_precision_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="tf32: TF32 is a format of NVIDIA GPUs; use one of fp32, ieee"):
        prepare(Tiny(), precision="tf32")


def test_the_first_steps_of_a_block_are_settling() -> None:
    control = Control()
    log = Log(switching(control, {20: "bf16"}))
    train(prepare(Tiny(epochs=6)), log, control)
    settling = [record.step for record in log.of(StepRecord) if record.settling]
    assert settling == [*range(1, SETTLING_STEPS + 1), *range(21, 21 + SETTLING_STEPS)]


def test_pausing_stops_the_steps_until_it_ends_and_a_switch_meanwhile_counts() -> None:
    control = Control()
    paused = threading.Event()

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == 4:
            control.request_pause(True)
        if isinstance(record, PauseChanged) and record.paused:
            paused.set()
        if isinstance(record, PrecisionChanged):
            control.request_pause(False)

    log = Log(watch)
    thread = threading.Thread(target=train, args=(prepare(Tiny()), log, control))
    thread.start()
    assert paused.wait(10)
    seen = len(losses(log))
    control.request_precision("bf16")
    thread.join(10)
    assert not thread.is_alive()
    assert seen == 4
    assert [record.paused for record in log.of(PauseChanged)] == [True, False]
    assert [record.precision for record in log.of(StepRecord)] == ["fp32"] * 4 + ["bf16"] * 12


def test_stopping_ends_after_the_current_step_with_everything_reported() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, StepRecord) and record.step == 5:
            control.request_stop("test")

    log = Log(watch)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert len(losses(log)) == 5
    assert [block.steps for block in log.of(BlockFinished)] == [5]


def test_stopping_ends_a_pause() -> None:
    control = Control()
    control.request_pause(True)
    log = Log(lambda record: control.request_stop("test") if isinstance(record, PauseChanged) else None)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert losses(log) == []


def test_stopping_ends_a_validation() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PhaseChanged) and record.phase == "validating":
            control.request_stop("test")

    log = Log(watch)
    assert train(prepare(Tiny()), log, control) == "stopped"
    assert log.of(EpochFinished) == []


def test_clipping_bounds_the_update_and_reports_the_norm_from_before() -> None:
    class Plain(Tiny):
        def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=1.0)

    free, clipped = prepare(Plain(), steps=1), prepare(Plain(), steps=1, clip_norm=0.01)
    before = torch.cat([p.detach().flatten().clone() for p in clipped.model.parameters()])
    free_log, clipped_log = Log(), Log()
    train(free, free_log)
    train(clipped, clipped_log)
    after = torch.cat([p.detach().flatten() for p in clipped.model.parameters()])
    assert torch.linalg.vector_norm(after - before).item() == pytest.approx(0.01, rel=1e-3)
    norms = [log.of(StepRecord)[0].grad_norm for log in (free_log, clipped_log)]
    assert norms[0] == pytest.approx(norms[1])
    assert (norms[0] or 0) > 0.05


@pytest.mark.parametrize("clip_norm", [None, 1e6])
def test_the_norm_in_fp16_is_unscaled(clip_norm: float | None) -> None:
    full, half = Log(), Log()
    train(prepare(Tiny(), steps=1), full)
    train(prepare(Tiny(), steps=1, precision="fp16", clip_norm=clip_norm), half)
    norms = [log.of(StepRecord)[0].grad_norm for log in (full, half)]
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def test_fp16_skips_where_gradients_overflow_and_applies_once_the_scale_fits() -> None:
    prepared = prepare(Exploding(epochs=8), precision="fp16")
    log = Log()
    train(prepared, log)
    steps, skips = log.of(StepRecord), log.of(StepSkipped)
    assert skips
    assert [skip.consecutive for skip in skips[:3]] == [1, 2, 3][: len(skips)]
    assert steps[0].skipped
    assert steps[0].loss_scale == 65536
    assert not steps[-1].skipped
    assert skips[0].count > 0
    assert skips[0].names[0] in dict(prepared.model.named_parameters())
    backoffs = [change for change in log.of(LossScaleChanged) if change.reason == "backoff"]
    assert [change.step for change in backoffs] == [skip.step for skip in skips]
    assert all(change.current == change.previous / 2 for change in backoffs)
    assert log.of(NonFinite) == []
    assert steps[-1].loss_scale == prepared.scaler.get_scale()


def test_a_skipped_step_changes_no_weight() -> None:
    prepared = prepare(Exploding(), precision="fp16", steps=1)
    before = [p.detach().clone() for p in prepared.model.parameters()]
    log = Log()
    train(prepared, log)
    assert log.of(StepRecord)[0].skipped
    assert all(torch.equal(a, b) for a, b in zip(before, prepared.model.parameters(), strict=True))


def test_the_scale_grows_after_its_interval_and_the_growth_is_told() -> None:
    prepared = prepare(Tiny(), precision="fp16")
    prepared.scaler.set_growth_interval(4)
    log = Log()
    train(prepared, log)
    growths = [change for change in log.of(LossScaleChanged) if change.reason == "growth"]
    assert growths[0].current == 2 * growths[0].previous
    assert growths[0].step == 4
    assert [record.growth_tracker for record in log.of(StepRecord)[:4]] == [1, 2, 3, 0]


def test_the_scaler_stands_still_while_other_precisions_run() -> None:
    control = Control()
    log = Log(switching(control, {4: "fp32", 12: "fp16"}))
    train(prepare(Tiny(epochs=3), precision="fp16"), log, control)
    trackers = [r.growth_tracker for r in log.of(StepRecord) if r.precision == "fp16"]
    assert trackers[:4] == [1, 2, 3, 4]
    assert trackers[4] == 5
    assert all(r.loss_scale is None for r in log.of(StepRecord) if r.precision == "fp32")


class NanAt(Tiny):
    at: int = 3

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls = getattr(self, "calls", 0) + model.training
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        return loss * math.nan if self.calls == self.at else loss


def test_nan_is_told_with_the_names_of_the_gradients_and_training_goes_on() -> None:
    prepared = prepare(NanAt(), precision="bf16")
    log = Log()
    assert train(prepared, log) == "done"
    found = log.of(NonFinite)
    assert (found[0].step, found[0].what, found[0].kind) == (3, "loss", "nan")
    assert (found[1].step, found[1].what, found[1].kind) == (3, "gradient", "nan")
    assert set(found[1].names) <= set(dict(prepared.model.named_parameters()))
    assert found[1].count == len(list(prepared.model.parameters()))


def test_nan_in_fp16_skips_the_step_and_the_next_loss_is_finite() -> None:
    log = Log()
    train(prepare(NanAt(), precision="fp16"), log)
    steps = log.of(StepRecord)
    assert steps[2].skipped
    assert math.isnan(steps[2].loss or 0)
    assert math.isfinite(steps[3].loss or math.nan)
    assert [skip.step for skip in log.of(StepSkipped)] == [3]


class NanFromTheStart(Tiny):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        return loss * math.nan


def test_nan_from_step_one_on_ends_the_run_with_the_mend() -> None:
    log = Log()
    with pytest.raises(ExperimentError, match=r"the loss is nan from step 1 on.*--lr"):
        train(prepare(NanFromTheStart()), log)
    assert len(losses(log)) == HOPELESS_STEPS


class InfFor(Tiny):
    epochs: int = 20
    calls_with_inf: int = 10**9

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls = getattr(self, "calls", 0) + model.training
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        return loss * math.inf if self.calls <= self.calls_with_inf else loss


def test_a_collapsed_scale_ends_an_unattended_run_before_it_reaches_zero() -> None:
    prepared = prepare(InfFor(), precision="fp16")
    log = Log()
    with pytest.raises(ExperimentError, match=r"the loss scale fell to .* use --precision bf16 or fp32"):
        train(prepared, log)
    assert LEAST_LOSS_SCALE / 4 < prepared.scaler.get_scale() < LEAST_LOSS_SCALE


def test_a_collapsed_scale_pauses_an_attended_run_which_another_precision_saves() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PauseChanged) and record.paused:
            control.request_precision("bf16")
        if isinstance(record, PrecisionChanged):
            control.request_pause(False)

    log = Log(watch)
    prepared = prepare(InfFor(calls_with_inf=41), precision="fp16", steps=60)
    assert train(prepared, log, control, attended=True) == "done"
    assert "paused: the loss scale fell to" in log.of(Note)[0].text
    assert log.of(StepRecord)[-1].precision == "bf16"


class Parts(Tiny):
    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        total = super().loss(model, batch)
        assert isinstance(total, Tensor)
        return {"loss": 1.5 * total, "a": total, "b": total}


def test_parts_of_the_loss_are_reported_by_name() -> None:
    log = Log()
    train(prepare(Parts(epochs=1)), log)
    record = log.of(StepRecord)[0]
    assert set(record.losses) == {"a", "b"}
    assert record.loss == pytest.approx(1.5 * record.losses["a"])
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert epoch.validation.loss is not None


def returning(value: Any) -> Tiny:
    class Bad(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            return value(model(batch[0]))

    return Bad()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda out: out, r"Bad.loss\(\) returned a tensor of shape 8x4; reduce it to a scalar"),
        (lambda out: out.sum().item(), r"Bad.loss\(\) returned a float; return a scalar tensor"),
        (lambda out: None, r"Bad.loss\(\) returned None; return a scalar tensor"),
        (lambda out: out.sum().detach(), r"Bad.loss\(\) returned a tensor without a gradient"),
        (lambda out: {"a": out.sum()}, r"Bad.loss\(\) returned a dict without 'loss'; name the total"),
    ],
)
def test_a_loss_that_no_step_can_use_is_told_in_one_line(value: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        train(prepare(returning(value)), Log())


def test_an_optimizer_that_is_not_fused_skips_too() -> None:
    class Unfused(Exploding):
        def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.RMSprop(model.parameters(), lr=0.01)

    log = Log()
    train(prepare(Unfused(), precision="fp16"), log)
    assert log.of(StepRecord)[0].skipped
    assert log.of(StepSkipped)


def test_a_data_loader_of_ones_own_is_used_as_it_is() -> None:
    class Loader(Tiny):
        def load_data(self, request: DataRequest) -> Data:
            pairs = TensorDataset(torch.rand(20, 1, 4, 4), torch.randint(0, 4, (20,)))
            return Data(name="pairs", real=True, train=DataLoader(pairs, batch_size=6))

    log = Log()
    train(prepare(Loader(epochs=1)), log)
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
