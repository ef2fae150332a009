"""Real ranks over gloo: they train as one process would, obey together, and tell who ended."""

from itertools import groupby
from pathlib import Path

import pytest
import torch

from amptui.recipe.float8 import NO_SHARDS
from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.ranks import RankLost, RanksDisagree, RanksOverflowed
from amptui.records.run import StepSkipped
from tests.builders import StepRow
from tests.ranks.rank_at_work import Start
from tests.ranks.recorded import alone
from tests.tiny import losses

pytestmark = pytest.mark.ci


def test_a_loader_of_an_experiment_is_shared_by_the_ranks(start: Start) -> None:
    """101 samples are 12 batches of 8, and one of 5, which is left out: six steps of two ranks."""
    ranks = start(batch_norm="no", loader="yes", samples="101")
    assert ranks[0].steps == ranks[1].steps

    expected = losses(alone(batch_norm=False, loader=True, samples=101))
    assert ranks[0].losses[:6] == pytest.approx(expected[:6], rel=1e-5)
    assert [step.samples for step in ranks[0].log.of(StepRow)] == [16] * 12
    assert [samples for _, _, samples in ranks[0].validations] == [101, 101]


@pytest.mark.parametrize("fsdp", [True, False])
def test_accumulated_gradients_are_those_of_one_process_with_the_global_batches(
    start: Start, fsdp: bool
) -> None:
    """The last step of an epoch has only two of four batches."""
    options = {"accumulate": 4, "precision": "fp16", "clip_norm": 0.5}
    ranks = start(batch_norm="no", options={**options, "fsdp": fsdp})
    assert ranks[0].steps == ranks[1].steps

    log = alone(batch_norm=False, options=options)
    assert ranks[0].losses == pytest.approx(losses(log), rel=1e-2)
    for records in (log, ranks[0].log):
        sizes = [(step.samples, step.micro_batches) for step in records.of(StepRow)]
        assert sizes == [(64, 4), (32, 2)] * 2


@pytest.mark.parametrize(("ranks", "fsdp"), [(2, False), (3, True)])
def test_random_requests_are_obeyed_at_the_same_steps_and_leave_the_same_weights(
    start: Start, ranks: int, fsdp: bool
) -> None:
    first, *others = start("requests", count=ranks, requests=200, seed=11, fsdp=fsdp, timeout=280)
    assert all(rank.steps == first.steps for rank in others)
    assert len({precision for precision, _ in first.steps}) == 3
    assert first.log.of(RanksDisagree) == []


def test_a_skip_names_the_rank_whose_loss_was_infinite(start: Start) -> None:
    poisoned = {"overflows_on_rank": "1", "overflow_step": "7"}
    slowly = {"options": {"precision": "fp16"}, "slow_seconds": "0.02", "epochs": "12"}
    first, second = start(**poisoned, **slowly)
    skipped = {record.step for record in first.log.of(StepSkipped)}
    overflowed = {record.step: record.ranks for record in first.log.of(RanksOverflowed)}
    assert overflowed[7] == (1,)
    assert skipped >= overflowed.keys()
    assert second.rows[-1].overflowed == (first.rows[-1].overflowed or 0) + 1
    assert first.log.of(RanksDisagree) == []


def test_a_run_that_one_rank_s_loss_ended_names_it(start: Start) -> None:
    poisoned = {"overflows_on_rank": "1", "overflow_step": "9"}
    options = {"precision": "bf16"}
    first, _ = start(**poisoned, options=options, epochs="12", status=1)
    assert "; rank 1 had the first loss that was not finite, in step 9; " in first.error


def test_a_trace_and_a_window_leave_all_replicas_as_they_were(start: Start, tmp_path: Path) -> None:
    settings = {"dropout": "0.3", "slow_seconds": "0.001"}
    ranks = start("probed", folder=tmp_path / "probed", **settings)
    assert ranks[0].answers.count((RequestTaken, "trace")) == 2
    assert ranks[0].steps == ranks[1].steps

    options = {"steps": len(ranks[0].steps)}
    plain = start(folder=tmp_path / "plain", **settings, epochs="1000", options=options)
    assert plain[0].steps == ranks[0].steps


