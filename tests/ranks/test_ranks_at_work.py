"""Real ranks over gloo: they train as one process would, obey together, and tell who ended."""

import math
from pathlib import Path

import pytest
import torch

from amptui.engine.float8 import NO_FSDP
from amptui.records.steps import StepRecord
from tests.ranks.rank_at_work import train_ranks
from tests.ranks.recorded import Recorded
from tests.tiny import Log, losses, prepare, train
from tests.warm import WarmSource

pytestmark = pytest.mark.ci


def test_a_loader_of_an_experiment_is_shared_by_the_ranks(warm: WarmSource, tmp_path: Path) -> None:
    """101 samples are 12 batches of 8, and one of 5, which is left out: six steps of two ranks."""
    ranks = train_ranks("plain", 2, tmp_path, warm=warm, batch_norm="no", loader="yes", samples="101")
    assert ranks[0].steps == ranks[1].steps

    log = Log()
    train(prepare(Recorded(epochs=2, batch_size=16, batch_norm=False, loader=True, samples=101)), log)
    alone = losses(log)
    assert ranks[0].results["losses"][:6] == pytest.approx(alone[:6], rel=1e-5)
    assert ranks[0].results["samples"] == [16] * 12
    assert [samples for _, _, samples in ranks[0].results["validations"]] == [101, 101]


@pytest.mark.parametrize(("precision", "fsdp"), [("fp32", False), ("fp16", True)])
def test_accumulated_gradients_are_those_of_one_process_with_the_global_batches(
    warm: WarmSource, tmp_path: Path, precision: str, fsdp: bool
) -> None:
    """The last step of an epoch has only two of four batches."""
    options = {"accumulate": 4, "precision": precision, "clip_norm": 0.5}
    ranks = train_ranks("plain", 2, tmp_path, warm=warm, batch_norm="no", options={**options, "fsdp": fsdp})
    assert ranks[0].steps == ranks[1].steps

    log = Log()
    train(prepare(Recorded(epochs=2, batch_size=16, batch_norm=False), **options), log)
    assert ranks[0].results["losses"] == pytest.approx(losses(log), rel=1e-5 if precision == "fp32" else 1e-2)
    alone = log.of(StepRecord)
    assert ranks[0].results["samples"] == [record.samples for record in alone] == [64, 32] * 2
    assert ranks[0].results["micro_batches"] == [record.micro_batches for record in alone] == [4, 2] * 2


@pytest.mark.parametrize(
    ("ranks", "fsdp"),
    [
        (2, False),
        (3, True),
        pytest.param(3, False, marks=pytest.mark.nightly),
        pytest.param(2, True, marks=pytest.mark.nightly),
    ],
)
def test_random_requests_are_obeyed_at_the_same_steps_and_leave_the_same_weights(
    warm: WarmSource, tmp_path: Path, ranks: int, fsdp: bool
) -> None:
    results = train_ranks(
        "requests", ranks, tmp_path, warm=warm, requests=200, seed=11, fsdp=fsdp, timeout=280
    )
    assert all(rank.steps == results[0].steps for rank in results[1:])
    precisions = [precision for precision, _ in results[0].steps]
    assert len(set(precisions)) == 3
    assert any("would make all ranks' weights NaN" in note for note in results[0].results["notes"])
    if not fsdp:  # each rank has weights of its own there
        assert len(results[0].results["hashed_steps"]) > 3
    assert all(rank.results["hashed_steps"] == results[0].results["hashed_steps"] for rank in results[1:])
    assert results[0].results["disagreements"] == []


def test_a_single_bit_that_differs_on_one_rank_is_told(warm: WarmSource, tmp_path: Path) -> None:
    results = train_ranks(
        "plain", 2, tmp_path, warm=warm, flips_on_rank="1", slow_seconds="0.02", epochs="20"
    )
    (what, step, count, ranks), *later = results[0].results["disagreements"]
    assert (what, count, ranks, later) == ("weights", 1, [1], [])
    assert step >= 5
    assert results[0].steps[step - 1] != results[1].steps[step - 1]


@pytest.mark.parametrize("overflow", ["gradients", "loss"])
def test_a_skip_names_the_rank_that_overflowed(warm: WarmSource, tmp_path: Path, overflow: str) -> None:
    poisoned = {"overflows_on_rank": "1", "overflow_step": "7", "overflow": overflow}
    slowly = {"options": {"precision": "fp16"}, "slow_seconds": "0.02", "epochs": "12"}
    first, second = train_ranks("plain", 2, tmp_path, warm=warm, **poisoned, **slowly)
    assert 7 in first.results["skipped"]
    assert [7, [1]] in first.results["overflowed"]
    assert all(step in first.results["skipped"] for step, _ in first.results["overflowed"])
    assert second.results["local_overflows"] == (first.results["local_overflows"] or 0) + 1
    assert first.results["disagreements"] == []


def test_a_run_that_one_rank_s_loss_ended_names_it(warm: WarmSource, tmp_path: Path) -> None:
    poisoned = {"overflows_on_rank": "1", "overflow_step": "9", "overflow": "loss"}
    options = {"precision": "bf16"}
    first, _ = train_ranks(
        "plain", 2, tmp_path, warm=warm, **poisoned, options=options, epochs="12", status=1
    )
    assert "; rank 1 had the first loss that was not finite, in step 9; " in first.results["error"]


