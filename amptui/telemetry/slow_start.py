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
    step: int = 2
    """The first step without one-time work."""


def slow_start(block: Steps, run: RunStarted) -> SlowFound | None:
    """None unless ``block`` has the second step and that is slow, in a training that has amptui's options."""
    at, epoch = 2 - block.first_step, run.steps_per_epoch or 0
    if not 0 <= at < block.count or block.optimizer or run.device != "cpu" or "experiment" not in run.config:
        return None
    seconds = block.step_seconds[at] or 0.0
    if not epoch * seconds > SLOW_SECONDS or (run.total_steps or epoch) < epoch:
        return None
    ways = [f"--batch-size {min(32, math.ceil(batch / 4))}"] if (batch := run.batch_size or 1) > 1 else []
    ways += ["simple-cnn"] if run.model in CATALOGUE and run.model != "simple-cnn" else []
    numbers = {"seconds": seconds, "epoch_seconds": epoch * seconds}
    names = {"cheaper": " or ".join(ways)}
    finding = Finding(subject="cost", state="slow", grade="warning", numbers=numbers, names=names, step=2)
    return SlowFound(time=block.time, finding=finding)
