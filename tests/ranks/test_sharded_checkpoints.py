"""Checkpoints of a sharded model, of which one rank cannot write its part."""

from pathlib import Path

import pytest

from amptui.engine.checkpoint.file import checkpoints, read
from tests.ranks.rank_at_work import train_ranks

pytestmark = pytest.mark.slow

OPTIONS = {"fsdp": True, "checkpoint_every": 3}


def test_after_a_kill_in_the_middle_of_writing_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    killed = train_ranks("killed while writing", 2, tmp_path, arguments=OPTIONS)
    assert [each.status for each in killed] == [1, -9]
    assert "rank 1 was killed" in killed[0].found["error"]
    folder = tmp_path / "checkpoints"
    (path,) = checkpoints(folder)
    first = read(path)

    arguments = {"model": "Recorded", "settings": {}, "resume": True, **OPTIONS}
    rest = train_ranks("asked", 2, tmp_path, arguments=arguments)
    assert [each.status for each in rest] == [0, 0], rest[0].found["error"]
    repeated = killed[0].steps[first.step :]
    assert rest[0].steps[: len(repeated)] == repeated
    kept = [read(each) for each in checkpoints(folder)]
    assert {each.shards.folder for each in kept if each.shards} == {
        each for each in folder.iterdir() if each.is_dir()
    }


def test_a_full_disk_of_one_rank_stops_no_step_and_leaves_no_half(tmp_path: Path) -> None:
    """Nor does a checkpoint of which nothing is gathered."""
    ended = train_ranks("full disk", 2, tmp_path, arguments=OPTIONS)
    assert [each.status for each in ended] == [0, 0], ended[0].found["error"]
    assert len(ended[0].steps) == 12
    assert ended[0].found["checkpoints"] == []
    trouble = ended[0].found["troubles"][0]
    assert "rank 1: File too large" in trouble
    assert list((tmp_path / "checkpoints").iterdir()) == []
    for each in ended:
        counted = each.found["collectives"]
        assert all(counted["after_step"]), "it gathers the weights in each step, to write them down"
        assert counted["_write_checkpoint"]
        assert not any(counted["_write_checkpoint"])
