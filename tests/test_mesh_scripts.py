"""A script on a device mesh: samples that its ranks share are counted once."""

import os
import subprocess
from pathlib import Path

import pytest

from amptui.records.run import RunFinished, RunStarted
from amptui.records.steps import StepRecord
from tests.checkout import ROOT
from tests.living import records_of
from tests.mesh_script import BATCH, STEPS
from tests.terminal import amptui_command

pytestmark = pytest.mark.ci

SCRIPT = str(ROOT / "tests" / "mesh_script.py")


@pytest.mark.parametrize("kind", ["watch", "observe"])
def test_ranks_that_share_their_samples_count_them_once(kind: str, tmp_path: Path) -> None:
    options = ["--observe"] if kind == "observe" else []
    run = amptui_command("run", "--headless", *options, "torchrun", "--standalone", "--nproc-per-node", "4")
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [*run, SCRIPT, "watch" if kind == "watch" else "bare"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (folder,) = (tmp_path / "state" / "amptui" / "runs").iterdir()
    records = records_of(folder)
    (started,) = (record for record in records if isinstance(record, RunStarted))
    assert (started.world_size, started.parallel, started.data_parallel) == (4, "fsdp2+tp", 2)
    steps = [record for record in records if isinstance(record, StepRecord)]
    assert len(steps) == STEPS
    # FSDP2 has hooks on the model's input: observed alone, nothing says how many samples a step has.
    assert {step.samples for step in steps} == {2 * BATCH if kind == "watch" else 0}
    assert isinstance(records[-1], RunFinished)
    assert "4 ranks, FSDP2 + TP, data parallel 2" in result.stdout + result.stderr
