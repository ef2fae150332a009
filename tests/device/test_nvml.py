"""The real bindings over a make-believe library: what each fault of a driver turns into."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.device.nvml import NullProbe, NvmlProbe, open_probe
from amptui.records.samples import decode_clocks_event_reasons, encode_clocks_event_reasons
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

MISMATCH = "NVIDIA driver and library versions differ"


def test_every_gpu_is_sampled_with_every_figure(observe: Observe, fake_nvml_dir: Path) -> None:
    (look,) = observe(fake_nvml_dir, "")
    assert look == {"probe": "NvmlProbe", "gpus": [HEALTHY_0, HEALTHY_1], "note": ""}


@pytest.mark.parametrize("prefix", ["GPU", "MIG"])
def test_a_rank_samples_its_own_gpu_alone(observe: Observe, fake_nvml_dir: Path, prefix: str) -> None:
    named = GPU_1["uuid"].replace("GPU", prefix)
    looks = observe(fake_nvml_dir, "", "*@1=15", "", observed=named)
    assert [look["gpus"] for look in looks] == [[HEALTHY_1], [GPU_1 | NO_FIGURES], [HEALTHY_1]]


def test_a_gpu_that_nvml_does_not_list_is_not_sampled(observe: Observe, fake_nvml_dir: Path) -> None:
    (look,) = observe(fake_nvml_dir, "", observed="GPU-7")
    assert (look["probe"], look["gpus"]) == ("NullProbe", [])


def test_a_lost_gpu_stays_listed_and_is_sampled_again_when_it_is_back(
    observe: Observe, fake_nvml_dir: Path
) -> None:
    looks = observe(fake_nvml_dir, "", "*@1=15", "*@1=15", "")
    assert [look["gpus"][0] for look in looks] == [HEALTHY_0] * 4
    assert [look["gpus"][1] for look in looks] == [
        HEALTHY_1,
        GPU_1 | NO_FIGURES,
        GPU_1 | NO_FIGURES,
        HEALTHY_1,
    ]
    assert [look["note"] for look in looks] == ["", "GPU 1: lost", "GPU 1: lost", ""]


def test_a_lost_gpu_is_looked_for_by_uuid_for_its_index_may_be_anothers(
    observe: Observe, fake_nvml_dir: Path
) -> None:
    _, look = observe(fake_nvml_dir, "*@1=15", "nvmlDeviceGetHandleByIndex_v2=6", gpus="2")
    assert look["gpus"] == [HEALTHY_0, HEALTHY_1]


def test_a_gpu_lost_in_the_middle_of_a_look_has_no_figures(observe: Observe, fake_nvml_dir: Path) -> None:
    (look,) = observe(fake_nvml_dir, "nvmlDeviceGetPowerUsage@0=15")
    assert look["gpus"] == [GPU_0 | NO_FIGURES, HEALTHY_1]
    assert look["note"] == "GPU 0: lost"


def test_a_lost_gpu_is_asked_nothing_more_in_that_look(
    observe: Observe, fake_nvml_dir: Path, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    observe(fake_nvml_dir, "*@1=15", gpus="2", log=str(log))
    asked = log.read_text().splitlines()
    last_found = asked.index("nvmlDeviceGetMigMode 1")
    assert [call for call in asked[last_found + 1 :] if call.endswith(" 1")] == [
        "nvmlDeviceGetMemoryInfo_v2 1"
    ]


def test_a_gpu_lost_from_the_start_is_listed_by_its_place(observe: Observe, fake_nvml_dir: Path) -> None:
    lost, back = observe(fake_nvml_dir, "*@1=15", "", at_start="*@1=15")
    assert lost["gpus"] == [HEALTHY_0, {"uuid": "GPU 1", "name": None} | NO_FIGURES]
    assert lost["note"] == "GPU 1: lost"
    assert back["gpus"] == [HEALTHY_0, HEALTHY_1]


def test_figures_that_a_gpu_lacks_are_none_and_told_once_for_all_gpus(
    observe: Observe, fake_nvml_dir: Path
) -> None:
    (look,) = observe(fake_nvml_dir, "nvmlDeviceGetUtilizationRates=3,nvmlDeviceGetPowerUsage=3")
    missing = {"utilization_percent": None, "power_watts": None}
    assert look["gpus"] == [HEALTHY_0 | missing, HEALTHY_1 | missing]
    assert look["note"] == "GPU 0, GPU 1 without utilization, power (not supported)"


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "not supported"), (4, "no permission"), (10, "timed out"), (999, "unknown error"), (77, "error 77")],
)
def test_a_gpu_that_refuses_everything_is_listed_with_the_reason(
    observe: Observe, fake_nvml_dir: Path, code: int, words: str
) -> None:
    (look,) = observe(fake_nvml_dir, f"*={code}", gpus="1")
    assert look["gpus"] == [GPU_0 | NO_FIGURES]
    assert look["note"].startswith(
        "GPU 0 without memory, utilization, power, energy, temperature, SM clock, clocks"
    )
    assert words in look["note"]


def test_a_gpu_that_does_not_count_energy_has_every_other_figure(
    observe: Observe, fake_nvml_dir: Path
) -> None:
    (look,) = observe(fake_nvml_dir, "nvmlDeviceGetTotalEnergyConsumption=3", gpus="1")
    assert look["gpus"] == [HEALTHY_0 | {"energy_joules": None}]
    assert look["note"] == "GPU 0 without energy (not supported)"


def test_a_gpu_s_energy_counter_begins_anywhere(observe: Observe, fake_nvml_dir: Path) -> None:
    started, old = (observe(fake_nvml_dir, "", gpus="1", energy=text)[0] for text in ("0", str(2**52)))
    assert started["gpus"] == [HEALTHY_0 | {"energy_joules": 0.0}]
    assert old["gpus"] == [HEALTHY_0 | {"energy_joules": 2**52 / 1000}]


def test_reasons_do_not_mix(observe: Observe, fake_nvml_dir: Path) -> None:
    (look,) = observe(
        fake_nvml_dir,
        "nvmlDeviceGetMemoryInfo_v2@1=4,nvmlDeviceGetMemoryInfo@1=4,nvmlDeviceGetPowerUsage@1=3",
    )
    assert look["gpus"][0] == HEALTHY_0
    assert look["note"] == "GPU 1 without memory (no permission), power (not supported)"


def test_an_old_driver_is_asked_in_the_old_way(observe: Observe, old_fake_nvml_dir: Path) -> None:
    (look,) = observe(old_fake_nvml_dir, "", gpus="1", reasons="0x04")
    reserved_counts_as_used = {"memory_used_bytes": GIB + GIB // 2}
    assert look["gpus"] == [HEALTHY_0 | reserved_counts_as_used | {"clocks_event_reasons": ["power cap"]}]
    assert look["note"] == ""


def test_why_clocks_are_held_down_is_told(observe: Observe, fake_nvml_dir: Path) -> None:
    (look,) = observe(fake_nvml_dir, "", gpus="1", reasons="0x6d")
    assert look["gpus"][0]["clocks_event_reasons"] == [
        "hw slowdown",
        "thermal (hw)",
        "thermal (sw)",
        "power cap",
    ]


def test_mig_instances_follow_their_gpu_with_their_own_memory(observe: Observe, fake_nvml_dir: Path) -> None:
    # What a container with one instance meets: the GPU's own memory is none of its business.
    no_permission = "nvmlDeviceGetMemoryInfo_v2@0=4,nvmlDeviceGetMemoryInfo@0=4"
    (look,) = observe(fake_nvml_dir, no_permission, gpus="1", mig="1")
    memory = {"memory_used_bytes": GIB // 4, "memory_total_bytes": 2 * GIB}
    instance = {"name": "Fake GPU MIG 1g.2gb"} | NO_FIGURES | memory
    assert look["gpus"] == [
        HEALTHY_0 | {"memory_used_bytes": None, "memory_total_bytes": None},
        {"uuid": "MIG-00000000-0000-0000-0001-000000000000"} | instance,
        {"uuid": "MIG-00000000-0000-0000-0003-000000000000"} | instance,
    ]
    assert look["note"] == "GPU 0 without memory (no permission)"


def test_a_lost_mig_instance_is_found_again(observe: Observe, fake_nvml_dir: Path) -> None:
    lost, back = observe(fake_nvml_dir, "*@0.2=15", "", gpus="1", mig="1")
    assert lost["note"] == "GPU 0 MIG 2: lost"
    assert lost["gpus"][2]["memory_used_bytes"] is None
    assert back["gpus"][2]["memory_used_bytes"] == GIB // 4


@pytest.mark.parametrize(
    ("code", "note"),
    [
        (4, "no GPU data: no permission to use NVML"),
        (9, "no NVIDIA GPU: driver not loaded"),
        (13, "no GPU data: the NVIDIA driver is too old"),
        (18, f"no GPU data: {MISMATCH}; reboot or reload the driver"),
        (999, "no GPU data: NVML: unknown error"),
    ],
)
def test_nvml_that_does_not_start_says_why_and_is_not_tried_again(
    observe: Observe, fake_nvml_dir: Path, tmp_path: Path, code: int, note: str
) -> None:
    log = tmp_path / "calls"
    looks = observe(fake_nvml_dir, "", "", at_start=f"nvmlInitWithFlags={code}", log=str(log))
    assert looks == [{"probe": "NullProbe", "gpus": [], "note": note}] * 2
    assert log.read_text() == "nvmlInitWithFlags -\n"


def test_without_the_library_there_is_no_gpu(observe: Observe, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")  # and none behind it is looked for
    looks = observe(tmp_path, "", "")
    assert looks == [{"probe": "NullProbe", "gpus": [], "note": "no NVIDIA GPU: NVML not found"}] * 2


def test_a_driver_without_gpus_is_let_go(observe: Observe, fake_nvml_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    (look,) = observe(fake_nvml_dir, "", gpus="0", log=str(log))
    assert look == {"probe": "NullProbe", "gpus": [], "note": "no NVIDIA GPU: NVML lists none"}
    assert log.read_text().splitlines()[-1] == "nvmlShutdown -"


def test_a_driver_that_does_not_count_its_gpus_is_told(observe: Observe, fake_nvml_dir: Path) -> None:
    (look,) = observe(fake_nvml_dir, "", at_start="nvmlDeviceGetCount_v2=999")
    assert look["note"] == "no GPU data: NVML's list of GPUs: unknown error"


def test_closing_shuts_nvml_down_even_when_it_refuses(
    observe: Observe, fake_nvml_dir: Path, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    observe(fake_nvml_dir, "nvmlShutdown=999", log=str(log))
    assert log.read_text().splitlines()[-1] == "nvmlShutdown -"


def test_bindings_without_a_call_refuse_it_like_an_old_driver(
    run_python: Callable[..., str], fake_nvml_dir: Path
) -> None:
    # The deprecated package of the same name, when it stands first on the path, lacks the newer calls.
    program = """
