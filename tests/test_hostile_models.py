"""Model files that go wrong in every way: a run ends as it should, with a last record and the truth."""

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

from amptui.records.run import RunFinished
from tests.living import ended_afterwards, last_step, outcome, records_of, steps_of, wait_for_end, wait_until
from tests.terminal import KNOBS
from tests.warm import WarmSource


@pytest.mark.ci
def test_a_run_that_became_nan_says_how_to_go_back(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    knobs = ["--set", "trouble=nan", "--set", "at=130", "--set", "step_ms=0", "--checkpoint-every", "50"]
    done = warm.run("train", KNOBS, "--device", "cpu", "--headless", "--run-dir", str(run), *knobs)
    assert done.returncode == 1
    (said,) = done.stderr.decode().splitlines()
    found = re.search(r"; go back to checkpoint step-(\d+)\.pt: (.+)", said)
    assert found
    assert int(found[1]) < 130
    command = shlex.split(found[2])
    assert command[:2] == ["amptui", "train"]
    # What it says to type goes on from there: a busy disk puts off the checkpoint of step 100.
    again = warm.run(*command[1:], "--steps", "129")
    assert again.returncode == 0, again.stderr
    assert isinstance(records_of(run)[-1], RunFinished)
    assert last_step(run) == 129


RECIPES = Path(__file__).parent / "recipes"


def session_of(leader: int) -> set[int]:
    """The living processes of the session that ``leader`` led, its own among them."""
    members = set()
    for path in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _parent, _group, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                members.add(int(path.name))
    return members


@pytest.mark.ci
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_every_kind_know_what_the_model_file_defines_and_leave_with_the_run(
    method: str, warm: WarmSource, tmp_path: Path
) -> None:
    run, told = tmp_path / "run", tmp_path / "pid"
    options = [f"start_method={method}", f"pid_file={told}"]
    with ended_afterwards(run):
        command = ["train", str(RECIPES / "worked.py"), "--device", "cpu", "--detach", "--run-dir", str(run)]
        assert warm.run(*command, *(each for option in options for each in ("--set", option))).returncode == 0
        wait_for_end(run)
        assert outcome(run) is RunFinished
        assert last_step(run) == 8
        # It leads a session of its own, which all that it starts belongs to.
        wait_until(lambda: not session_of(int(told.read_text())), "a process of the run is left")


STEPS = 40


@pytest.mark.ci
@pytest.mark.parametrize("what", ["close the streams", "fork", "fork that exits"])
def test_a_model_that_forks_or_closes_what_is_not_its_own_costs_no_record(
    what: str, warm: WarmSource, tmp_path: Path
) -> None:
    run, settings = tmp_path / "run", ["--set", f"what={what}", "--set", f"folder={tmp_path}"]
    recipe = str(RECIPES / "troublesome.py")
    done = warm.run("train", recipe, "--device", "cpu", "--headless", "--run-dir", str(run), *settings)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr, done.stderr
    assert isinstance(records_of(run)[-1], RunFinished)
    assert [record.step for record in steps_of(run)] == list(range(1, STEPS + 1))
    if what == "fork":
        copy = int((tmp_path / "copy").read_text())
        assert copy != int((tmp_path / "original").read_text())
        wait_until(lambda: not Path(f"/proc/{copy}").exists(), "the copy trains on")
        assert done.stderr.count(b"returned into the training loop") == 1
