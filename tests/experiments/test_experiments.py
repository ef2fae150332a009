"""Trainings of amptui's command line leave the bits of a loop by hand."""

from pathlib import Path

import pytest

from tests.experiments.by_hand import Loop, Training
from tests.experiments.experiments import EXPERIMENTS
from tests.experiments.recorded import (
    assert_same_run,
    command_line,
    order_of,
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
