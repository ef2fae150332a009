"""Why CUDA cannot be used: the reason nearest to the root, over make-believe drivers and devices."""

from dataclasses import replace
from pathlib import Path

import pytest

from amptui.reports.doctor.cuda import Cuda, Driver, check_cuda, check_driver, read_driver
from tests.reports.doctor.conftest import Look

NO_DRIVER = Driver(gpus_on_bus=0, loaded_version=None, device_files=(), locked_files=(), library_found=False)
HEALTHY = Driver(
    gpus_on_bus=1,
    loaded_version="580.65.06",
    device_files=("nvidia-uvm", "nvidia0", "nvidiactl"),
    locked_files=(),
    library_found=True,
    cuda=(13, 0),
    refusal=0,
)
UNUSABLE = Cuda(build="13.0", rocm=None, gpu_count=0, torch_says="no", visible_devices=None, driver=HEALTHY)


def judged(driver: Driver, *, visible: str | None = None, build: str = "13.0") -> tuple[str, str]:
    check = check_cuda(replace(UNUSABLE, driver=driver, visible_devices=visible, build=build))
    assert check.severity == "warning"
    return check.text, check.hint


def test_a_usable_gpu_is_all_that_is_said() -> None:
    check = check_cuda(replace(UNUSABLE, gpu_count=2, torch_says=""))
    assert (check.severity, check.text) == ("info", "CUDA 13.0: 2 GPUs available")


def test_without_a_driver_torch_trains_on_the_cpu() -> None:
    text, hint = judged(NO_DRIVER, visible="")
    assert text == "training runs on the CPU: no NVIDIA driver found"
    assert "--gpus all" in hint


def test_a_gpu_on_the_bus_says_that_only_its_driver_is_missing() -> None:
    text, hint = judged(replace(NO_DRIVER, gpus_on_bus=1))
    assert text.endswith("this machine has an NVIDIA GPU, but its driver is not loaded")
    assert hint.startswith("install the NVIDIA driver")


def test_a_container_that_got_the_driver_without_its_library() -> None:
    text, hint = judged(replace(HEALTHY, library_found=False, cuda=None, refusal=None))
    assert "libcuda.so.1 is missing" in text
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in hint


def test_a_build_for_cpus_alone_is_a_trouble_only_beside_a_gpu() -> None:
    beside = check_cuda(replace(UNUSABLE, build=None))
    assert (beside.severity, beside.hint[:30]) == ("warning", "install a CUDA build of torch:")
    assert check_cuda(replace(UNUSABLE, build=None, driver=NO_DRIVER)).severity == "info"


def test_another_accelerator_is_no_trouble() -> None:
    check = check_cuda(replace(UNUSABLE, build=None, driver=NO_DRIVER, other="MPS"))
    assert (check.severity, check.text) == ("info", "not used: torch trains on MPS")


@pytest.mark.parametrize("visible", ["", " ", "-1"])
def test_an_empty_or_negative_list_hides_every_gpu(visible: str) -> None:
    text, hint = judged(replace(HEALTHY, refusal=100), visible=visible)
    assert text.endswith(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
    assert hint.startswith("unset CUDA_VISIBLE_DEVICES")


def test_a_list_that_names_no_gpu_of_the_machine_hides_them_too() -> None:
    assert "CUDA_VISIBLE_DEVICES='7'" in judged(replace(HEALTHY, refusal=100), visible="7")[0]


def test_a_list_is_not_blamed_where_the_container_has_no_gpu() -> None:
    text, _ = judged(replace(HEALTHY, refusal=100, device_files=()), visible="0")
    assert text.endswith("there are no device files /dev/nvidia*")


def test_a_driver_of_an_older_major_cuda_is_too_old_for_the_build() -> None:
    text, hint = judged(replace(HEALTHY, cuda=(12, 2), refusal=0))
    assert text.endswith("the driver supports CUDA 12.2, but torch is built for CUDA 13.0")
    assert hint.startswith("update the driver to 580 or newer, or install torch built for CUDA 12")


def test_a_driver_of_the_same_major_cuda_is_never_too_old() -> None:
    text, _ = judged(HEALTHY, build="13.2")
    assert "supports" not in text


def test_device_files_that_the_user_may_not_open_are_named() -> None:
    text, hint = judged(replace(HEALTHY, refusal=100, locked_files=("nvidia0", "nvidiactl")))
    assert text.endswith("no permission to open /dev/nvidia0, /dev/nvidiactl")
    assert hint.startswith("join the group")


@pytest.mark.parametrize(("answer", "hint"), [(802, "nvidia-fabricmanager"), (803, "reboot"), (999, "dmesg")])
def test_what_the_driver_answers_has_a_hint(answer: int, hint: str) -> None:
    assert hint in judged(replace(HEALTHY, refusal=answer))[1]


def test_where_the_driver_starts_torch_says_why() -> None:
    check = check_cuda(replace(UNUSABLE, torch_says="Error 36: not in this driver"))
    assert "(Error 36: not in this driver)" in check.text


def test_a_driver_tells_its_version_and_its_newest_cuda() -> None:
    (check,) = check_driver(HEALTHY)
    assert check.text == "NVIDIA driver 580.65.06, supports CUDA up to 13.0"
    assert check_driver(NO_DRIVER) == []


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


def test_a_machine_without_nvidia_shows_nothing(tmp_path: Path) -> None:
    driver = read_driver(tmp_path, initialize=False)
    assert not driver.shows_a_gpu
    assert driver.loaded_version is None
