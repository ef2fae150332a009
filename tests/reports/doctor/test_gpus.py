"""What torch has code for, and what the real bindings read from a make-believe NVML."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.samples import GpuSample
from amptui.reports.doctor.check import Check
from amptui.reports.doctor.gpus import (
    Gpu,
    NvmlLook,
    check_gpu,
    check_limits,
    check_nvml,
    read_gpus,
    runs_on,
)
from tests.reports.doctor.conftest import Look

GIB = 2**30
FIGURES = len(fields(GpuSample)) - len(("uuid", "name"))
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
H200 = Gpu(index=0, name="NVIDIA H200", memory_bytes=150_000_000_000, capability=(9, 0))

PROGRAM = """
import json, os, sys
from dataclasses import asdict
from amptui.reports.doctor.gpus import check_nvml, look_at_nvml
found = look_at_nvml(patience_seconds={patience})
print(json.dumps([asdict(check) for check in check_nvml(found, expected={expected})]))
sys.stdout.flush()
os._exit(0)  # a thread may be in the driver still
"""

capabilities = st.tuples(st.integers(3, 13), st.integers(0, 9))


def nvml(
    look: Look, folder: Path | None, *, expected: bool = True, faults: str = "", **settings: str
) -> list[dict[str, Any]]:
    program = PROGRAM.format(patience=30, expected=expected)
    chosen = {f"FAKE_NVML_{name.upper()}": value for name, value in settings.items()}
    checks = look(program, folder, FAKE_NVML_FAULTS=faults, **chosen)
    assert isinstance(checks, list)
    return checks


def test_a_gpu_is_told_with_name_memory_and_capability() -> None:
    check = check_gpu(H200, ARCHITECTURES)
    assert (check.severity, check.text) == ("info", "cuda:0 NVIDIA H200, 140 GiB, compute capability 9.0")


def test_the_first_gpu_without_code_in_this_torch_stops_the_training() -> None:
    v100 = Gpu(index=0, name="Tesla V100", memory_bytes=2**34, capability=(7, 0))
    check = check_gpu(v100, ARCHITECTURES)
    assert check.severity == "error"
    assert "this build of torch does not support it (only sm_75, " in check.text
    assert "sm_70, or train with --device cpu" in check.hint


def test_another_gpu_without_code_does_not() -> None:
    assert (
        check_gpu(Gpu(index=1, name="P100", memory_bytes=2**34, capability=(6, 0)), ["sm_90"]).severity
        == "warning"
    )


def test_a_mig_instance_is_told_to_be_one() -> None:
    part = Gpu(index=0, name="NVIDIA A100 MIG 1g.5gb", memory_bytes=5 * 2**30, capability=(8, 0))
    check = check_gpu(part, ARCHITECTURES)
    assert ", MIG instance, 5.00 GiB, " in check.text
    assert check.facts["mig"] is True


def test_an_amd_gpu_is_known_by_its_architecture() -> None:
    amd = Gpu(index=0, name="AMD Instinct MI300X", memory_bytes=192 * GIB, architecture="gfx942")
    check = check_gpu(amd, ["gfx90a", "gfx942"])
    assert (check.severity, check.text) == ("info", "cuda:0 AMD Instinct MI300X, 192 GiB, gfx942")
    assert check_gpu(amd, ["gfx90a"]).hint.startswith("install a build of torch with gfx942")


def test_an_apple_gpu_is_named_with_what_it_lacks() -> None:
    check = check_gpu(Gpu(index=0, name="Apple M2", memory_bytes=12 * GIB, device_type="mps"), ())
    assert (check.severity, check.text) == ("info", "mps:0 Apple M2, 12.0 GiB")
    (limits,) = check_limits("mps")
    assert limits.severity == "info"
    assert limits.text.startswith("amptui is not tested on MPS; there it uses no timed events: ")
    assert "no float64: the X-ray compares gradients on the CPU" in limits.text
    assert check_limits("cpu") == []


@given(capabilities, capabilities)
def test_machine_code_runs_on_its_own_major_capability_from_its_minor_one_up(
    built_for: tuple[int, int], capability: tuple[int, int]
) -> None:
    name = f"sm_{built_for[0]}{built_for[1]}"
    runs = capability[0] == built_for[0] and capability[1] >= built_for[1]
    assert runs_on(capability, [name]) == runs
    assert runs_on(capability, [f"{name}a"]) == (capability == built_for)


@given(capabilities, capabilities)
def test_ptx_runs_on_every_later_capability(built_for: tuple[int, int], capability: tuple[int, int]) -> None:
    assert runs_on(capability, [f"compute_{built_for[0]}{built_for[1]}"]) == (capability >= built_for)


def test_nothing_runs_on_a_build_without_gpu_code() -> None:
    assert not runs_on((9, 0), [])
    assert not runs_on((9, 0), ["gfx942"])


def test_every_gpu_of_nvml_is_counted_with_its_figures(fake_drivers: Path, look: Look) -> None:
    checks = nvml(look, fake_drivers)
    assert [check["text"] for check in checks] == [f"NVML: Fake GPU: {FIGURES} of {FIGURES} readings"] * 2
    assert checks[0]["facts"]["power_watts"] == 412.5


def test_refused_figures_are_named_once_for_all_gpus(fake_drivers: Path, look: Look) -> None:
    *gpus, missing = nvml(look, fake_drivers, faults="nvmlDeviceGetPowerUsage=4")
    assert [gpu["text"] for gpu in gpus] == [f"NVML: Fake GPU: {FIGURES - 1} of {FIGURES} readings"] * 2
    assert missing["severity"] == "warning"
    assert missing["facts"]["missing"] == ["power_watts"]
    assert "no permission" in missing["text"]


def test_a_mig_instance_without_sensors_is_as_it_should_be(fake_drivers: Path, look: Look) -> None:
    checks = nvml(look, fake_drivers, gpus="1", mig="1")
    assert [check["severity"] for check in checks] == ["info"] * 3
    assert [check["text"].endswith("a MIG instance has no sensors of its own") for check in checks] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(("code", "words"), [(4, "no permission"), (13, "too old"), (18, "versions differ")])
def test_a_driver_that_refuses_is_a_trouble_even_without_cuda(
    fake_drivers: Path, look: Look, code: int, words: str
) -> None:
    (check,) = nvml(look, fake_drivers, expected=False, faults=f"nvmlInitWithFlags={code}")
    assert check["severity"] == "warning"
    assert words in check["text"]


def test_no_nvml_is_a_trouble_only_where_cuda_works() -> None:
    absent = NvmlLook(note="no NVIDIA GPU: NVML not found", absence="absent")
    assert check_nvml(absent, expected=False)[0].severity == "info"
    assert check_nvml(absent, expected=True)[0].severity == "warning"


def test_an_nvml_that_never_answers_is_not_waited_for(fake_drivers: Path, look: Look) -> None:
    program = PROGRAM.format(patience=0.2, expected=False)
    (check,) = look(program, fake_drivers, FAKE_NVML_FAULTS="nvmlInitWithFlags=hang")
    assert (check["severity"], check["text"]) == ("warning", "NVML does not respond: no GPU readings")


def test_memory_that_others_hold_is_told() -> None:
    def check(used_bytes: int | None) -> Check:
        sample = GpuSample(uuid="GPU-1", memory_used_bytes=used_bytes, memory_total_bytes=100 * GIB)
        return check_nvml(NvmlLook(samples=(sample,)), expected=True)[0]

    assert [check(used).severity for used in (90 * GIB, 91 * GIB, None)] == ["info", "warning", "info"]
    assert check(91 * GIB).text == "NVML: GPU-1: memory is nearly full, 91.0 / 100 GiB"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_this_machines_gpu_runs_this_torchs_code() -> None:
    assert [check_gpu(gpu, torch.cuda.get_arch_list()).severity for gpu in read_gpus()] == [
        "info"
    ] * torch.cuda.device_count()
