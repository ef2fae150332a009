"""On a GPU a schedule follows the applied steps too, and no step waits to learn whether it was skipped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from amptui.loops.compilation import missing_for_compile
from amptui.records.control import Control
from amptui.records.run import Record
from tests.builders import StepRow
from tests.experiments.recipe import Recipe
from tests.tiny import Log, log_of, losses, prepare, resume, stopping, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


ALL: dict[str, Any] = {
    "samples": 88,
    "epochs": 4,
    "optimizer": "fused adam",
    "groups": True,
    "schedule": "warm-up and cosine",
    "average": 0.9,
}
"""11 batches an epoch."""


def recipe(spoilt: str = "") -> Recipe:
    return Recipe(**ALL, spoilt=spoilt)


def lrs_by_applied_steps(log: Log) -> dict[int, set[float]]:
    lrs_by_applied: dict[int, set[float]] = {}
    applied = 0
    for record in log.of(StepRow):
        assert record.lr is not None
        lrs_by_applied.setdefault(applied, set()).add(record.lr)
        applied += not record.skipped
    return lrs_by_applied


@pytest.mark.parametrize("accumulate", [1, 4])
def test_neither_a_skipped_step_nor_a_switch_disturbs_the_schedule(accumulate: int) -> None:
    prepared = prepare(recipe("5,9,21"), device="cuda", precision="fp16", accumulate=accumulate)
    log = log_of(prepared, at={6: "fp32", 8: "fp16", 25: "fp32"})
    plain = log_of(prepare(recipe(), device="cpu", precision="fp32", accumulate=accumulate))
    assert sum(record.skipped for record in log.of(StepRow)) >= 3
    assert {record.precision for record in log.of(StepRow)} == {"fp16", "fp32"}
    expected = lrs_by_applied_steps(plain)
    for applied, lrs in lrs_by_applied_steps(log).items():
        assert list(lrs) == [pytest.approx(next(iter(expected[applied])), rel=1e-6)]
    for record in log.of(StepRow):
        assert record.group_lrs == pytest.approx((record.lr or 0.0, 2 * (record.lr or 0.0)), rel=1e-6)


class WithoutWaits(Recipe):
    """As the guide says: ``update_parameters`` waits for the device in every step."""

    def after_step(self, model: nn.Module) -> None:
        average = get_ema_multi_avg_fn(0.9)
        average(list(self.ema.module.parameters()), list(model.parameters()), 0)


def test_no_step_waits_for_the_device() -> None:
    prepared = prepare(WithoutWaits(**ALL, spoilt="9"), device="cuda", precision="fp16")
    modes: list[int] = []

    def strict(record: Record) -> None:
        """From the third step on each wait is an error, until the last steps."""
        if isinstance(record, StepRow):
            modes.append(record.step)
            torch.cuda.set_sync_debug_mode("error" if 3 <= record.step < 20 else "default")

    try:
        train(prepared, Log(strict))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert isinstance(prepared.optimizer.param_groups[0]["lr"], torch.Tensor), "where the device counts"
    assert len(modes) == 44


def test_a_resumed_run_goes_on_in_its_schedule(tmp_path: Path) -> None:
    whole, first, second, control = Log(), Log(), Log(), Control()
    options = {"device": "cuda", "precision": "fp16"}
    train(prepare(recipe("9"), **options), whole)
    first.watch = stopping(control, 13)
    train(prepare(recipe("9"), **options), first, control, checkpoints=tmp_path)
    resume(prepare(recipe("9"), **options), tmp_path, second)
    lrs = [record.lr for log in (first, second) for record in log.of(StepRow)]
    assert lrs == pytest.approx([record.lr for record in whole.of(StepRow)], rel=1e-6)


@pytest.mark.real_gpu("kernels that Triton compiles, and CUDA graphs")
def test_gradients_accumulate_over_replays_of_cuda_graphs() -> None:
    if missing_for_compile(torch.device("cuda", 0)) is not None:
        pytest.skip("torch.compile finds no compiler here")
    eager, graphs = Log(), Log()
    for log, mode in ((eager, None), (graphs, "reduce-overhead")):
        train(prepare(recipe(), device="cuda", compile_mode=mode, accumulate=3), log)
    assert losses(graphs) == pytest.approx(losses(eager), rel=1e-3)