import pynvml
del pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetClockInfo
from amptui.device.nvml import open_probe
probe = open_probe()
print(probe.sample()[0].clocks_event_reasons, probe.note)
"""
    said = run_python(["-c", program], fake_nvml_dir, gpus="1", reasons="0x80")
    assert said == "('power brake',) GPU 0 without SM clock (unknown to this driver)\n"


def test_a_machine_without_the_bindings_says_so(run_python: Callable[..., str]) -> None:
    program = """
import sys
sys.modules["pynvml"] = None
from amptui.device.nvml import open_probe
print(open_probe().note)
"""
    assert run_python(["-c", program], None) == "no GPU data: nvidia-ml-py is not installed\n"


def test_a_healthy_gpu_costs_one_call_a_figure(observe: Observe, fake_nvml_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    observe(fake_nvml_dir, "", "", gpus="1", log=str(log))
    # Older bindings ask for the temperature by its older name.
    calls = [line.split()[0].removesuffix("V") for line in log.read_text().splitlines()]
    look = [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetCurrentClocksEventReasons",
    ]
    assert calls[calls.index(look[0]) :] == [*look, *look, "nvmlShutdown"]


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


@pytest.mark.parametrize(("name", "word"), BIT_WORDS.items())
def test_each_of_nvmls_reasons_has_its_word(name: str, word: str) -> None:
    import pynvml

    if not hasattr(pynvml, name):
        pytest.skip(f"this nvidia-ml-py has no {name}")
    assert decode_clocks_event_reasons(getattr(pynvml, name)) == (word,)


def test_idleness_is_no_reason_to_worry() -> None:
    assert decode_clocks_event_reasons(0x01) == ()
    assert decode_clocks_event_reasons(0x05) == ("power cap",)


def test_a_reason_of_a_later_driver_is_not_swallowed() -> None:
    assert decode_clocks_event_reasons(0x10004) == ("power cap", "unknown 0x10000")


@given(st.integers(0, 2**11 - 1), st.integers(0, 2**11 - 1))
def test_the_reasons_of_two_masks_are_those_of_both(one: int, other: int) -> None:
    both = decode_clocks_event_reasons(one | other)
    assert set(both) == set(decode_clocks_event_reasons(one)) | set(decode_clocks_event_reasons(other))
    assert len(set(both)) == len(both)


@given(st.integers(0, 2**20 - 1).map(lambda mask: mask & ~1))
def test_reasons_travel_as_a_mask(mask: int) -> None:
    assert encode_clocks_event_reasons(decode_clocks_event_reasons(mask)) == mask


def test_a_null_probe_has_its_note_and_nothing_else() -> None:
    probe = NullProbe("no NVIDIA GPU: NVML not found")
    assert probe.sample() == ()
    probe.close()
    assert probe.note == "no NVIDIA GPU: NVML not found"


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
    gpu = gpus[str(properties.uuid)]
    assert gpu.memory_total_bytes is not None
    assert gpu.memory_total_bytes >= properties.total_memory
    assert gpu.memory_used_bytes is not None
    assert gpu.memory_used_bytes <= gpu.memory_total_bytes
    if gpu.energy_joules is not None:  # counted from Volta on
        assert gpu.energy_joules <= (later[str(properties.uuid)].energy_joules or 0)
