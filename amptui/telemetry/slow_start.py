"""Whether a training that starts on a CPU takes long, by its second step."""

import math
from dataclasses import dataclass

from amptui.models import CATALOGUE
from amptui.records.run import RunStarted
from amptui.records.steps import Steps
from amptui.telemetry.finding import Finding

SLOW_SECONDS = 300.0
"""An epoch that takes longer is slow: a first look is shorter, and simple-cnn's epoch takes a minute on two
cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFound:
    """What a step and an epoch cost on a CPU, where that is much."""

    time: float
    finding: Finding

    @property
    def step(self) -> int | None:
        """The step that was measured."""
        return self.finding.step


def slow_start(block: Steps, run: RunStarted) -> SlowFound | None:
    """None unless ``block`` has the second step, the first without one-time work, and that is slow.

    Only for a training whose options are amptui's.
    """
    if not block.first_step <= 2 <= block.last_step or block.optimizer or "experiment" not in run.config:
        return None
    seconds, lengths = block.step_seconds[2 - block.first_step], (run.steps_per_epoch, run.total_steps)
    steps = min(filter(None, lengths), default=0)
    if run.device != "cpu" or seconds is None or not steps * seconds > SLOW_SECONDS:
        return None
    numbers = {"seconds": seconds, "cost_seconds": steps * seconds}
    batch = run.batch_size or 1
    if batch > 1:
        numbers["batch_size"] = min(32, math.ceil(batch / 4))
    smaller = "simple-cnn"
    names = {
        "part": "an epoch" if steps == run.steps_per_epoch else "the run",
        "model": smaller if run.model in CATALOGUE and run.model != smaller else "",
    }
    finding = Finding(subject="cost", state="slow", grade="warning", numbers=numbers, names=names, step=2)
    return SlowFound(time=block.time, finding=finding)
