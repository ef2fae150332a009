"""What the doctor makes of each finding: how bad it is, in which words, and what to do about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amptui.base.cores import Cores
from amptui.device.accelerator import Properties
from amptui.monitor.ab_test import Ratio
from amptui.records.samples import GpuSample
from amptui.reports.doctor.check import Check
from amptui.reports.doctor.gpus import check_gpu, check_limits, check_nvml, check_unused_cuda
from amptui.reports.doctor.machine import (
    check_memory,
    check_shared_memory,
    check_terminal,
    check_threads,
)
from amptui.reports.doctor.precisions import check_precision
from tests.golden import Goldens

GIB = 2**30

NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
H200 = Properties(name="NVIDIA H200", memory_bytes=150_000_000_000, compute_capability=(9, 0))
AMD = Properties(name="AMD Instinct MI300X", memory_bytes=192 * GIB, architecture="gfx942")


def cuda(torch_says: str = "Error 802", **changes: Any) -> Check:
    return check_unused_cuda(torch_says, **{"build": "13.0", "visible": None, "has_gpu": True, **changes})


def gpu(name: str, capability: tuple[int, int]) -> Properties:
    return Properties(name=name, memory_bytes=2**34, compute_capability=capability)


def precision(name: str, low: float, value: float, high: float) -> Check:
    return check_precision(name, Ratio(value=value, low=low, high=high), 512)


def memory_used(used_bytes: int | None) -> Check:
    sample = GpuSample(uuid="GPU-1", memory_used_bytes=used_bytes, memory_total_bytes=100 * GIB)
    return check_nvml(((sample,), "", ""), expected=True)[0]


CHECKS: dict[str, Callable[[], Check]] = {
    "no driver": lambda: cuda("Found no NVIDIA driver", has_gpu=False, visible=""),
    "a CPU build beside a GPU": lambda: cuda(build=None),
    "a CPU build without a GPU": lambda: cuda(build=None, has_gpu=False),
    "another accelerator": lambda: cuda(build=None, has_gpu=False, other="MPS"),
    "a blank list of GPUs": lambda: cuda(visible=" "),
    "GPU -1": lambda: cuda(visible="-1"),
    "GPU 7 of one": lambda: cuda(visible="7"),
    "torch says why": cuda,
    "torch does not say why": lambda: cuda(""),
    "an H200": lambda: check_gpu("cuda:0", H200, ""),
    "a first GPU without code": lambda: check_gpu("cuda:0", gpu("Tesla V100", (7, 0)), NO_KERNEL),
    "a second GPU without code": lambda: check_gpu("cuda:1", gpu("P100", (6, 0)), NO_KERNEL, is_first=False),
    "a MIG instance": lambda: check_gpu("cuda:0", gpu("NVIDIA A100 MIG 1g.5gb", (8, 0)), ""),
    "an AMD GPU": lambda: check_gpu("cuda:0", AMD, ""),
    "an Apple GPU": lambda: check_gpu("mps:0", Properties(name="Apple M2", memory_bytes=12 * GIB), ""),
    "what MPS lacks": lambda: check_limits("mps")[0],
    "no NVML beside CUDA": lambda: check_nvml(((), "no NVIDIA GPU: NVML not found", "absent"), expected=True)[
        0
    ],
    "memory in use": lambda: memory_used(90 * GIB),
    "memory nearly full": lambda: memory_used(91 * GIB),
    "memory unknown": lambda: memory_used(None),
    "too many threads": lambda: check_threads(32, Cores(machine=64, allowed=64, limit=4.0)),
    "one thread": lambda: check_threads(1, Cores(machine=16, allowed=16, limit=None)),
    "no shared memory": lambda: check_shared_memory(Path("/none")),
    "faster": lambda: precision("bf16", 1.01, 1.9, 2.8),
    "slower": lambda: precision("fp16", 0.01, 0.02, 0.03),
    "faster or not": lambda: precision("bf16", 0.9, 1.4, 2.0),
    "not measured": lambda: check_precision("bf16", "no memory", 512),
    "no TERM": lambda: check_terminal("", is_terminal=True, utf8=True),
    "xterm": lambda: check_terminal("xterm-256color", is_terminal=True, utf8=True),
    "no terminal": lambda: check_terminal("xterm", is_terminal=False, utf8=True),
    "no UTF-8": lambda: check_terminal("linux", is_terminal=True, utf8=False),
}


def test_each_finding_has_its_words(goldens: Goldens) -> None:
    lines = []
    for name, make in CHECKS.items():
        check = make()
        assert check.hint or check.severity in ("good", "info"), "what is wrong has a hint"
        lines += [f"== {name}: {check.name}, {check.severity}", check.text, f"-> {check.hint}"]
    goldens.check("reports/doctor checks", "\n".join(lines))


# ------------------------------------------------------------------------------- CPUs and memory


@given(st.integers(1, 512), st.integers(1, 512), st.none() | st.floats(0.01, 512))
def test_between_half_of_the_cores_and_all_of_them_nothing_is_to_be_fixed(
    threads: int, allowed: int, limit: float | None
) -> None:
    cores = Cores(machine=allowed, allowed=allowed, limit=limit)
    assert 1 <= cores.usable <= allowed
    fits = cores.usable <= 2 * threads <= 2 * cores.usable
    assert (check_threads(threads, cores).severity == "good") == fits


def test_a_small_container_is_told_to_be_small() -> None:
    check = check_memory(GIB)
    assert check.severity == "warning"
    assert "container limit 1.00 GiB" in check.text
    assert "limit" not in check_memory(2**62).text