def test_an_x_ray_and_a_trace_leave_all_replicas_as_they_were(warm: WarmSource, tmp_path: Path) -> None:
    plain, probed = tmp_path / "plain", tmp_path / "probed"
    plain.mkdir()
    probed.mkdir()
    settings = {"dropout": "0.3", "slow_seconds": "0.001"}
    ranks = train_ranks("probed", 2, probed, warm=warm, **settings)
    assert ranks[0].results["answers"].count(["RequestTaken", "x-ray"]) == 2
    assert ranks[0].results["answers"].count(["RequestTaken", "trace"]) == 2
    assert ranks[0].steps == ranks[1].steps

    options = {"steps": len(ranks[0].steps)}
    alone = train_ranks("plain", 2, plain, warm=warm, **settings, epochs="1000", options=options)
    assert alone[0].steps == ranks[0].steps


def test_a_loss_that_communicates_cannot_be_x_rayed_and_the_run_goes_on(
    warm: WarmSource, tmp_path: Path
) -> None:
    ranks = train_ranks("refused", 2, tmp_path, warm=warm, communicates="yes")
    assert ranks[0].results["answers"] == [["RequestRefused", "x-ray"]]
    assert ranks[0].results["compute"]
    assert all(math.isnan(seconds) for seconds in ranks[0].results["compute"])
    assert ranks[0].results["refusals"][0].startswith("loss() communicates with other ranks (allreduce)")
    assert ranks[0].steps == ranks[1].steps


@pytest.mark.parametrize("rank", [0, 1])
def test_a_switch_that_fails_on_one_rank_is_undone_on_all(
    warm: WarmSource, tmp_path: Path, rank: int
) -> None:
    ranks = train_ranks(
        "switched", 2, tmp_path, warm=warm, fails_in="bf16", fails_on_rank=str(rank), dropout="0.3"
    )
    assert ranks[0].results["answers"][:2] == [["RequestRefused", "precision"]] * 2
    assert ranks[0].steps == ranks[1].steps
    assert {precision for precision, _ in ranks[0].steps} == {"fp32"}
    assert f"back to fp32: rank {rank}: " in ranks[0].results["refusals"][0]


def test_a_first_step_that_fails_after_the_others_have_made_it_ends_the_run(
    warm: WarmSource, tmp_path: Path
) -> None:
    ranks = train_ranks(
        "switched", 2, tmp_path, warm=warm, fails_in="bf16", fails_on_rank="1", fails_late="yes", status=1
    )
    assert ranks[0].results["error"].startswith("rank 1: ArithmeticError: a wrong number")


@pytest.mark.parametrize(("rank", "fsdp"), [(0, False), (1, True)])
def test_an_error_on_one_rank_ends_all_and_is_told_by_rank_0(
    warm: WarmSource, tmp_path: Path, rank: int, fsdp: bool
) -> None:
    ranks = train_ranks(
        "plain", 2, tmp_path, warm=warm, fails_on_rank=str(rank), options={"fsdp": fsdp}, status=1
    )
    error = ranks[0].results["error"]
    assert "ArithmeticError: a wrong number" in error
    assert error.startswith("rank 1: ") == (rank == 1)
    assert ("RankLost" in ranks[0].results["records"]) == (rank == 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_rank_that_fails_before_it_met_the_others_is_told_by_rank_0(
    warm: WarmSource, tmp_path: Path
) -> None:
    ranks = train_ranks("without GPU", 2, tmp_path, warm=warm, rank=1, status=1)
    assert ranks[0].results["error"].startswith("rank 1: device cuda")
    assert "RankLost" in ranks[0].results["records"]


def test_a_parameter_without_a_gradient_is_explained(warm: WarmSource, tmp_path: Path) -> None:
    """DDP raises it on every rank, and rank 0 may hear of another's first."""
    ranks = train_ranks("plain", 2, tmp_path, warm=warm, unused="yes", status=1)
    error = ranks[0].results["error"].removeprefix("rank 1: ")
    assert error.startswith("a parameter of the model took no part in loss()")


# FP8: each rank scales its own operands, and all keep the same weights and switch together.


@pytest.mark.torch
@pytest.mark.usefixtures("usable_torchao")
def test_ranks_in_float8_keep_the_same_weights_and_learn_as_one_process_does(
    warm: WarmSource, tmp_path: Path
) -> None:
    """Not bit for bit: a rank's share of a batch has a scale of its own."""
    options = {"precision": "fp8"}
    ranks = train_ranks("plain", 2, tmp_path, warm=warm, batch_norm="no", options=options)
    assert ranks[0].steps == ranks[1].steps
    assert set(ranks[0].results["precisions"]) == {"fp8-emulated"}
    log = Log()
    train(prepare(Recorded(epochs=2, batch_size=16, batch_norm=False), **options), log)
    assert ranks[0].results["losses"] == pytest.approx(losses(log), rel=0.02)


@pytest.mark.usefixtures("usable_torchao")
def test_ranks_enter_and_leave_float8_at_the_same_steps(warm: WarmSource, tmp_path: Path) -> None:
    ranks = train_ranks("float8", 2, tmp_path, warm=warm)
    assert ranks[0].steps == ranks[1].steps
    precisions = ranks[0].results["precisions"]
    order = [name for name, before in zip(precisions, ["", *precisions], strict=False) if name != before]
    assert order == ["fp32", "fp8-emulated", "fp32", "fp8-emulated", "bf16"]
    assert ranks[0].results["disagreements"] == []


@pytest.mark.usefixtures("usable_torchao")
def test_fsdp_and_float8_are_refused_together(warm: WarmSource, tmp_path: Path) -> None:
    options = {"precision": "fp8", "fsdp": True}
    ranks = train_ranks("plain", 2, tmp_path, warm=warm, status=2, options=options)
    assert NO_FSDP in ranks[0].results["error"]
