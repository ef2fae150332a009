"""What several ranks train on the pretended GPUs: a model that writes down where their hosts waited."""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from amptui.records.run import Record
from tests.builders import StepRow, of
from tests.simcuda import device, training

DDP_OWN_TIMERS = "DistributedDataParallel._pre_forward"
"""Where DDP reads its own timers: in its first ten steps, and in every hundredth."""

SETTLED = 10
"""From this step on no memory is allocated any more, that of the first histogram's readings included."""


class Whole(training.Whole):
    """Writes down where the hosts of its ranks waited."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor | dict[str, Tensor]:
        if model.training:
            self.step = getattr(self, "step", 0) + 1
            self.note_waits()
        return super().loss(model, batch)

    def note_waits(self) -> None:
        """Write down the waits since the last call; nothing where the run is on a CPU."""
        out = os.environ.get("WAITS_OUT")
        if out is None or not device.is_present():
            return
        waits = [
            str(wait) for wait in device.take_waits() if not wait.stack or wait.stack[0][2] != DDP_OWN_TIMERS
        ]
        with Path(out, f"{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(json.dumps([self.step, waits]) + "\n")


def waits_in_steps(out: Path, *, last: int) -> dict[int, list[str]]:
    """Of each rank, the waits after the loss of step ``SETTLED`` until that of step ``last``."""
    waits: dict[int, list[str]] = {}
    for path in sorted(out.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        waits[int(path.stem)] = [wait for step, some in lines if SETTLED < step <= last for wait in some]
    return waits


def losses_of(records: list[Record]) -> list[float | None]:
    return [record.loss for record in of(StepRow, records)]
