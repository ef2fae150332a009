"""`amptui train --fsdp` from the command line: started in both ways, stopped, and with a killed rank."""

import os
import signal
from pathlib import Path

import pytest
import torch

from amptui.records.run import RunFinished, RunStarted
from amptui.records.steps import StepRecord
from amptui.runs.rundir import RunDir
from tests.process.test_elastic import TORCHRUN, assert_lost, last, of, pid_of, ranks
from tests.warm import WarmSource


@pytest.mark.ci
def test_a_sharded_model_is_trained_and_saved_whole(warm: WarmSource, tmp_path: Path) -> None:
    run, weights = tmp_path / "run", tmp_path / "weights.pt"
    options = ("--fsdp", "--epochs", "2", "--save-weights", str(weights))
    with ranks(run, *options, start=TORCHRUN, warm=warm) as process:
        _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    (started,) = of(RunStarted, run)
    assert (started.world_size, started.parallel) == (2, "fsdp2")
    assert set(started.refuses) == {"x-ray"}
    steps = [record.step for record in of(StepRecord, run)]
    assert steps == list(range(1, 13))
    assert RunDir(run).holds_checkpoints
    state = torch.load(weights, weights_only=True)
    assert sum(value.numel() for name, value in state.items() if "running" not in name) > started.parameters


@pytest.mark.ci
def test_sigterm_stops_a_sharded_run_cleanly(warm: WarmSource, tmp_path: Path) -> None:
    run, weights = tmp_path / "run", tmp_path / "weights.pt"
    with ranks(run, "--fsdp", "--save-weights", str(weights), warm=warm) as process:
        os.kill(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=90)
    assert process.returncode == 143, said
    assert last(RunFinished, run).reason == "stopped"
    assert weights.exists()


@pytest.mark.ci
def test_a_killed_rank_ends_a_sharded_run_with_its_name(warm: WarmSource, run: Path) -> None:
    with ranks(run, "--fsdp", warm=warm) as process:
        os.kill(pid_of(1, process), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("amptui: rank 1 ")
    assert_lost(run, 1, "killed")
