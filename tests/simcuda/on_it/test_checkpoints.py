"""Checkpoints on a GPU: a run goes on from one as if it had never stopped, and taking one is no fault."""

from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.records.control import Control, StopRequest
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from tests.simcuda.training import FIRST_STEPS, Small, run
from tests.tiny import Log, losses, prepare, resume

STEPS, STOP = 40, 22


@pytest.mark.parametrize("clip_norm", [None, 0.5], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(
    precision: str, clip_norm: float | None, tmp_path: Path
) -> None:
    control = Control()
    options: dict[str, Any] = {
        "steps": STEPS,
        "precision": precision,
        "clip_norm": clip_norm,
        "device": "cuda",
    }

    def script(step: int) -> None:
        if step == STOP:
            control.ask(StopRequest("the test"))

    whole = run(Small(samples=160), **options)
    begun = run(Small(samples=160), control=control, script=script, checkpoints=tmp_path, **options)
    prepared, log = prepare(Small(samples=160), **options), Log()
    resume(prepared, tmp_path, log)
    assert losses(begun.log) + losses(log) == losses(whole.log)
    states = [each.model.state_dict() for each in (prepared, whole.prepared)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    assert prepared.scaler.state_dict() == whole.prepared.scaler.state_dict()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_checkpoint_is_written_where_waits_are_errors(precision: str, tmp_path: Path) -> None:
    def script(step: int) -> None:
        torch.cuda.set_sync_debug_mode("error" if FIRST_STEPS <= step < STEPS else "default")

    trained = run(precision=precision, script=script, checkpoints=tmp_path, every=10, steps=STEPS)
    assert trained.log.of(KeepingChanged) == []
    written = [record.step for record in trained.log.of(CheckpointWritten)]
    assert (written[0], written[-1]) == (10, STEPS)
    # Events, which the debug mode lets pass: of the rows under way, of a timed step, of the copies.
    places = trained.marks.places()
    assert {place.partition(" ")[0] for place in places} == {"cudaEventSynchronize"}
    waited = [step for step, waits in trained.marks.waits.items() if waits and FIRST_STEPS <= step < STEPS]
    assert waited == written[:-1]
