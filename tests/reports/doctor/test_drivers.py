"""What is read from drivers: make-believe libraries of CUDA and NVML, and the kernel's folders."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amptui.reports.doctor.cuda import read_driver
from tests import deprecations
from tests.golden import Goldens

PROGRAM = """
import json, os, sys
from dataclasses import asdict
from amptui.reports.doctor.gpus import check_nvml, look_at_nvml
found = look_at_nvml(patience_seconds={patience})
print(json.dumps([asdict(check) for check in check_nvml(found, expected={expected})]))
sys.stdout.flush()
os._exit(0)  # a thread may be in the driver still
"""


def look(program: str, folder: Path, **environment: str) -> Any:
    """The JSON value that ``program`` prints beside the drivers of ``folder``, in a process of its own."""
    done = subprocess.run(
        [sys.executable, *deprecations.options_for_python(), "-c", program],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
    checks = look(PROGRAM.format(patience=patience, expected=expected), fake_drivers, **chosen)
    goldens.check(f"reports/doctor drivers, {name}", json.dumps(checks, indent=1, ensure_ascii=False))


def test_a_loaded_library_is_asked_for_its_cuda_and_started(fake_drivers: Path) -> None:
    program = (
        "import dataclasses, json; from amptui.reports.doctor.cuda import read_driver;"
        "print(json.dumps(dataclasses.asdict(read_driver())))"
    )
    seen = look(program, fake_drivers, FAKE_CUDA_VERSION="12040", FAKE_CUDA_INIT="803")
    assert (seen["library_found"], seen["cuda"], seen["refusal"]) == (True, [12, 4], 803)


def test_the_kernels_folders_tell_of_gpus_and_of_the_loaded_driver(tmp_path: Path) -> None:
    for name, vendor, kind in (
        ("a", "0x10de", "0x030200"),
        ("b", "0x10de", "0x040300"),
        ("c", "0x1af4", "0x030000"),
    ):
        device = tmp_path / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\nGCC version\n"
    )
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-caps", "null"):
        (tmp_path / "dev" / name).touch()
    driver = read_driver(tmp_path, initialize=False)
    assert driver.gpus_on_bus == 1  # b is the GPU's sound, c another maker's
    assert driver.loaded_version == "570.133.20"
    assert driver.device_files == ("nvidia0", "nvidiactl")
    assert driver.shows_a_gpu
