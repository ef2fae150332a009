"""Trainings of amptui's command line leave the bits of a loop by hand."""

from pathlib import Path

import pytest

from tests.experiments.by_hand import Loop, Training
from tests.experiments.experiments import EXPERIMENTS
from tests.experiments.recorded import assert_same_run, command_line, order_of
from tests.warm import WarmSource

STATUSES = {"": 0, "term": 143, "kill": -9}
"""How `amptui train` ends with its training."""


@pytest.mark.parametrize("training", EXPERIMENTS)
def test_the_command_line_trains_as_a_loop_by_hand(
    training: Training, tmp_path: Path, warm: WarmSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = command_line(training, tmp_path, "--headless", *["--resume"] * bool(training.ends))
    for end in (*training.ends, ""):
        monkeypatch.setenv("END_AT", end)
        ended = warm.run(*command)
        assert ended.returncode == STATUSES[end.partition(" ")[0]], ended.stderr.decode()
    # Of these amptui chooses the order: a permutation for each epoch.
    is_ours = training.recipe.get("data", "arrays") in ("arrays", "dataset")
    assert_same_run(tmp_path, Loop(training, order=order_of(tmp_path) if is_ours else ()).run())
