"""A step's row: every number comes back under its name, whichever others the row holds."""

from itertools import product

import torch
from torch import Tensor, nn

from amptui.engine.precision import ScalerTensors
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.step_rows import StepColumns, StepFacts, StepKind, row_of

KIND = StepKind(epoch=1, precision="fp16")
FACTS = StepFacts(KIND, step=1, samples=8, data_seconds=0.0, load_start=0.0, lr=0.5)


def values(*numbers: float) -> list[Tensor]:
    return [torch.tensor(number) for number in numbers]


def test_every_number_of_a_row_is_read_under_its_name_whichever_others_it_holds() -> None:
    for loss, parts, lrs, scaled, clipped, measured in product((False, True), repeat=6):
        layout, tensors = row_of(
            torch.tensor(1.0) if loss else None,
            dict(zip(("kl", "mse"), values(2.0, 3.0), strict=True)) if parts else {},
            values(4.0, 5.0) if lrs else (),
            ScalerTensors(*values(6.0, 7.0, 8.0, 9.0)) if scaled else None,
            torch.tensor(10.0) if clipped else None,
            torch.tensor([11.0, 12.0, 13.0]) if measured else None,
        )
        row = [number for tensor in tensors for number in tensor.reshape(-1).tolist()]
        facts = FACTS._replace(kind=KIND._replace(layout=layout))
        columns = StepColumns([(facts, row, None)], GradientProbe(nn.Linear(1, 1)))
        block = columns.block(0, 1, 100.0)
        assert block.loss == [1.0 if loss else None]
        assert block.losses == ({"kl": [2.0], "mse": [3.0]} if parts else {})
        assert (block.lr, block.group_lrs) == (([4.0], ([4.0], [5.0])) if lrs else ([0.5], ()))
        assert (block.loss_scale, block.growth_tracker) == (([6.0], [9]) if scaled else ([None], [None]))
        assert columns.is_skipped(0) == block.skipped == scaled
        assert columns.next_scale == ([8.0] if scaled else [None])
        assert block.grad_norm == [10.0 if clipped else 11.0 if measured else None]
        assert block.grad_max == [13.0 if measured else None]
