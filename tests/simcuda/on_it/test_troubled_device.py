"""A GPU that runs out of memory or fails for good: what ends a run, and what one that goes on is worth."""

import gc
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.device.failure import explain, is_device_lost
from amptui.records.answers import RequestMade
from amptui.records.run import Note, PrecisionChanged
from tests.builders import StepRow
from tests.simcuda import device
from tests.simcuda.training import Asks, Trained, run
from tests.tiny import Log, losses

STEP, STEPS = 10, 14

MAY_FAIL = {
    "data/batches.py epoch",
    "data/batches.py _scaled",
    "recipe/experiment.py loss",
    "recipe/precision.py backward",
    "recipe/precision.py unscale",
    "recipe/precision.py step",
    "loops/train_step.py _clip",
    "probes/gradients.py total_norm",
}
"""What a training cannot do without."""


def without_memory(operator: int, asks: Asks, **options: Any) -> Trained | str:
    """Let one operator find no memory, counted from a step's loss; the training, or where that ended it."""

    def script(step: int) -> None:
        if step == STEP:
            device.configure(memory_out_in=operator)

    try:
        return run(asks=asks, script=script, steps=STEPS, **options)
    except torch.OutOfMemoryError as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/amptui/" in frame.filename]
        return f"{own[-1].filename.rpartition('/amptui/')[2]} {own[-1].name}"
    finally:
        device.configure(memory_out_in=0)


@cache
def undisturbed(switched_to: str | None = None, *, after: int = STEP - 1, **options: Any) -> Trained:
    asks: Asks = {} if switched_to is None else {after: RequestMade("precision", precision=switched_to)}
    return run(asks=asks, steps=STEPS, **options)


def check_went_on_as(trained: Trained, expected: Trained) -> None:
    """The same training, though a row of numbers may be missing."""
    pairs = zip(losses(trained.log), losses(expected.log), strict=True)
    assert [(mine, theirs) for mine, theirs in pairs if mine not in (None, theirs)] == []
    states = (each.prepared.model.state_dict().values() for each in (trained, expected))
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize(
    ("precision", "clip_norm", "every"),
    [("fp16", 1.0, 3), pytest.param("fp32", None, 1, marks=pytest.mark.nightly)],
)
def test_only_what_a_training_needs_may_end_it(precision: str, clip_norm: float | None, every: int) -> None:
    asks: Asks = {STEP - 1: RequestMade("trace")}
    options = {"precision": precision, "clip_norm": clip_norm}
    ended = set[str]()
    for operator in range(1, 71, every):
        found = without_memory(operator, asks, **options)
        if isinstance(found, Trained):
            check_went_on_as(found, undisturbed(**options))
        else:
            ended.add(found)
    assert ended
    assert ended <= MAY_FAIL


@pytest.mark.parametrize(
    ("precision", "other", "clip_norm"),
    [
        ("fp32", "fp16", 1.0),
        pytest.param("bf16", "fp16", None, marks=pytest.mark.nightly),
    ],
)
def test_a_precision_s_first_step_that_finds_no_memory_never_was(
    precision: str, other: str, clip_norm: float | None
) -> None:
    options = {"precision": precision, "clip_norm": clip_norm}
    came_back = 0
    for operator in range(1, 46):
        found = without_memory(operator, {STEP - 1: RequestMade("precision", precision=other)}, **options)
        if isinstance(found, str):
            assert found in MAY_FAIL
            continue
        changes = [record.current for record in found.log.of(PrecisionChanged)]
        if changes == [other, precision]:
            came_back += 1
            check_went_on_as(found, undisturbed(**options))
            (note,) = (note for note in found.log.of(Note) if note.severity == "error")
            assert "out of memory in step 10" in note.text
        else:
            assert changes == [other]
            check_went_on_as(found, undisturbed(other, **options))
    assert came_back > 20


@pytest.mark.parametrize(
    ("asked", "precision"),
    [
        *[
            (None, "fp32"),
            (RequestMade("trace"), "fp16"),
            (RequestMade("x-ray"), "fp32"),
            (RequestMade("checkpoint"), "fp16"),
        ],
        (RequestMade("precision", precision="bf16"), "fp32"),
    ],
)
def test_a_kernel_that_fails_ends_the_run_with_one_line(asked: Any, precision: str, tmp_path: Path) -> None:
    def script(step: int) -> None:
        if step == STEP:
            gc.collect()  # what other tests left
            device.configure(broken=710)

    log = Log()
    asks: Asks = {STEP - 1: asked} if asked else {}
    with pytest.raises(RuntimeError) as caught:
        run(asks=asks, script=script, steps=STEPS, precision=precision, checkpoints=tmp_path, log=log)
    assert is_device_lost(caught.value)
    told = explain(caught.value, doing=f"in step {STEP}", batch_size=8, precision=precision)
    assert str(told).startswith(f"CUDA error: device-side assert triggered (noticed in step {STEP}); ")
    steps = [record.step for record in log.of(StepRow)]
    assert steps == list(range(1, len(steps) + 1))
    assert [note.text for note in log.of(Note) if note.severity == "error"] == []
    del caught
    gc.collect()  # should it free pinned memory, torch ends the process
