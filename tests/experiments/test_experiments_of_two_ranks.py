"""Two ranks train as one process by hand that averages the gradients of both halves of a batch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.experiments.by_hand import AUTOCAST, Batch, Loop, Step, Training, shared
from tests.experiments.experiments import CI, TORCH, row
from tests.experiments.recorded import (
    assert_same_tensors,
    command_line,
    differences,
    journal,
    order_of,
    steps_of,
)
from tests.warm import WarmSource

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
