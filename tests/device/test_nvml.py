"""The real bindings over a make-believe library: what each fault of a driver turns into."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amptui.device.nvml import NvmlProbe, open_probe
from amptui.records.samples import decode_clocks_event_reasons
from tests.device.conftest import Observe

GIB = 2**30
FIGURES = {
    "memory_used_bytes": GIB,
    "memory_total_bytes": 16 * GIB,
    "utilization_percent": 93.0,
    "power_watts": 412.5,
    "energy_joules": 7_200_000.5,
    "temperature_c": 54.0,
    "sm_clock_mhz": 1980.0,
    "clocks_event_reasons": [],
}
NO_FIGURES = dict.fromkeys(FIGURES)
GPU_0 = {"uuid": "GPU-00000000-0000-0000-0000-000000000000", "name": "Fake GPU"}
GPU_1 = {"uuid": "GPU-00000000-0000-0000-0000-000000000001", "name": "Fake GPU"}
HEALTHY_0 = GPU_0 | FIGURES
HEALTHY_1 = GPU_1 | FIGURES | {"memory_used_bytes": 2 * GIB}

ALL_FIGURES = "memory, utilization, power, energy, temperature, SM clock, clocks event reasons"

HELD_DOWN = ["hw slowdown", "thermal (hw)", "thermal (sw)", "power cap"]

MIG_1, MIG_3 = (
    NO_FIGURES
    | {
        "uuid": f"MIG-00000000-0000-0000-000{number}-000000000000",
        "name": "Fake GPU MIG 1g.2gb",
        "memory_used_bytes": GIB // 4,
        "memory_total_bytes": 2 * GIB,
    }
    for number in (1, 3)
)

MISMATCH = "NVIDIA driver and library versions differ"


LOOKS: list[tuple[str, dict[str, str], list[tuple[str, list[dict[str, Any]], str]]]] = [
    # A lost GPU stays listed, and has figures again when it answers.
    (
        "lost and back",
        {},
        [
            ("", [HEALTHY_0, HEALTHY_1], ""),
            ("*@1=15", [HEALTHY_0, GPU_1 | NO_FIGURES], "GPU 1: GPU is lost"),
            ("", [HEALTHY_0, HEALTHY_1], ""),
            # One that is lost in the middle of a look has no figures.
            ("nvmlDeviceGetPowerUsage@0=15", [GPU_0 | NO_FIGURES, HEALTHY_1], "GPU 0: GPU is lost"),
        ],
    ),
    # Figures that a GPU lacks are None, and told once for all GPUs; reasons do not mix.
    (
        "figures lacking",
        {},
        [
            (
                "nvmlDeviceGetUtilizationRates=3,nvmlDeviceGetPowerUsage=3",
                [
                    HEALTHY_0 | {"utilization_percent": None, "power_watts": None},
                    HEALTHY_1 | {"utilization_percent": None, "power_watts": None},
                ],
                "GPU 0, GPU 1 without utilization, power (not supported)",
            ),
            (
                "nvmlDeviceGetMemoryInfo_v2@1=4,nvmlDeviceGetPowerUsage@1=3",
                [
                    HEALTHY_0,
                    HEALTHY_1 | dict.fromkeys(("memory_used_bytes", "memory_total_bytes", "power_watts")),
                ],
                "GPU 1 without memory (insufficient permissions), power (not supported)",
            ),
            (
                "nvmlDeviceGetTotalEnergyConsumption@0=3",
                [HEALTHY_0 | {"energy_joules": None}, HEALTHY_1],
                "GPU 0 without energy (not supported)",
            ),
        ],
    ),
    (
        "everything refused",
        {"gpus": "1"},
        [
            (f"*={code}", [GPU_0 | NO_FIGURES], f"GPU 0 without {ALL_FIGURES} ({words})")
            for code, words in (
                *((3, "not supported"), (4, "insufficient permissions"), (10, "timeout")),
                *((999, "unknown error"), (77, "error 77 of the fake")),
            )
        ],
    ),
    (
        "no energy yet, and clocks held down",
        {"gpus": "1", "energy": "0", "reasons": "0x6d"},
        [("", [HEALTHY_0 | {"energy_joules": 0.0, "clocks_event_reasons": HELD_DOWN}], "")],
    ),
    # What a container with one instance meets: the GPU's own memory is none of its business.
    (
        "MIG",
        {"gpus": "1", "mig": "1"},
        [
            (
                "nvmlDeviceGetMemoryInfo_v2@0=4",
                [
                    HEALTHY_0 | {"memory_used_bytes": None, "memory_total_bytes": None},
                    *(MIG_1, MIG_3),
                ],
                "GPU 0 without memory (insufficient permissions)",
            ),
            ("*@0.2=15", [HEALTHY_0, MIG_1, MIG_3 | NO_FIGURES], "GPU 0 MIG 2: GPU is lost"),
            ("", [HEALTHY_0, MIG_1, MIG_3], ""),
        ],
    ),
]
"""What a driver is told to answer, in several looks of one process, and what becomes of it."""

QUICK = ("lost and back", "MIG")


@pytest.mark.parametrize(
    ("settings", "looks"),
    [
        pytest.param(settings, looks, id=name, marks=() if name in QUICK else pytest.mark.ci)
        for name, settings, looks in LOOKS
    ],
)
def test_what_a_driver_answers_becomes_figures_and_a_note(
    settings: dict[str, str], looks: list[Any], observe: Observe, fake_nvml_dir: Path
) -> None:
    found = observe(fake_nvml_dir, *(faults for faults, _, _ in looks), **settings)
    for look, (faults, gpus, note) in zip(found, looks, strict=True):
        assert look == {"probe": "NvmlProbe", "gpus": gpus, "note": note}, faults


@pytest.mark.parametrize("prefix", ["GPU", pytest.param("MIG", marks=pytest.mark.ci)])
def test_a_rank_samples_its_own_gpu_alone(observe: Observe, fake_nvml_dir: Path, prefix: str) -> None:
    named = GPU_1["uuid"].replace("GPU", prefix)
    looks = observe(fake_nvml_dir, "", "*@1=15", "", observed=named)
    assert [look["gpus"] for look in looks] == [[HEALTHY_1], [GPU_1 | NO_FIGURES], [HEALTHY_1]]


NO_PROBE = [
    *[
        ({"at_start": f"nvmlInitWithFlags={code}"}, note, "nvmlInitWithFlags -")
        for code, note in (
            (9, "no NVIDIA GPU: driver not loaded"),
            (18, f"no GPU data: {MISMATCH}; reboot or reload the driver"),
            (999, "no GPU data: NVML: unknown error"),
        )
    ],
    ({"gpus": "0"}, "no NVIDIA GPU: NVML lists none", "nvmlShutdown -"),
    (
        {"at_start": "nvmlDeviceGetCount_v2=999"},
        "no GPU data: NVML's list of GPUs: unknown error",
        "nvmlShutdown -",
    ),
    ({"observed": "GPU-7"}, None, "nvmlShutdown -"),
]


@pytest.mark.parametrize(
    ("settings", "note", "last_call"),
    [pytest.param(*row, marks=() if n in (1, 3) else pytest.mark.ci) for n, row in enumerate(NO_PROBE)],
)
def test_nvml_that_does_not_start_or_lists_nothing_says_why_and_is_let_go(
    settings: dict[str, str],
    note: str | None,
    last_call: str,
    observe: Observe,
    fake_nvml_dir: Path,
    tmp_path: Path,
) -> None:
    log = tmp_path / "calls"
    looks = observe(fake_nvml_dir, "", "", log=str(log), **settings)
    assert [(look["probe"], look["gpus"]) for look in looks] == [("NullProbe", [])] * 2
    assert note is None or {look["note"] for look in looks} == {note}
    assert log.read_text().splitlines()[-1] == last_call


@pytest.mark.ci
def test_without_the_library_there_is_no_gpu(observe: Observe, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")  # and none behind it is looked for
    looks = observe(tmp_path, "", "")
    assert looks == [{"probe": "NullProbe", "gpus": [], "note": "no NVIDIA GPU: NVML not found"}] * 2


@pytest.mark.ci
def test_a_machine_without_the_bindings_says_so(run_python: Callable[..., str]) -> None:
    program = """
