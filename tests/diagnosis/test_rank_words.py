"""How the ranks of a run train together, in words, and what each takes of the samples of all."""

import pytest

from amptui.diagnosis.rank_words import run_words, samples_each, size_words
from tests.tui.views import run_started as started


@pytest.mark.parametrize(
    ("world_size", "parallel", "data_parallel", "said"),
    [
        (1, "", None, ""),
        (4, "ddp", None, ", 4 ranks, DDP, global batch 64"),
        (4, "hsdp", 4, ", 4 ranks, HSDP, global batch 64"),
        (8, "fsdp2+tp", 4, ", 8 ranks, FSDP2 + TP, data parallel 4, global batch 64"),
        (8, "ddp+pp", 2, ", 8 ranks, DDP + PP, data parallel 2, global batch 64"),
        (4, "of a newer version+tp", None, ", 4 ranks, TP, global batch 64"),
    ],
)
def test_a_run_s_ranks_are_told_with_what_they_share(
    world_size: int, parallel: str, data_parallel: int | None, said: str
) -> None:
    run = started(world_size=world_size, parallel=parallel, data_parallel=data_parallel, global_batch_size=64)
    assert run_words(run) == said


def test_ranks_that_share_their_samples_take_the_same_ones() -> None:
    assert samples_each(100.0, 4, started(world_size=4, data_parallel=2)) == 50.0
    assert samples_each(100.0, 4, started(world_size=4)) == 25.0
    assert samples_each(100.0, 4, None) == 25.0
    assert size_words(4, None) == "4 ranks"
