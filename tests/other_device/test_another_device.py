"""Training on a device that torch itself knows nothing of, in processes of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amptui.records.run import RunFinished, RunStarted
from tests.builders import StepRow, of
from tests.checkout import ROOT, child_environment
from tests.living import records_of
from tests.other_device.build import environment
from tests.terminal import amptui_command

HERE = Path(__file__).parent

pytestmark = pytest.mark.nightly  # the device is compiled


@pytest.fixture
def machine(other_device: Path) -> Iterator[dict[str, str]]:
    with child_environment() as added:
        yield environment(other_device, os.environ | added)


def run(command: list[str], machine: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, env=machine, capture_output=True, text=True, check=False)


def test_training_on_it(machine: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--override-ini=pythonpath="]
    done = run([*command, str(HERE / "on_it")], machine)
    assert done.returncode == 0, (done.stdout + done.stderr)[-10_000:]


def test_the_app_trains_on_the_accelerator_that_torch_finds(machine: dict[str, str], tmp_path: Path) -> None:
    command = amptui_command("train", "tests.tiny:Tiny", "--run-dir", str(tmp_path / "run"), "--headless")
    done = run(command, machine)
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path / "run")
    (started,) = (record for record in records if isinstance(record, RunStarted))
    assert (started.device, started.device_name, started.gpu_uuid) == ("plain:0", "plain", None)
    assert [record.step for record in of(StepRow, records)] == list(range(1, 17))
    assert isinstance(records[-1], RunFinished)


def test_doctor_names_it_and_says_that_it_is_untested(machine: dict[str, str]) -> None:
    lines = map(json.loads, run(amptui_command("doctor", "--json"), machine).stdout.splitlines())
    checks = {line.get("name", line["type"]): line for line in lines}
    assert checks["plain:0"]["text"] == "plain:0 plain"
    assert checks["limits"]["text"].startswith("amptui is not tested on plain: ")
    assert checks["Verdict"]["device"] == "plain"
