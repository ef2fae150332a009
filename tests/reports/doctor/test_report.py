"""The doctor's report on this machine and on sick ones: what is read, and how it reads."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from amptui.monitor.ab_test import Ratio
from amptui.recipe.precision import Tf32Flags
from amptui.reports.doctor.check import Check, fine
from amptui.reports.doctor.gpus import loaded_driver, use
from amptui.reports.doctor.machine import check_folder
from amptui.reports.doctor.precisions import measure
from amptui.reports.doctor.report import examine
from tests import deprecations, fake_nvml
from tests.golden import Goldens
from tests.terminal import Terminal

DOCTOR = (
    "import sys; from amptui.reports.doctor.report import doctor; sys.exit(doctor(json='--json' in sys.argv))"
)


def run(*arguments: str, program: str = DOCTOR, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *deprecations.options_for_python(), "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def fake_drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``libnvidia-ml.so.1``, for ``LD_LIBRARY_PATH``."""
    folder = fake_nvml.build(tmp_path_factory.mktemp("drivers"))
    return folder or pytest.skip("no C compiler that builds the make-believe driver")


@pytest.fixture(scope="session")
def broken_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for ``PYTHONPATH`` with a torch that does not load."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "torch.py").write_text("raise ImportError('libtorch.so: cannot open \\x1b[31m it')")
    return str(folder)


@pytest.mark.ci
def test_a_machine_that_trains_has_status_0_and_every_problem_its_hint(fake_drivers: Path) -> None:
    done = run("--json", LD_LIBRARY_PATH=str(fake_drivers), CUDA_VISIBLE_DEVICES="", FAKE_NVML_GPUS="1")
    assert (done.returncode, done.stderr) == (0, "")
    *checks, verdict = map(json.loads, done.stdout.splitlines())
    assert {check["type"] for check in checks} == {"Check"}
    assert all(check["hint"] for check in checks if check["severity"] in ("warning", "error"))
    by_name = {check["name"]: check for check in checks}
    assert "unexamined" not in by_name
    if torch.version.cuda is not None:
        assert "CUDA_VISIBLE_DEVICES='' hides every GPU" in by_name["cuda"]["text"]
    assert by_name["nvml"]["text"] == "NVML: Fake GPU"
    assert re.search(r"[\d.]+× the speed of FP32", by_name["bf16"]["text"])
    warnings = sum(check["severity"] == "warning" for check in checks)
    assert verdict == {
        "type": "Verdict",
        "can_train": True,
        "device": "cpu",
        "warnings": warnings,
        "errors": 0,
    }