import sys
sys.modules["pynvml"] = None
from amptui.device.nvml import open_probe
print(open_probe().note)
"""
    assert run_python(["-c", program], None) == "no GPU data: nvidia-ml-py is not installed\n"


BIT_WORDS = {
    "nvmlClocksEventReasonApplicationsClocksSetting": "app clocks",
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hw slowdown",
    "nvmlClocksEventReasonSyncBoost": "sync boost",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal (sw)",
    "nvmlClocksEventReasonHwThermalSlowdown": "thermal (hw)",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonDisplayClockSetting": "display clocks",
    "nvmlClocksThrottleReasonBoardLimit": "board limit",
    "nvmlClocksThrottleReasonReliability": "reliability",
}


def test_each_of_nvmls_reasons_has_its_word() -> None:
    import pynvml

    for name, word in BIT_WORDS.items():
        if hasattr(pynvml, name):  # not every release has all
            assert decode_clocks_event_reasons(getattr(pynvml, name)) == (word,)
    # Idleness is no reason to worry, and one of a later driver is not swallowed.
    assert decode_clocks_event_reasons(0x01) == ()
    assert decode_clocks_event_reasons(0x05) == ("power cap",)
    assert decode_clocks_event_reasons(0x10004) == ("power cap", "unknown 0x10000")


@pytest.mark.gpu
def test_a_real_gpu_says_what_torch_says() -> None:
    probe = open_probe()
    if not isinstance(probe, NvmlProbe):
        pytest.skip(probe.note)
    gpus = {gpu.uuid.partition("-")[2]: gpu for gpu in probe.sample()}
    later = {gpu.uuid.partition("-")[2]: gpu for gpu in probe.sample()}
    probe.close()
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    properties = torch.cuda.get_device_properties(0)
    gpu: Any = gpus[str(properties.uuid)]
    assert gpu.memory_total_bytes >= properties.total_memory
    assert gpu.memory_used_bytes <= gpu.memory_total_bytes
    if gpu.energy_joules is not None:  # counted from Volta on
        assert gpu.energy_joules <= (later[str(properties.uuid)].energy_joules or 0)
