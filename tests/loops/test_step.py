"""The step engine: what a step computes, and that between two looks it does nothing else."""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch import Tensor, nn

import amptui
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import PrecisionChanged, Record
from tests.builders import StepRow
from tests.tiny import Exploding, Log, Tiny, prepare, train

NEVER = 1e9
"""Seconds: looks come for other reasons than the time."""


class Long(Tiny):
    epochs: int = 1
    samples: int = 8 * 128
    learning_rate: float = 0.1


@pytest.mark.torch
@pytest.mark.parametrize("experiment", [Long, Exploding])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_how_often_is_looked_changes_no_number(precision: str, experiment: type[Tiny]) -> None:
    often, seldom = Log(), Log()
    for log, seconds in ((often, 0.0), (seldom, NEVER)):
        fields = {"epochs": 1, "samples": 8 * 96}
        prepared = prepare(experiment(**fields), precision=precision, clip_norm=0.05)
        train(prepared, log, look_interval_seconds=seconds)
    assert [record.step for record in seldom.of(StepRow)] == list(range(1, 97))
    same = attrgetter("loss", "loss_scale", "grad_norm", "skipped")
    assert [same(record) for record in often.of(StepRow)] == [same(r) for r in seldom.of(StepRow)]


def before_each_step(act: Callable[[int], object], **fields: Any) -> Long:
    """An experiment that calls ``act`` with each step's number in its forward pass."""
    numbers = count(1)

    class Hooked(Long):
        def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
            if model.training:
                act(next(numbers))
            return super().loss(model, batch)

    return Hooked(**fields)


@pytest.mark.parametrize(
    ("request_made", "steps"),
    [(RequestMade("precision", precision="bf16"), 128), (RequestMade("stop", reason="it"), 101)],
)
def test_a_request_is_obeyed_at_the_very_next_boundary_however_far_the_next_look_is(
    request_made: RequestMade, steps: int
) -> None:
    control, log = Control(), Log()

    def ask(step: int) -> None:
        if step == 101:
            control.ask(request_made)

    train(prepare(before_each_step(ask)), log, control, look_interval_seconds=NEVER)
    assert [record.precision for record in log.of(StepRow)] == ["fp32"] * 101 + ["bf16"] * (steps - 101)
    assert [change.step for change in log.of(PrecisionChanged)] == [102] * (steps > 101)


def test_checkpoints_come_at_their_steps_whenever_a_look_is(tmp_path: Path) -> None:
    written, control = threading.Semaphore(0), Control()

    def wait(step: int) -> None:
        """The step after a checkpoint's waits until that is written, and no later one has to wait for it."""
        if step > 1 and step % 50 == 1:
            assert written.acquire(timeout=60)

    def watch(record: Record) -> None:
        if isinstance(record, CheckpointWritten) and record.reason == "interval":
            written.release()

    log = Log(watch)
    prepared = prepare(before_each_step(wait, samples=8 * 130), steps=120)
    train(prepared, log, control, checkpoints=tmp_path, every=50, look_interval_seconds=NEVER)
    at = [record.step for record in log.of(CheckpointWritten) if record.reason == "interval"]
    assert at == [50, 100]


def test_a_step_between_two_looks_makes_few_calls() -> None:
    """A cold Python call costs 1 to 3 us, and some sixty of them made 7% of a step of 2.4 ms."""
    ours = str(Path(amptui.__file__).parent)
    counts: Counter[int] = Counter()
    now = [0]

    def follow(step: int) -> None:
        now[0] = step

    def count_call(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            counts[now[0]] += 1

    prepared = prepare(before_each_step(follow))
    sys.setprofile(count_call)
    try:
        train(prepared, Log(), look_interval_seconds=NEVER)
    finally:
        sys.setprofile(None)
    calls = sorted(counts[step] for step in range(60, 120))
    assert calls[len(calls) // 2] <= 19
