"""What is read from drivers: make-believe libraries of CUDA and NVML, and the kernel's folders."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from amptui.records.samples import GpuSample
from amptui.reports.doctor.cuda import read_driver
from tests.reports.doctor.conftest import Look

FIGURES = len(fields(GpuSample)) - len(("uuid", "name"))

PROGRAM = """
import json, os, sys
from dataclasses import asdict
from amptui.reports.doctor.gpus import check_nvml, look_at_nvml
found = look_at_nvml(patience_seconds={patience})
print(json.dumps([asdict(check) for check in check_nvml(found, expected={expected})]))
sys.stdout.flush()
os._exit(0)  # a thread may be in the driver still
"""


def nvml(
    look: Look, folder: Path | None, *, expected: bool = True, faults: str = "", **settings: str
) -> list[dict[str, Any]]:
    program = PROGRAM.format(patience=30, expected=expected)
    chosen = {f"FAKE_NVML_{name.upper()}": value for name, value in settings.items()}
    checks = look(program, folder, FAKE_NVML_FAULTS=faults, **chosen)
    assert isinstance(checks, list)
    return checks


def test_every_gpu_of_nvml_is_counted_with_its_figures(fake_drivers: Path, look: Look) -> None:
    checks = nvml(look, fake_drivers)
    assert [check["text"] for check in checks] == [f"NVML: Fake GPU: {FIGURES} of {FIGURES} readings"] * 2
    assert checks[0]["facts"]["power_watts"] == 412.5


@pytest.mark.ci
def test_refused_figures_are_named_once_for_all_gpus(fake_drivers: Path, look: Look) -> None:
    *gpus, missing = nvml(look, fake_drivers, faults="nvmlDeviceGetPowerUsage=4")
    assert [gpu["text"] for gpu in gpus] == [f"NVML: Fake GPU: {FIGURES - 1} of {FIGURES} readings"] * 2
    assert missing["severity"] == "warning"
    assert missing["facts"]["missing"] == ["power_watts"]
    assert "no permission" in missing["text"]


@pytest.mark.ci
def test_a_mig_instance_without_sensors_is_as_it_should_be(fake_drivers: Path, look: Look) -> None:
    checks = nvml(look, fake_drivers, gpus="1", mig="1")
    assert [check["severity"] for check in checks] == ["info"] * 3
    ends = [check["text"].endswith("a MIG instance has no sensors of its own") for check in checks]
    assert ends == [False, True, True]


@pytest.mark.ci
@pytest.mark.parametrize(("code", "words"), [(4, "no permission"), (13, "too old"), (18, "versions differ")])
def test_a_driver_that_refuses_is_a_trouble_even_without_cuda(
    fake_drivers: Path, look: Look, code: int, words: str
) -> None:
    (check,) = nvml(look, fake_drivers, expected=False, faults=f"nvmlInitWithFlags={code}")
    assert check["severity"] == "warning"
    assert words in check["text"]


@pytest.mark.ci
def test_an_nvml_that_never_answers_is_not_waited_for(fake_drivers: Path, look: Look) -> None:
    program = PROGRAM.format(patience=0.2, expected=False)
    (check,) = look(program, fake_drivers, FAKE_NVML_FAULTS="nvmlInitWithFlags=hang")
    assert (check["severity"], check["text"]) == ("warning", "NVML does not respond: no GPU readings")


def test_a_loaded_library_is_asked_for_its_cuda_and_started(fake_drivers: Path, look: Look) -> None:
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
