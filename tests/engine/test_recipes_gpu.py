"""On a GPU a schedule follows the applied steps too, and no step waits to learn whether it was skipped."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from amptui import warmup_cosine, weight_decay_groups
from amptui.engine.compilation import missing_for_compile
from amptui.records.control import Control
from amptui.records.run import Record
from amptui.records.steps import StepRecord
from tests.tiny import Log, Tiny, losses, no_waits, prepare, resume, stopping, switching, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


class Recipe(Tiny):
    """Parameter groups, LR warm-up and cosine decay, EMA of the weights; ``spoilt`` batches have an Inf."""

    epochs: int = 2
    batch_size: int = 8
    samples: int = 88
    """11 batches an epoch: with 4 a step, the last step of an epoch has 3."""
    spoilt: str = ""
    """Numbers of the calls of ``loss()`` in training whose gradients are made Inf, with commas."""
    fused: bool = True

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.calls = 0
        groups = weight_decay_groups(model, 0.1)
        groups[1]["lr"] = 2 * self.learning_rate
        return torch.optim.AdamW(groups, lr=self.learning_rate, fused=self.fused)

    def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> LRScheduler:
        return warmup_cosine(optimizer, total_steps, warmup_steps=3)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        assert isinstance(loss, Tensor)
        if model.training:
            self.calls += 1
            if str(self.calls) in self.spoilt.split(","):
                loss.register_hook(lambda gradient: gradient * torch.inf)
        return loss

    def after_step(self, model: nn.Module) -> None:
        self.ema.update_parameters(model)


def recipe(spoilt: str = "") -> Recipe:
    return Recipe(epochs=4, spoilt=spoilt)


def lrs_by_applied_steps(log: Log) -> dict[int, set[float]]:
    """The learning rates that were used after so many applied steps."""
    lrs_by_applied: dict[int, set[float]] = {}
    applied = 0
    for record in log.of(StepRecord):
        assert record.lr is not None
        lrs_by_applied.setdefault(applied, set()).add(record.lr)
        applied += not record.skipped
    return lrs_by_applied


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_skipped_step_does_not_advance_the_schedule(accumulate: int) -> None:
    log, plain = Log(), Log()
    train(prepare(recipe("5,9,21"), device="cuda", precision="fp16", accumulate=accumulate), log)
    train(prepare(recipe(), device="cpu", precision="fp32", accumulate=accumulate), plain)
    assert sum(record.skipped for record in log.of(StepRecord)) >= 3
    expected = lrs_by_applied_steps(plain)
    for applied, lrs in lrs_by_applied_steps(log).items():
        assert list(lrs) == [pytest.approx(next(iter(expected[applied])), rel=1e-6)]
    for record in log.of(StepRecord):
        assert record.group_lrs == pytest.approx((record.lr or 0.0, 2 * (record.lr or 0.0)), rel=1e-6)


class WithoutWaits(Recipe):
    """As the guide says: ``update_parameters`` waits for the device in every step."""

    def after_step(self, model: nn.Module) -> None:
        average = get_ema_multi_avg_fn(0.9)
        average(list(self.ema.module.parameters()), list(model.parameters()), 0)


def test_torch_s_own_average_waits_for_the_device() -> None:
    """Once it does not, the guide should say so."""
    model = nn.Linear(2, 2, device="cuda")
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averaged.update_parameters(model)
    with no_waits(), pytest.raises(RuntimeError, match="synchroniz"):
        averaged.update_parameters(model)


def test_no_step_waits_for_the_device() -> None:
    prepared = prepare(WithoutWaits(epochs=4, spoilt="9"), device="cuda", precision="fp16")
    modes: list[int] = []

    def strict(record: Record) -> None:
        """From the third step on each wait is an error, until the last steps."""
        if isinstance(record, StepRecord):
            modes.append(record.step)
            torch.cuda.set_sync_debug_mode("error" if 3 <= record.step < 20 else "default")

    try:
        train(prepared, Log(strict))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert prepared.lr_schedule is not None
    assert prepared.lr_schedule.follows_on_device
    assert len(modes) == 44


def test_a_resumed_run_goes_on_in_its_schedule(tmp_path: Path) -> None:
    whole, first, second, control = Log(), Log(), Log(), Control()
    options = {"device": "cuda", "precision": "fp16"}
    train(prepare(recipe("9"), **options), whole)
    first.watch = stopping(control, 13)
    train(prepare(recipe("9"), **options), first, control, checkpoints=tmp_path)
    again = prepare(recipe("9"), **options)
    assert isinstance(again.experiment, Recipe)
    again.experiment.calls = 13  # no checkpoint keeps what the test counts
    resume(again, tmp_path, second)
    lrs = [record.lr for log in (first, second) for record in log.of(StepRecord)]
    assert lrs == pytest.approx([record.lr for record in whole.of(StepRecord)], rel=1e-6)


def test_switches_do_not_disturb_the_schedule() -> None:
    control, log = Control(), Log()
    log.watch = switching(control, {5: "fp16", 15: "fp32", 25: "fp16"})
    train(prepare(recipe(), device="cuda"), log, control)
    lrs_by_applied = lrs_by_applied_steps(log)
    assert all(max(lrs) == pytest.approx(min(lrs), rel=1e-6) for lrs in lrs_by_applied.values())
    by_step = [max(lrs) for _, lrs in sorted(lrs_by_applied.items())]
    assert all(before > after for before, after in pairwise(by_step[4:]))


@pytest.mark.real_gpu("kernels that Triton compiles, and CUDA graphs")
def test_gradients_accumulate_over_replays_of_cuda_graphs() -> None:
    if missing_for_compile(torch.device("cuda", 0)) is not None:
        pytest.skip("torch.compile finds no compiler here")
    eager, graphs = Log(), Log()
    for log, mode in ((eager, None), (graphs, "reduce-overhead")):
        train(prepare(recipe(), device="cuda", compile_mode=mode, accumulate=3), log)
    assert losses(graphs) == pytest.approx(losses(eager), rel=1e-3)


def test_groups_may_have_a_tensor_and_a_number_for_a_learning_rate() -> None:
    class Mixed(Recipe):
        def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            optimizer = super().build_optimizer(model)
            optimizer.param_groups[0]["lr"] = torch.tensor(0.01, device="cuda")
            return optimizer

        def build_scheduler(self, optimizer: torch.optim.Optimizer, total_steps: int | None) -> None:  # type: ignore[override]
            del optimizer, total_steps

    log = Log()
    assert train(prepare(Mixed(epochs=1), device="cuda"), log) == "done"
    assert all(record.lr == pytest.approx(0.01) for record in log.of(StepRecord))
