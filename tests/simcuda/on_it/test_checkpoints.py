"""Checkpoints on a GPU: a run goes on from one as if it had never stopped, and taking one is no fault."""

from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.records.control import StopRequest
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from tests.simcuda.training import FIRST_STEPS, Small, run
from tests.tiny import Log, losses, prepare, resume

STEPS, STOP = 40, 22


@pytest.mark.parametrize(("precision", "clip_norm"), [("fp16", 0.5), ("bf16", None)])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(
    precision: str, clip_norm: float | None, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"steps": STEPS, "precision": precision, "clip_norm": clip_norm}
    options["device"] = "cuda"
    whole = run(Small(samples=160), **options)
    asks = {STOP: StopRequest("the test")}
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
