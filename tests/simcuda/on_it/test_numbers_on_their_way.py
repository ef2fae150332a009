"""Numbers and checkpoints on their way to the host: no wait, none too early."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amptui.device.readback import open_readback
from amptui.records.answers import RequestMade
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import EpochFinished
from tests.builders import StepRow
from tests.simcuda.device import configured
from tests.simcuda.training import FIRST_STEPS, Small, run
from tests.tiny import Log, losses, prepare, resume


class LearningRateOnDevice(Small):
    """Its learning rate is a tensor on the device, as CUDA graphs want it."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        rate = torch.tensor(1e-3, device="cuda")
        return torch.optim.Adam(model.parameters(), lr=rate, fused=True)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_learning_rate_on_the_device_is_told_without_a_wait(precision: str) -> None:
    trained = run(LearningRateOnDevice(), steps=30, precision=precision)
    rates = {record.lr for record in trained.log.of(StepRow)}
    assert rates == {torch.tensor(1e-3).item()}
    assert trained.marks.places() == Counter()


def test_numbers_are_those_of_the_stream_that_computed_them() -> None:
    device = torch.device("cuda", 0)
    rows: list[tuple[Any, float | None]] = []
    with configured(kernel_us=20_000):
        readback = open_readback(device, clock=lambda: 0.0)
        # What it reads too early is NaN.
        with torch.cuda.stream(torch.cuda.Stream(device)):
            readback.begin_interval()
            for number in range(3):
                value = torch.full((2,), float(number), device=device)
                readback.push([value], lambda row, seconds: rows.append((row, seconds)), timed=True)
                readback.drain()
            readback.flush()
    assert [list(row) for row, _ in rows] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert all(seconds is not None and seconds >= 0.02 for _, seconds in rows)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_device_far_behind_the_host_gives_the_same_numbers(precision: str) -> None:
    quick = run(Small(samples=160), steps=24, precision=precision)
    with configured(kernel_us=500):
        slow = run(Small(samples=160), steps=24, precision=precision)
    assert losses(slow.log) == losses(quick.log)
    assert all(loss is not None and math.isfinite(loss) for loss in losses(slow.log))
    assert slow.log.of(EpochFinished)[0].validation == quick.log.of(EpochFinished)[0].validation
    assert slow.marks.places() == Counter()


STEPS, STOP = 40, 22


@pytest.mark.parametrize(("precision", "clip_norm"), [("fp16", 0.5), ("bf16", None)])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(
    precision: str, clip_norm: float | None, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"steps": STEPS, "precision": precision, "clip_norm": clip_norm}
    options["device"] = "cuda"
    whole = run(Small(samples=160), **options)
    asks = {STOP: RequestMade("stop", reason="the test")}
    begun = run(Small(samples=160), asks=asks, checkpoints=tmp_path, **options)
    prepared, log = prepare(Small(samples=160), **options), Log()
    resume(prepared, tmp_path, log)
    assert losses(begun.log) + losses(log) == losses(whole.log)
    states = [each.model.state_dict() for each in (prepared, whole.prepared)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    assert prepared.scaler.state_dict() == whole.prepared.scaler.state_dict()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_checkpoint_is_written_where_waits_are_errors(precision: str, tmp_path: Path) -> None:
    checked = range(FIRST_STEPS, STEPS)
    trained = run(precision=precision, waits_are_errors=checked, checkpoints=tmp_path, every=10, steps=STEPS)
    assert trained.log.of(KeepingChanged) == []
    written = [record.step for record in trained.log.of(CheckpointWritten)]
    assert (written[0], written[-1]) == (10, STEPS)
    # Events, which the debug mode lets pass: of the rows under way, of a timed step, of the copies.
    places = trained.marks.places()
    assert {place.partition(" ")[0] for place in places} == {"cudaEventSynchronize"}
    waited = [step for step, waits in trained.marks.waits.items() if waits and step in checked]
    assert waited == written[:-1]
