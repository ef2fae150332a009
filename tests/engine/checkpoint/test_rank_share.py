"""What a rank takes of a checkpoint that another number of ranks wrote."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from amptui.base.errors import UsageError
from amptui.engine.checkpoint.file import Checkpoint, checkpoints, read
from amptui.engine.checkpoint.rank_share import (
    rank_change,
    request_with_rank_batch,
    restore_rank,
    with_rank_batch,
)
from amptui.recipe.request import TrainRequest
from tests.tiny import Drawing, Log, Tiny, prepare, train


@pytest.fixture
def alone(tmp_path: Path) -> Checkpoint:
    """Of one process, with batches of 8."""
    train(prepare(Tiny(), steps=3), Log(), checkpoints=tmp_path)
    return read(checkpoints(tmp_path)[0])


def of_two(checkpoint: Checkpoint) -> Checkpoint:
    """As if two ranks had written it, with other random states on the second."""
    torch.manual_seed(77)
    draws = {**checkpoint.draws, "process": {**checkpoint.draws["process"], "cpu": torch.get_rng_state()}}
    return replace(
        checkpoint,
        ranks=[{"batches": checkpoint.batches, "draws": draws, "epoch_draws": draws, "gpu": 0}],
    )


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 16), (2, 8), (4, 4), (16, 1)])
def test_the_global_batch_stays(alone: Checkpoint, ranks: int, batch_size: int) -> None:
    shared = with_rank_batch(of_two(alone), ranks)
    assert shared.identity["batch_size"] == batch_size
    assert bool(rank_change(shared, ranks)) == (ranks != 2)


def test_a_batch_that_cannot_be_shared_equally_is_refused_with_a_number_that_can(alone: Checkpoint) -> None:
    batch = "has a global batch of 16 samples, which 6 ranks cannot share equally"
    with pytest.raises(UsageError, match=f"{batch}; use --nproc 4"):
        with_rank_batch(of_two(alone), 6)


def test_a_batch_size_that_was_asked_for_counts_in_a_run_of_one_process_only(alone: Checkpoint) -> None:
    request = TrainRequest(model="tiny", batch_size=4, settings={"batch_size": "4", "width": "8"})
    assert request_with_rank_batch(request, alone, 1) == request
    shared = request_with_rank_batch(request, of_two(alone), 1)
    assert (shared.batch_size, shared.settings) == (None, {"width": "8"})


def test_each_rank_has_its_own_states_and_a_new_one_has_others_each_time_the_same(alone: Checkpoint) -> None:
    prepared = prepare(Tiny())
    checkpoint = of_two(alone)

    def states(rank: int, ranks: int) -> bytes:
        _, start = restore_rank(checkpoint, rank, ranks, prepared, print)
        assert start.batches == checkpoint.batches
        return bytes(start.draws.process.cpu.tolist())

    all_states = [states(rank, 4) for rank in range(4)]
    assert all_states[0] == bytes(checkpoint.draws["process"]["cpu"].tolist())
    assert all_states[1] == bytes(checkpoint.ranks[0]["draws"]["process"]["cpu"].tolist())
    assert len(set(all_states)) == 4
    assert [states(2, 4), states(3, 4)] == all_states[2:]


def test_a_loader_s_order_is_not_shared_out_anew(tmp_path: Path) -> None:
    train(prepare(Drawing(source="loader"), steps=3), Log(), checkpoints=tmp_path)
    checkpoint = read(checkpoints(tmp_path)[0])
    with pytest.raises(UsageError, match="depends on their number; resume with --nproc 1"):
        restore_rank(checkpoint, 0, 2, prepare(Drawing(source="loader")), print)
