"""A training that is killed at any moment goes on where it was, and its journal reads as one run."""

import random
import signal
import time
from itertools import pairwise
from pathlib import Path
from statistics import median_low

import pytest

from amptui.records.run import EpochFinished, RunFinished
from tests.living import Lives, outcome, records_of, steps_of, witnessed_arguments
from tests.recipes.witness import witnessed
from tests.warm import PATIENCE_SECONDS

LIFE_SECONDS = (0.05, 0.7)
"""From the start of a process to its end: some do not get to a step, most write a checkpoint or several."""

LOST_SECONDS = 1.0
"""What a kill may cost of the journal."""


def lived(folder: Path) -> list[tuple[int, int, str, float | None, float | None, int | None]]:
    """What the journal says of each step, without its times."""
    return [(r.step, r.epoch, r.precision, r.loss, r.loss_scale, r.growth_tracker) for r in steps_of(folder)]


def epochs(folder: Path) -> list[tuple[int, int, float | None]]:
    return [(r.epoch, r.step, r.mean_loss) for r in records_of(folder) if isinstance(r, EpochFinished)]


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.ci), pytest.param(50, marks=pytest.mark.nightly)]
)
def test_kills_at_random_moments_cost_no_step(kills: int, lives: Lives, tmp_path: Path) -> None:
    moments, run = random.Random(20), tmp_path / "run"
    losses = list[float]()
    for _ in range(kills):
        before, began = len(witnessed(tmp_path / "run.steps")), time.time()
        options = ("--resume", "--checkpoint-every", "7", "--set", "step_ms=1")
        process = lives.start(*witnessed_arguments(run, *options))
        time.sleep(moments.uniform(*LIFE_SECONDS))
        killed = time.time()
        process.kill()
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, lives.log.read_text()
        # Of the steps that this life computed, those that the journal does not hold were lost with it.
        computed = witnessed(tmp_path / "run.steps")[before:]
        lost = computed[sum(r.time >= began for r in steps_of(run)) :]
        losses.append(max((killed - moment for moment, _ in lost), default=0.0))
    steps = max((r.step for r in steps_of(run)), default=0) + 50
    for folder, more in ((run, ["--resume", "--set", "step_ms=1"]), (tmp_path / "straight", list[str]())):
        whole = lives.start(*witnessed_arguments(folder, "--steps", str(steps), *more))
        assert whole.wait(PATIENCE_SECONDS) == 0, lives.log.read_text()
    assert lived(run) == lived(tmp_path / "straight")
    assert epochs(run) == epochs(tmp_path / "straight")
    if kills > 2:  # on a machine that has more to do any one kill may cost more
        assert median_low(losses) <= LOST_SECONDS
    assert [r.step for r in steps_of(run)] == list(range(1, steps + 1))
    assert outcome(run) is RunFinished
    times = [r.time for r in steps_of(run)]
    assert all(early <= late for early, late in pairwise(times))
