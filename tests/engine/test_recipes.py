"""A whole recipe (schedule, accumulation, clipping, EMA) trains as the same loop written by hand."""

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR, ReduceLROnPlateau, SequentialLR

from amptui.base.errors import ExperimentError, UsageError
from amptui.data.sources import Arrays
from amptui.engine.lr_schedule import LrSchedule
from amptui.engine.prepared import Prepared
from amptui.records.control import Control
from amptui.records.run import EpochFinished, Validated
from amptui.records.steps import StepRecord
from tests.engine.recipes import Recipe, sizes_of, train_by_hand
from tests.tiny import Log, Tiny, prepare, resume, stopping, switching, train


def weights(prepared: Prepared) -> dict[str, Tensor]:
    return dict(prepared.model.state_dict())


def averages(prepared: Prepared) -> dict[str, Tensor]:
    assert isinstance(prepared.experiment, Recipe)
    return dict(prepared.experiment.ema.state_dict())


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.mark.parametrize("look_interval_seconds", [0.0, 3600.0], ids=["looked at", "between looks"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_recipe_trains_as_one_written_by_hand(
    precision: str, accumulate: int, clip_norm: float | None, look_interval_seconds: float
) -> None:
    spoilt = "3,6,17" if precision == "fp16" else ""
    options: dict[str, Any] = {"precision": precision, "accumulate": accumulate, "clip_norm": clip_norm}
    log, ours = Log(), prepare(Recipe(spoilt=spoilt), **options)
    train(ours, log, look_interval_seconds=look_interval_seconds)
    by_hand = prepare(Recipe(spoilt=spoilt), **options)
    assert isinstance(by_hand.experiment, Recipe)
    train_by_hand(by_hand, by_hand.experiment, accumulate=accumulate, clip_norm=clip_norm)
    assert_same(weights(ours), weights(by_hand))
    assert_same(averages(ours), averages(by_hand))
    records = log.of(StepRecord)
    assert sum(record.skipped for record in records) == (3 if spoilt else 0)
    sizes = [size for epoch in (1, 2) for size in sizes_of(by_hand, epoch)]
    assert sum(record.samples for record in records) == sum(sizes)
    assert sum(record.micro_batches for record in records) == len(sizes)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_skipped_step_does_not_advance_the_schedule(accumulate: int) -> None:
    log = Log()
    train(prepare(Recipe(spoilt="2,9"), precision="fp16", accumulate=accumulate), log)
    records = log.of(StepRecord)
    assert sum(record.skipped for record in records) == 2
    for before, after in pairwise(records):
        assert (before.lr == after.lr) == before.skipped
        assert after.group_lrs == (after.lr, 2 * (after.lr or 0))


def test_the_loss_of_a_step_is_the_mean_over_its_samples() -> None:
    class Uneven(Tiny):
        def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
            _, targets = batch
            total = model(batch[0]).sum() * 0 + targets.float().mean()
            return {"loss": total, "half": total / 2}

        def load_data(self, request: Any) -> Any:
            data = super().load_data(request)
            assert isinstance(data.train, Arrays)
            loader = torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(data.train.inputs.float(), data.train.targets), batch_size=24
            )
            return type(data)("uneven", False, loader)

    log, prepared = Log(), prepare(Uneven(epochs=1), accumulate=3)
    targets = torch.cat([batch[1] for batch in prepared.training.epoch(1)]).float()
    train(prepared, log)
    (record,) = log.of(StepRecord)
    assert (record.samples, record.micro_batches) == (64, 3)
    assert record.loss == pytest.approx(targets.mean().item(), rel=1e-6)
    assert record.losses["half"] == pytest.approx(targets.mean().item() / 2, rel=1e-6)


def test_an_epoch_whose_batches_do_not_fill_its_last_step_trains_on_all_of_them() -> None:
    log, prepared = Log(), prepare(Recipe(), accumulate=4)
    assert (prepared.schedule.steps_per_epoch, prepared.schedule.steps) == (3, 6)
    train(prepared, log)
    assert [record.micro_batches for record in log.of(StepRecord)] == [4, 4, 3] * 2
    assert [record.step for record in log.of(EpochFinished)] == [3, 6]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("cut", [1, 3, 4, 5])
def test_a_run_that_was_stopped_goes_on_in_its_schedule_bit_for_bit(
    cut: int, precision: str, tmp_path: Path
) -> None:
    def make() -> Recipe:
        return Recipe(epochs=2)

    options: dict[str, Any] = {"precision": precision, "accumulate": 4, "clip_norm": 1.0}
    whole, first, second = Log(), Log(), Log()
    uninterrupted, resumed = prepare(make(), **options), prepare(make(), **options)
    train(uninterrupted, whole)
    control = Control()
    first.watch = stopping(control, cut)
    assert train(prepare(make(), **options), first, control, checkpoints=tmp_path) == "stopped"
    assert resume(resumed, tmp_path, second) == "done"
    assert_same(weights(uninterrupted), weights(resumed))
    assert_same(averages(uninterrupted), averages(resumed))
    lrs = [record.lr for log in (first, second) for record in log.of(StepRecord)]
    assert lrs == [record.lr for record in whole.of(StepRecord)]


def test_another_accumulation_is_refused_and_an_older_checkpoint_had_none(tmp_path: Path) -> None:
    control = Control()
    log = Log(stopping(control, 3))
    train(prepare(Tiny()), log, control, checkpoints=tmp_path)
    with pytest.raises(UsageError, match="accumulate 1, but now it is 2"):
        resume(prepare(Tiny(), accumulate=2), tmp_path, Log())


# --------------------------------------------------------------- the schedule where a device counts


def followed(optimizer: Optimizer, scheduler: LRScheduler) -> LrSchedule:
    return LrSchedule(scheduler, optimizer, interval="step", on_device=True)


@pytest.mark.parametrize("kind", ["cosine", "chained", "sequence"])
def test_the_device_s_schedule_is_the_host_s(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are skipped, and the table is made anew several times, late or early."""
    monkeypatch.setattr("amptui.engine.lr_schedule.TABLE_STEPS", 40)
    monkeypatch.setattr("amptui.engine.lr_schedule.REFILL_STEPS", 7)

    def build() -> tuple[nn.Module, Optimizer, LRScheduler]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}]
        optimizer = torch.optim.SGD(groups, lr=0.1, fused=True)
        if kind == "cosine":
            return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
        if kind == "chained":
            return model, optimizer, ExponentialLR(optimizer, 0.97)
        parts: list[LRScheduler] = [ExponentialLR(optimizer, 1.1), ExponentialLR(optimizer, 0.9)]
        return model, optimizer, SequentialLR(optimizer, parts, milestones=[30])

    model, optimizer, scheduler = build()
    schedule, scaler = followed(optimizer, scheduler), torch.amp.GradScaler("cpu", init_scale=2.0)
    _, expected_optimizer, expected = build()
    generator = torch.Generator().manual_seed(1)
    used, wanted, asked = [], [], None
    for step in range(300):
        spoilt = torch.rand((), generator=generator).item() < 0.3
        scaler.scale(model(torch.full((1, 3), torch.inf if spoilt else 1.0)).sum()).backward()
        schedule.before_update(scaled=True)
        used.append([float(group["lr"]) for group in optimizer.param_groups])
        wanted.append([float(group["lr"]) for group in expected_optimizer.param_groups])
        scaler.step(optimizer)
        found_inf = next(iter(scaler._found_inf_per_device(optimizer).values()))
        zero = torch.zeros(())
        schedule.after_update(type("Tensors", (), {"found_inf": found_inf, "scale": zero})())
        scaler.update()
        optimizer.zero_grad()
        if not spoilt:
            expected_optimizer.step()
            expected.step()
        if asked is not None and step % 3 == 0:
            schedule.refill(asked)
            asked = None
        elif asked is None and (tensor := schedule.request_applied()) is not None and step < 200:
            asked = tensor.item()
    assert schedule.follows_on_device
    assert torch.allclose(torch.tensor(used), torch.tensor(wanted), rtol=1e-6, atol=0.0)
    state = schedule.state_dict()
    assert state["last_epoch"] == expected.state_dict()["last_epoch"]
    with schedule.as_numbers():
        held = [group["lr"] for group in optimizer.param_groups]
    assert held == [group["lr"] for group in expected_optimizer.param_groups]


def test_a_scheduler_that_changes_momentum_is_stepped_by_the_host() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    schedule = followed(optimizer, OneCycleLR(optimizer, 0.1, total_steps=2000))
    before = [dict(group) for group in optimizer.param_groups]
    schedule.before_update(scaled=True)
    assert not schedule.follows_on_device
    assert schedule.reason_to_wait == "OneCycleLR changes more than the learning rate"
    assert [dict(group) for group in optimizer.param_groups] == before


def test_a_scheduler_may_end_before_the_table_does() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    cycle = OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=False)
    schedule = followed(optimizer, cycle)
    schedule.before_update(scaled=True)
    assert schedule.follows_on_device
    assert not schedule.reason_to_wait


@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_that_is_not_fused_is_followed_by_the_host(fused: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    schedule = followed(optimizer, ExponentialLR(optimizer, 0.9))
    schedule.before_update(scaled=False)
    assert not schedule.follows_on_device  # no step of these can be skipped
    schedule.before_update(scaled=True)
    assert schedule.follows_on_device == fused


# ----------------------------------------------------------------------------- schedules of epochs


class Plateau(Tiny):
    scheduler_interval: ClassVar[Literal["step", "epoch"]] = "epoch"

    def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler:
        del total_steps
        return ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=10.0)


def test_a_schedule_of_epochs_gets_the_validation_loss_and_moves_after_the_epoch() -> None:
    log = Log()
    train(prepare(Plateau(epochs=4, learning_rate=0.5)), log)
    steps = log.of(StepRecord)
    by_epoch = [{round(step.lr or 0.0, 6) for step in steps if step.epoch == epoch} for epoch in range(1, 5)]
    # A relative threshold of 10 takes nothing for an improvement.
    assert by_epoch == [{0.5}, {0.05}, {0.005}, {0.0005}]


def test_a_plateau_s_scheduler_after_each_step_is_refused() -> None:
    class Wrong(Plateau):
        scheduler_interval: ClassVar[Literal["step", "epoch"]] = "step"

    with pytest.raises(ExperimentError, match="needs a metric after each epoch"):
        prepare(Wrong())


def test_an_unknown_interval_is_refused() -> None:
    class Wrong(Recipe):
        scheduler_interval: ClassVar[Any] = "steps"

    with pytest.raises(ExperimentError, match='scheduler_interval is \'steps\'; set it to "step" or "epoch"'):
        prepare(Wrong())


class Ended(Tiny):
    def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler:
        del total_steps
        return OneCycleLR(optimizer, 0.1, total_steps=5)


def test_a_scheduler_that_has_ended_names_the_method_that_built_it() -> None:
    with pytest.raises(ExperimentError, match=r"Tried to step 6 times.*OneCycleLR.*build_scheduler\(\).*; "):
        train(prepare(Ended()), Log())


def test_what_is_no_scheduler_is_refused() -> None:
    class Wrong(Tiny):
        def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> Any:
            return optimizer, total_steps

    with pytest.raises(ExperimentError, match="returned a tuple; return a scheduler"):
        prepare(Wrong())


# --------------------------------------------------------------------- validation within an epoch


def test_validation_within_an_epoch_and_of_a_few_batches() -> None:
    log = Log()
    train(prepare(Tiny(), validate_every=3, validation_batches=2), log)
    assert [(record.step, record.epoch) for record in log.of(Validated)] == [
        (3, 1),
        (6, 1),
        (9, 2),
        (12, 2),
        (15, 2),
    ]
    assert {record.validation.samples for record in log.of(Validated)} == {16}
    ends = [record.validation for record in log.of(EpochFinished)]
    assert [each.samples for each in ends if each is not None] == [16, 16]


def test_an_epoch_s_end_has_one_validation() -> None:
    log = Log()
    train(prepare(Tiny(), validate_every=4), log)
    assert [record.step for record in log.of(Validated)] == [4, 12]
    assert [record.step for record in log.of(EpochFinished)] == [8, 16]


@pytest.mark.parametrize("cut", [3, 4, 5])
def test_a_resumed_run_validates_after_the_same_steps_and_only_once(cut: int, tmp_path: Path) -> None:
    whole, first, second, control = Log(), Log(), Log(), Control()
    options = {"validate_every": 4}
    train(prepare(Tiny(), **options), whole)
    first.watch = stopping(control, cut)
    train(prepare(Tiny(), **options), first, control, checkpoints=tmp_path)
    resume(prepare(Tiny(), **options), tmp_path, second)
    found = [(record.step, record.validation) for log in (first, second) for record in log.of(Validated)]
    assert found == [(record.step, record.validation) for record in whole.of(Validated)]


def test_switches_and_a_schedule(tmp_path: Path) -> None:
    """The schedule goes on through every switch; each step has the learning rate of its turn."""
    control, log, plain = Control(), Log(), Log()
    log.watch = switching(control, {4: "bf16", 8: "fp16", 12: "fp32"})
    train(prepare(Recipe()), log, control)
    train(prepare(Recipe()), plain)
    assert [record.lr for record in log.of(StepRecord)] == [record.lr for record in plain.of(StepRecord)]
    assert {record.precision for record in log.of(StepRecord)} == {"fp32", "bf16", "fp16"}
