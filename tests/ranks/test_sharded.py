"""Ranks train as one process would, sharded by FSDP2 too, also odd models; how those are divided."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from amptui.checkpoint.states import load_weights
from amptui.ranks.parallel.data_parallel import LossRoot
from amptui.ranks.parallel.sharded import blocks_of, shard
from amptui.records.findings import Float16Window
from amptui.records.ranks import RanksSampled
from amptui.records.run import EpochFinished
from tests.builders import StepRow
from tests.ranks.rank_at_work import Start
from tests.ranks.recorded import OddModel, Recorded, alone
from tests.tiny import log_of, losses, prepare

POISONED = {"overflows_on_rank": "1"}
"""The third loss of rank 1 is infinite."""


def test_members_of_lists_are_blocks_and_what_they_share_is_left_to_the_root() -> None:
    layers = [nn.Linear(2, 2) for _ in range(4)]
    listed = nn.Sequential(layers[0], nn.ReLU(), nn.Sequential(nn.ModuleList(layers[1:3]), layers[3]))
    odd, tied = OddModel(), nn.Sequential(*[nn.Linear(2, 2) for _ in range(3)])
    tied[2].weight = tied[0].weight
    first, second = (nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.ReLU()) for _ in range(2))
    cases: list[tuple[nn.Module, list[nn.Module]]] = [
        (listed, [*layers]),
        (odd, [*odd.blocks]),  # a block is not opened
        (nn.MultiheadAttention(4, 2), []),
        (tied, [tied[1]]),
        (nn.ModuleList([nn.ModuleDict({"layer": layers[0]}), nn.ModuleDict({"layer": layers[0]})]), []),
        (nn.Sequential(first, nn.Sequential(second)), [first, second]),  # each is one block, not its layers
    ]
    for model, blocks in cases:
        assert blocks_of(model) == blocks


@pytest.fixture
def group() -> Iterator[None]:
    """The processes of a group: this one."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.torch
@pytest.mark.usefixtures("group")
def test_the_mean_loss_stays_in_float32() -> None:
    dtype = torch.bfloat16
    model = nn.Linear(2, 1, dtype=dtype)
    root = LossRoot(model, [1])
    shard(root, 1)
    mean = root.loss.mean
    loss = root(lambda: model(torch.ones(1, 2, dtype=dtype)).float().square().mean() + 1 / 3)
    assert isinstance(loss, Tensor)
    loss.backward()
    assert mean.grad is not None
    assert mean.grad.dtype is torch.float32
    assert mean.grad.to_local().item() == loss.item()  # type: ignore[attr-defined]
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is dtype


@pytest.mark.parametrize("fsdp", [False, pytest.param(True, marks=[pytest.mark.ci, pytest.mark.torch])])
def test_two_ranks_train_as_one_process_with_the_global_batch(start: Start, fsdp: bool) -> None:
    ranks = start(batch_norm="no", samples="72", options={"fsdp": fsdp})
    assert ranks[0].steps == ranks[1].steps
    last = ranks[0].log.of(RanksSampled)[-1]
    assert (last.step, last.world_size) == (len(ranks[0].steps), 2)

    log = alone(samples=72, batch_norm=False)
    assert ranks[0].losses == pytest.approx(losses(log), rel=1e-5)
    validations = [record.validation for record in log.of(EpochFinished) if record.validation is not None]
    for results, expected in zip(ranks[0].validations, validations, strict=True):
        assert results == pytest.approx((expected.loss, expected.accuracy, expected.samples), rel=1e-5)


@pytest.mark.ci
def test_tied_frozen_lazy_and_unused_weights_train_as_in_one_process(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    arguments = {"odd": "yes", "unused": "yes"}
    options = {"fsdp": True, "save_weights": str(path), "clip_norm": 0.5}
    ranks = start(**arguments, options=options)
    assert ranks[0].steps == ranks[1].steps

    one = prepare(Recorded(epochs=2, batch_size=16, odd=True, unused=True), clip_norm=0.5)
    log = log_of(one)
    assert ranks[0].losses == pytest.approx(losses(log), rel=1e-5)
    expected = {name: value.clone() for name, value in one.model.state_dict().items()}
    load_weights(one.model, path)
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)

    options = {"fsdp": True, "init_weights": str(path)}
    ranks = start(**arguments, options=options)
    again = losses(alone(odd=True, unused=True, options={"init_weights": str(path)}))
    assert ranks[0].losses == pytest.approx(again, rel=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"odd": "yes", "outside": "yes"},
            "loss() used the weights of a block outside its forward() (in step 1)",
        ),
        ({"fused_sgd": "yes"}, "aten._fused_sgd_.default does not work on sharded weights (in step 1)"),
    ],
)
def test_what_does_not_work_on_sharded_weights_is_explained(
    start: Start, settings: dict[str, str], error: str
) -> None:
    """FSDP2 raises it on every rank, and rank 0 may hear of another's first."""
    if "fused_sgd" in settings and torch.__version__.startswith("2.9."):
        pytest.skip("torch 2.9 says it otherwise")
    ranks = start(**settings, options={"fsdp": True}, status=1)
    assert ranks[0].error.removeprefix("rank 1: ").startswith(error)


@pytest.mark.ci
def test_norms_and_windows_are_those_of_the_global_gradient(start: Start) -> None:
    # Of four biases in the last layer the third rank has none.
    ranks = start(count=3, batch_norm="no", samples="320", width="3", options={"fsdp": True})

    experiment = Recorded(epochs=2, batch_size=24, samples=320, width=3, batch_norm=False)
    one = prepare(experiment, clip_norm=1e9)  # its norm is measured in each step
    log = log_of(one)
    expected = {record.step: record.grad_norm for record in log.of(StepRow)}
    norms = {step.step: step.grad_norm for step in ranks[0].log.of(StepRow) if step.grad_norm is not None}
    assert norms
    assert norms == pytest.approx({step: expected[step] for step in norms}, rel=1e-4)
    elements = sum(p.numel() for p in one.model.parameters())
    windows = ranks[0].log.of(Float16Window)
    assert windows
    for window in windows:
        assert (window.elements, window.nonfinite) == (sum(window.counts) + window.zeros, 0) == (elements, 0)


@pytest.mark.ci
def test_an_overflow_on_one_rank_skips_the_step_on_all(start: Start) -> None:
    options = {"fsdp": True, "precision": "fp16"}
    ranks = start(**POISONED, options=options)
    steps = ranks[0].log.of(StepRow)
    assert [step.step for step in steps if step.skipped] == [3]
    assert ranks[0].steps == ranks[1].steps
    assert ranks[0].steps[1][1] == ranks[0].steps[2][1] != ranks[0].steps[3][1]
    assert not math.isfinite(steps[2].grad_norm or 0.0)
    assert steps[2].nonfinite_gradients == 6


@pytest.mark.ci
def test_lost_weights_end_the_run(start: Start) -> None:
    arguments = POISONED | {"epochs": "50", "options": {"fsdp": True}}
    ranks = start(**arguments, status=1)
    assert re.search(r"\b6 of 6 .* NaN\b", ranks[0].error)
