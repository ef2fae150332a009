"""The last line of a run that failed names the command that resumes it, where there is a checkpoint."""

from pathlib import Path

import pytest

from amptui.engine.checkpoint.file import checkpoints
from amptui.process import launch
from amptui.records.run import RunFailed
from amptui.runs.trust import resume_command
from tests.living import records_of
from tests.process.test_launch import request, start, train
from tests.terminal import KNOBS


@pytest.mark.parametrize("every", [2, None])
def test_an_error_after_a_checkpoint_ends_with_the_command_that_resumes_the_run(
    every: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    asked = request(settings={"trouble": "loss", "at": "5"}, checkpoint_every=every)
    assert train(run, asked) == 1
    last = records_of(run)[-1]
    assert isinstance(last, RunFailed)
    assert capsys.readouterr().err == f"amptui: {last.error}\n"
    what, _, way_on = last.error.partition("; to resume from ")
    assert what.startswith("ValueError: bad label in batch 5 (")
    newest = checkpoints(run / "checkpoints")[:1]
    assert len(newest) == (every is not None)
    assert way_on == "".join(f"{path.name}: {resume_command(run)}" for path in newest)


def test_a_resumed_run_that_came_no_further_does_not_name_its_own_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(run, request(steps=2)) == 0
    for path in checkpoints(run / "checkpoints"):
        path.write_bytes(b"damaged")
    assert start(launch.plan_resumed({"model": KNOBS, "steps": 3, "interactive": False}, str(run))) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith(f"amptui: no checkpoint in {run / 'checkpoints'} ")
    assert last_line.endswith(" without --resume")
    assert resume_command(run) not in last_line
