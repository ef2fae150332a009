"""Two real ranks over gloo, started as torchrun does it, train as one process would."""

from pathlib import Path

import pytest

from amptui.records.run import EpochFinished
from tests.ranks.rank_at_work import train_ranks
from tests.ranks.recorded import Recorded
from tests.tiny import Log, losses, prepare, train
from tests.warm import WarmSource


@pytest.mark.parametrize("fsdp", [False, pytest.param(True, marks=[pytest.mark.ci, pytest.mark.torch])])
def test_two_ranks_train_as_one_process_with_the_global_batch(
    warm: WarmSource, tmp_path: Path, fsdp: bool
) -> None:
    ranks = train_ranks(
        "plain", 2, tmp_path, warm=warm, batch_norm="no", samples="72", options={"fsdp": fsdp}
    )
    assert ranks[0].steps == ranks[1].steps

    log = Log()
    train(prepare(Recorded(epochs=2, batch_size=16, samples=72, batch_norm=False)), log)
    assert ranks[0].results["losses"] == pytest.approx(losses(log), rel=1e-5)
    alone = [record.validation for record in log.of(EpochFinished) if record.validation is not None]
    for results, expected in zip(ranks[0].results["validations"], alone, strict=True):
        assert results == pytest.approx((expected.loss, expected.accuracy, expected.samples), rel=1e-5)
