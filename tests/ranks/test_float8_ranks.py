"""FP8 on several ranks: each scales its own operands, and all keep the same weights and switch together."""

from pathlib import Path

import pytest

from amptui.engine.float8 import NO_FSDP
from tests.ranks.rank_at_work import train_ranks
from tests.ranks.recorded import Recorded
from tests.tiny import Log, losses, prepare, train

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("usable_torchao")]


def test_ranks_in_float8_keep_the_same_weights_and_learn_as_one_process_does(tmp_path: Path) -> None:
    """Not bit for bit: a rank's share of a batch has a scale of its own."""
    options = {"precision": "fp8"}
    ranks = train_ranks("plain", 2, tmp_path, batch_norm="no", options=options)
    assert ranks[0].steps == ranks[1].steps
    assert set(ranks[0].results["precisions"]) == {"fp8-emulated"}
    log = Log()
    train(prepare(Recorded(epochs=2, batch_size=16, batch_norm=False), **options), log)
    assert ranks[0].results["losses"] == pytest.approx(losses(log), rel=0.02)


def test_ranks_enter_and_leave_float8_at_the_same_steps(tmp_path: Path) -> None:
    ranks = train_ranks("float8", 2, tmp_path)
    assert ranks[0].steps == ranks[1].steps
    precisions = ranks[0].results["precisions"]
    order = [name for name, before in zip(precisions, ["", *precisions], strict=False) if name != before]
    assert order == ["fp32", "fp8-emulated", "fp32", "fp8-emulated", "bf16"]
    assert ranks[0].results["disagreements"] == []


def test_where_one_rank_cannot_all_stay_as_they_are(tmp_path: Path) -> None:
    ranks = train_ranks("float8 in vain", 2, tmp_path)
    assert ranks[0].steps == ranks[1].steps
    assert set(ranks[0].results["precisions"]) == {"fp32"}
    assert any("torchao cannot be used" in note for note in ranks[0].results["notes"])


def test_fsdp_and_float8_are_refused_together(tmp_path: Path) -> None:
    ranks = train_ranks("plain", 2, tmp_path, status=2, options={"precision": "fp8", "fsdp": True})
    assert NO_FSDP in ranks[0].results["error"]