def test_the_time_of_a_loss_that_communicates_is_not_told_and_no_rank_is_x_rayed(start: Start) -> None:
    ranks = start("refused", communicates="yes")
    assert ranks[0].answers == [(RequestRefused, "x-ray")]
    assert ranks[0].rows
    assert {row.compute_seconds for row in ranks[0].rows} == {None}
    assert ranks[0].steps == ranks[1].steps


@pytest.mark.parametrize("rank", [0, 1])
def test_a_switch_that_fails_on_one_rank_is_undone_on_all(start: Start, rank: int) -> None:
    ranks = start("switched", fails_in="bf16", fails_on_rank=str(rank), dropout="0.3")
    assert ranks[0].answers[:2] == [(RequestRefused, "precision")] * 2
    assert ranks[0].steps == ranks[1].steps
    assert {precision for precision, _ in ranks[0].steps} == {"fp32"}
    assert f"back to fp32: rank {rank}: " in ranks[0].log.of(RequestRefused)[0].detail


def test_a_first_step_that_fails_after_the_others_have_made_it_ends_the_run(start: Start) -> None:
    ranks = start("switched", fails_in="bf16", fails_on_rank="1", fails_late="yes", status=1)
    assert ranks[0].error.startswith("rank 1: ArithmeticError: a wrong number")


@pytest.mark.parametrize(("rank", "fsdp"), [(0, False), (1, True)])
def test_an_error_on_one_rank_ends_all_and_is_told_by_rank_0(start: Start, rank: int, fsdp: bool) -> None:
    ranks = start(fails_on_rank=str(rank), options={"fsdp": fsdp}, status=1)
    error = ranks[0].error
    assert "ArithmeticError: a wrong number" in error
    assert error.startswith("rank 1: ") == (rank == 1)
    assert len(ranks[0].log.of(RankLost)) == (rank == 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_rank_that_fails_before_it_met_the_others_is_told_by_rank_0(start: Start) -> None:
    ranks = start("without GPU", rank=1, status=1)
    assert ranks[0].error.startswith("rank 1: device cuda")
    assert ranks[0].log.of(RankLost)


def test_a_parameter_without_a_gradient_is_explained(start: Start) -> None:
    """DDP raises it on every rank, and rank 0 may hear of another's first."""
    ranks = start(unused="yes", status=1)
    error = ranks[0].error.removeprefix("rank 1: ")
    assert error.startswith("a parameter of the model took no part in loss()")


@pytest.mark.torch
@pytest.mark.usefixtures("usable_torchao")
def test_ranks_in_float8_keep_the_same_weights_and_learn_as_one_process_does(start: Start) -> None:
    """Not bit for bit: a rank's share of a batch has a scale of its own."""
    options = {"precision": "fp8"}
    ranks = start(batch_norm="no", options=options)
    assert ranks[0].steps == ranks[1].steps
    assert {step.precision for step in ranks[0].log.of(StepRow)} == {"fp8"}
    expected = losses(alone(batch_norm=False, options=options))
    assert ranks[0].losses == pytest.approx(expected, rel=0.02)


@pytest.mark.usefixtures("usable_torchao")
def test_ranks_enter_and_leave_float8_at_the_same_steps(start: Start) -> None:
    ranks = start("float8")
    assert ranks[0].steps == ranks[1].steps
    order = [precision for precision, _ in groupby(step.precision for step in ranks[0].log.of(StepRow))]
    assert order == ["fp32", "fp8", "fp32", "fp8", "bf16"]
    assert ranks[0].log.of(RanksDisagree) == []


@pytest.mark.usefixtures("usable_torchao")
def test_fsdp_and_float8_are_refused_together(start: Start) -> None:
    options = {"precision": "fp8", "fsdp": True}
    ranks = start(status=2, options=options)
    assert NO_SHARDS in ranks[0].error
