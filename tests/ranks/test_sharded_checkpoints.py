"""Checkpoints of a sharded model, of which one rank cannot write its part."""

from pathlib import Path

import pytest

from amptui.engine.checkpoint.file import checkpoints, read
from tests.ranks.rank_at_work import train_ranks
from tests.warm import WarmSource

pytestmark = pytest.mark.ci

OPTIONS = {"fsdp": True, "checkpoint_every": 3}


def test_after_a_kill_in_the_middle_of_writing_the_checkpoint_before_is_used(
    warm: WarmSource, tmp_path: Path
) -> None:
    killed = train_ranks("killed while writing", 2, tmp_path, warm=warm, **OPTIONS, status=None)
    assert [rank.status for rank in killed] == [1, -9]
    assert killed[0].results["error"].startswith("rank 1 ")
    folder = tmp_path / "checkpoints"
    (path,) = checkpoints(folder)
    first = read(path)

    rest = train_ranks("asked", 2, tmp_path, warm=warm, model="Recorded", settings={}, resume=True, **OPTIONS)
    repeated = killed[0].steps[first.step :]
    assert rest[0].steps[: len(repeated)] == repeated
    files = [read(path) for path in checkpoints(folder)]
    assert {checkpoint.shards.folder for checkpoint in files if checkpoint.shards} == {
        path for path in folder.iterdir() if path.is_dir()
    }


def test_a_full_disk_of_one_rank_stops_no_step_and_leaves_no_half(warm: WarmSource, tmp_path: Path) -> None:
    """Nor does a checkpoint of which nothing is gathered."""
    ended = train_ranks("full disk", 2, tmp_path, warm=warm, **OPTIONS)
    assert len(ended[0].steps) == 12
    assert ended[0].results["checkpoints"] == []
    trouble = ended[0].results["troubles"][0]
    assert "rank 1: File too large" in trouble
    assert list((tmp_path / "checkpoints").iterdir()) == []
    for rank in ended:
        counted = rank.results["collectives"]
        assert all(counted["after_step"]), "it gathers the weights in each step, to write them down"
        assert counted["_write_checkpoint"]
        assert not any(counted["_write_checkpoint"])
