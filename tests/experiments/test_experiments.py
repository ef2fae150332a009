"""Trainings of amptui's command line, of one process or two, leave the bits of a loop by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.experiments.by_hand import AUTOCAST, Batch, Loop, Step, Training, shared
from tests.experiments.experiments import CI, EXPERIMENTS, TORCH, row
from tests.experiments.recorded import (
    assert_same_run,
    assert_same_tensors,
    command_line,
    differences,
    journal,
    order_of,
    steps_of,
)
from tests.warm import WarmSource

STATUSES = {"": 0, "term": 143, "kill": -9}
"""How `amptui train` ends with its training."""


def order_for(training: Training, folder: Path) -> list[list[int]]:
    """The order of the images where amptui chooses it: a permutation for each epoch."""
    if training.recipe.get("data", "arrays") not in ("arrays", "dataset"):
        return []
    return order_of(folder)


@pytest.mark.parametrize("training", EXPERIMENTS)
def test_the_command_line_trains_as_a_loop_by_hand(
    training: Training, tmp_path: Path, warm: WarmSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = command_line(training, tmp_path, "--headless", *["--resume"] * bool(training.ends))
    for end in (*training.ends, ""):
        monkeypatch.setenv("END_AT", end)
        ended = warm.run(*command)
        assert ended.returncode == STATUSES[end.partition(" ")[0]], ended.stderr.decode()
    assert_same_run(tmp_path, Loop(training, order=order_for(training, tmp_path)).run())


TRAININGS = [
    row("DDP, clipped, a schedule", CI, clip_norm=0.05, schedule="cosine", optimizer="adamw"),
    row(
        "DDP in fp16, accumulated, skips", CI, TORCH, precision="fp16", accumulate=2, spoilt="3", average=0.9
    ),
    row("FSDP", CI, TORCH, optimizer="momentum", schedule="exponential"),
]


class TwoRanks(Loop):
    """The batches of both ranks, one after the other; a step takes as many of each."""

    def __init__(self, training: Training, orders: Sequence[Sequence[Sequence[int]]]) -> None:
        accumulate = training.accumulate
        spoilt = [int(call) - 1 for call in training.recipe.get("spoilt", "").split(",") if call]
        # Of each call of both ranks, its number here, where rank 1's batches of a step follow rank 0's.
        of_rank_0 = [call + call // accumulate * accumulate + 1 for call in spoilt]
        calls = ",".join(str(call) for first in of_rank_0 for call in (first, first + accumulate))
        both = [numbers for pair in zip(*orders, strict=True) for numbers in pair]
        recipe = {**training.recipe, "spoilt": calls}
        super().__init__(replace(training, accumulate=2 * accumulate, recipe=recipe), order=both)

    def update(self, precision: str, batches: Sequence[Batch], samples: Sequence[int]) -> Step:
        scaler, dtype, scales = self.scaler, AUTOCAST.get(precision), precision == "fp16"
        halves: list[list[Tensor]] = []
        losses: list[Tensor] = []
        for rank in (0, 1):
            self.optimizer.zero_grad()
            total = torch.zeros(())
            for batch in batches[rank::2]:
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    loss = shared(self.parts(batch)["loss"], len(batch[0]), samples[rank::2])
                (scaler.scale(loss) if scales else loss).backward()
                total = total + loss.detach()
            losses.append(total)
            halves.append([p.grad.clone() for p in self.model.parameters() if p.grad is not None])
        for parameter, one, other in zip(self.model.parameters(), *halves, strict=True):
            parameter.grad = one / 2 + other / 2
        known: Step = {"micro_batches": len(batches) // 2, "loss": torch.stack(losses).mean().item()}
        return self.apply(known, scales=scales)


@pytest.mark.parametrize("training", TRAININGS)
def test_two_ranks_train_as_one_process_by_hand(
    training: Training, tmp_path: Path, warm: WarmSource, request: pytest.FixtureRequest
) -> None:
    training = replace(training, recipe={"validates": False, **training.recipe})
    sharded = ["--fsdp"] * ("FSDP" in request.node.callspec.id)
    command = command_line(training, tmp_path, "--headless", "--nproc", "2", *sharded)
    ended = warm.run(*command)
    assert ended.returncode == 0, ended.stderr.decode()
    orders = [order_of(tmp_path, rank=rank) for rank in "01"]
    first_epoch = [image for order in orders for batch in order[: len(order) // 2] for image in batch]
    assert len(set(first_epoch)) == len(first_epoch) == 64, "four whole batches of each rank"
    by_hand = TwoRanks(training, orders).run()
    assert differences(steps_of(journal(tmp_path / "run")), by_hand.steps) == []
    assert_same_tensors(torch.load(tmp_path / "weights.pt"), by_hand.weights)
