"""Checkpoints of several real ranks over gloo: where they are taken, and what a resumed run repeats."""

from pathlib import Path
from typing import Any

import pytest

from amptui.checkpoint.file import checkpoints, read
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import Note, RunResumed
from tests.loops.working import Worker
from tests.ranks.rank_at_work import Ended, Start
from tests.ranks.recorded import alone as one_process
from tests.tiny import losses

pytestmark = pytest.mark.ci

RECORDED = "tests.ranks.recorded:Recorded"

NO_BATCH_NORM = {"batch_norm": "no"}
"""Its statistics are of each rank's own batch: another training with another number of ranks."""


def ranks(start: Start, folder: Path, model: str = "Drawing", **options: Any) -> list[Ended]:
    """Ranks that train in ``folder`` with these options, two unless ``count`` says otherwise."""
    count, settings = options.pop("count", 2), options.pop("settings", {})
    return start(count=count, folder=folder, model=model, options=options, **settings)


def written(rank: Ended) -> list[int]:
    return [record.step for record in rank.log.of(CheckpointWritten)]


@pytest.mark.parametrize(
    ("precision", "fsdp"),
    [
        ("fp32", False),
        ("fp16", False),
        pytest.param("fp16", True, marks=pytest.mark.torch),
        pytest.param("bf16", False, marks=pytest.mark.nightly),
        pytest.param("fp32", True, marks=pytest.mark.nightly),
    ],
)
def test_resumed_ranks_repeat_the_rest_bit_for_bit(
    start: Start, tmp_path: Path, precision: str, fsdp: bool
) -> None:
    """From the checkpoint at the end of a stopped run, and from one written while the run went on."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    expected = ranks(start, whole, precision=precision, checkpoint_every=5, fsdp=fsdp)
    assert written(expected[0])[0] == 5
    assert expected[0].steps == expected[1].steps

    # One at the end of the epoch too, if the ranks agree on it before their last step.
    first, _ = ranks(start, stopped, precision=precision, steps=7, fsdp=fsdp)
    assert written(first) in ([7], [6, 7])
    rest = ranks(start, stopped, precision=precision, resume=True, fsdp=fsdp)
    assert [rank.steps for rank in rest] == [expected[0].steps[7:]] * 2
    assert rest[0].losses == expected[0].losses[7:]
    assert rest[0].validations == expected[0].validations[1:]

    for path in checkpoints(whole / "checkpoints")[:-1]:
        path.unlink()
    rest = ranks(start, whole, precision=precision, resume=True, fsdp=fsdp)
    assert [rank.steps for rank in rest] == [expected[0].steps[5:]] * 2


def test_ranks_that_accumulate_from_a_loader_repeat_the_rest_bit_for_bit(
    start: Start, tmp_path: Path
) -> None:
    """It has a worker; the interruption is in the middle of an epoch of three steps."""
    options: dict[str, Any] = {"accumulate": 2, "settings": {"loader": "yes", "dropout": "0.2"}}
    expected = ranks(start, tmp_path / "whole", "Recorded", **options)
    ranks(start, tmp_path / "stopped", "Recorded", steps=4, **options)
    rest = ranks(start, tmp_path / "stopped", "Recorded", resume=True, **options)
    assert len(expected[0].steps) == 6
    assert [rank.steps for rank in rest] == [expected[0].steps[4:]] * 2
    assert rest[0].losses == expected[0].losses[4:]


@pytest.mark.parametrize("fsdp", [False, True])
def test_another_number_of_ranks_goes_on_with_the_same_global_batch(
    start: Start, tmp_path: Path, fsdp: bool
) -> None:
    """One process, then two ranks, then four, then one process: the losses of one with the global batch."""
    settings = {"epochs": "2", **NO_BATCH_NORM}
    options: dict[str, Any] = {"settings": settings, "resume": True, "fsdp": fsdp}
    folder = tmp_path / "checkpoints"
    Worker(RECORDED, checkpoint_dir=folder, steps=2, batch_size=16, settings=settings).end()
    two = ranks(start, tmp_path, "Recorded", steps=4, **options)
    four = ranks(start, tmp_path, "Recorded", count=4, steps=8, **options)
    assert any(
        note.text.startswith("resumed with 4 instead of 2 ranks: 4 samples") for note in four[0].log.of(Note)
    )
    alone = Worker(RECORDED, checkpoint_dir=folder, resume=True, settings=settings)
    alone.end()
    (resumed,) = alone.log.of(RunResumed)
    assert (resumed.step, resumed.world_size, resumed.parallel, resumed.batch_size) == (8, 1, "", 16)

    expected = losses(one_process(batch_norm=False))
    assert two[0].losses == pytest.approx(expected[2:4], rel=1e-5)
    assert four[0].losses == pytest.approx(expected[4:8], rel=1e-5)
    assert losses(alone.log) == pytest.approx(expected[8:], rel=1e-5)


def test_each_rank_has_random_states_of_its_own_in_the_file(start: Start, tmp_path: Path) -> None:
    ranks(start, tmp_path, "Recorded", steps=2)
    checkpoint = read(checkpoints(tmp_path / "checkpoints")[0])
    assert checkpoint.world_size == 2
    assert [rank["batches"] for rank in checkpoint.ranks] == [2]
    states = [checkpoint.draws, *[rank["draws"] for rank in checkpoint.ranks]]
    assert len({bytes(state["process"]["cpu"].tolist()) for state in states}) == 2


SHARDED: dict[str, Any] = {"fsdp": True, "checkpoint_every": 3}


def test_after_a_kill_in_the_middle_of_writing_the_checkpoint_before_is_used(
    start: Start, tmp_path: Path
) -> None:
    killed = start("killed while writing", **SHARDED, status=None)
    assert [rank.status for rank in killed] == [1, -9]
    assert killed[0].error.startswith("rank 1 ")
    folder = tmp_path / "checkpoints"
    (path,) = checkpoints(folder)
    first = read(path)

    rest = ranks(start, tmp_path, "Recorded", resume=True, **SHARDED)
    repeated = killed[0].steps[first.step :]
    assert rest[0].steps[: len(repeated)] == repeated
    files = [read(path) for path in checkpoints(folder)]
    assert {checkpoint.shards.folder for checkpoint in files if checkpoint.shards} == {
        path for path in folder.iterdir() if path.is_dir()
    }


def test_a_full_disk_of_one_rank_stops_no_step_and_leaves_no_half(start: Start, tmp_path: Path) -> None:
    ended = start("full disk", **SHARDED)
    assert len(ended[0].steps) == 12
    assert written(ended[0]) == []
    assert "rank 1: File too large" in ended[0].log.of(KeepingChanged)[0].trouble
    assert list((tmp_path / "checkpoints").iterdir()) == []