def test_a_torch_that_does_not_load_is_told_and_so_is_all_the_rest(broken_torch: str) -> None:
    done = run(PYTHONPATH=broken_torch, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.isascii()
    assert "  x cannot import torch: ImportError: libtorch.so: cannot open ?[31m it\n" in done.stdout
    assert "      > reinstall torch in this environment\n" in done.stdout
    assert re.search(r"\nruns\n  [v!] runs ", done.stdout)
    assert "\nCUDA\n" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Training cannot run here: fix 1 error first (x)")


@pytest.mark.ci
def test_a_terminal_gets_colours_and_lines_of_its_width(broken_torch: str) -> None:
    command = [sys.executable, "-c", DOCTOR]
    with Terminal(command, size=(60, 70), env={"PYTHONPATH": broken_torch, "NO_COLOR": ""}) as terminal:
        terminal.wait_for(r"Training cannot run here")
        terminal.wait()
    assert b"\x1b[91m\xe2\x9c\x96\x1b[0m cannot import torch" in terminal.written
    said = re.sub(r"\x1b\[\d+m", "", terminal.written.decode()).splitlines()
    assert max(len(line.rstrip()) for line in said if "/" not in line) <= 60  # a path is not broken


def fails() -> Iterator[Check]:
    yield fine("first", "seen")
    raise ZeroDivisionError("nobody\nexpected this")


def test_a_look_that_fails_costs_no_other() -> None:
    (title, check), after = examine([("sick", False, fails), ("well", False, lambda: [fine("b", "seen")])])
    assert (title, check.severity) == ("sick", "warning")
    assert check.text == "sick could not be checked: ZeroDivisionError: nobody"
    assert after == ("well", fine("b", "seen"))


# ------------------------------------------------------------------------------- drivers
PROGRAM = """
import json, os, sys
from dataclasses import asdict
from amptui.reports.doctor.gpus import check_nvml, look_at_nvml
found = look_at_nvml(patience_seconds={patience})
print(json.dumps([asdict(check) for check in check_nvml(found, expected={expected})]))
sys.stdout.flush()
os._exit(0)  # a thread may be in the driver still
"""


DRIVERS: dict[str, tuple[bool, dict[str, str]]] = {
    "two GPUs": (True, {}),
    "a refused figure, named once": (True, {"FAULTS": "nvmlDeviceGetPowerUsage=4"}),
    "a MIG instance, which has no sensors": (True, {"GPUS": "1", "MIG": "1"}),
    # A driver that refuses is a trouble even without CUDA.
    "no permission": (False, {"FAULTS": "nvmlInitWithFlags=4"}),
    "too old": (False, {"FAULTS": "nvmlInitWithFlags=13"}),
    "versions differ": (False, {"FAULTS": "nvmlInitWithFlags=18"}),
    "one that never answers is not waited for": (False, {"FAULTS": "nvmlInitWithFlags=hang"}),
}
"""Whether a GPU is expected, and how the make-believe driver is set."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ci] * (name != "two GPUs")) for name in DRIVERS]
)
def test_each_driver_gives_what_was_approved(name: str, fake_drivers: Path, goldens: Goldens) -> None:
    expected, settings = DRIVERS[name]
    patience = 0.2 if "hang" in settings.get("FAULTS", "") else 30
    chosen = {f"FAKE_NVML_{what}": value for what, value in settings.items()}
    program = PROGRAM.format(patience=patience, expected=expected)
    done = run(program=program, LD_LIBRARY_PATH=str(fake_drivers), **chosen)
    assert (done.returncode, done.stderr) == (0, "")
    checks = json.dumps(json.loads(done.stdout), indent=1, ensure_ascii=False)
    goldens.check(f"reports/doctor drivers, {name}", checks)


def test_a_device_is_used_to_see_whether_it_computes() -> None:
    assert use("cpu") == ""
    assert "meta" in use("meta")


def test_the_kernel_tells_of_the_loaded_driver(tmp_path: Path) -> None:
    assert loaded_driver(tmp_path) is None
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\nGCC version\n"
    )
    assert loaded_driver(tmp_path) == "570.133.20"


# ------------------------------------------------------------------------- what a precision gains


def test_each_precision_is_measured_in_turns_with_float32_and_leaves_the_tf32_flags() -> None:
    before = Tf32Flags.current()
    try:
        kept = Tf32Flags.full().with_tf32()
        kept.apply()
        found = measure(torch.device("cpu"), ("fp16", "bf16"), size=32, budget_seconds=0.02)
        assert Tf32Flags.current() == kept
    finally:
        before.apply()
    assert list(found) == ["fp16", "bf16"]
    for one in found.values():
        assert isinstance(one, Ratio)
        assert one.low is not None
        assert one.high is not None
        assert 0 < one.low <= one.value <= one.high


# --------------------------------------------------------------------------------------- the runs


def test_new_folders_are_fine_and_nothing_is_left_there(tmp_path: Path) -> None:
    check = check_folder(tmp_path / "not" / "yet")
    assert check.severity in ("good", "warning")  # a test machine may have little room
    assert check.text.startswith(f"runs are saved in {tmp_path / 'not' / 'yet'}, ")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_stops_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = check_folder(tmp_path / "file" / "runs")
    assert check.severity == "error"
    assert "not a directory" in check.text
    assert "--run-dir" in check.hint
