"""Trainings of amptui's command line leave the bits of a loop by hand."""

import csv
from pathlib import Path

import pytest

from tests.experiments.by_hand import Loop, Training
from tests.experiments.experiments import EXPERIMENTS
from tests.experiments.recorded import assert_same_run, command_line, order_of
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


@pytest.mark.ci
def test_a_training_starts_with_the_weights_that_another_ended_with(tmp_path: Path, warm: WarmSource) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir(parents=True)
    first.mkdir()
    assert warm.run(*command_line(Training(), first, "--headless")).returncode == 0
    training = Training(start=first / "weights.pt", precision="fp16", recipe={"average": 0.9})
    ended = warm.run(*command_line(training, second, "--headless"))
    assert ended.returncode == 0, ended.stderr.decode()
    assert_same_run(second, Loop(training, order=order_for(training, second)).run())


@pytest.mark.ci
def test_an_exported_table_has_the_numbers_of_the_journal(tmp_path: Path, warm: WarmSource) -> None:
    training = Training(precision="fp16", accumulate=3, clip_norm=0.05, recipe={"spoilt": "4", "parts": True})
    assert warm.run(*command_line(training, tmp_path, "--headless")).returncode == 0
    assert warm.run("export", str(tmp_path / "run"), "--csv", str(tmp_path / "steps.csv")).returncode == 0
    with (tmp_path / "steps.csv").open() as file:
        table = list(csv.DictReader(file))
    by_hand = Loop(training, order=order_of(tmp_path)).run().steps
    assert len(table) == len(by_hand) == 6
    for exported, step in zip(table, by_hand, strict=True):
        del step["group_lrs"]
        step["losses.half"] = step.pop("half")
        written = {name: str(value) for name, value in step.items()}
        written["skipped"] = written["skipped"].lower()
        assert {name: exported.get(name) for name in written} == written
