"""Whether a precision pays: what is measured, what the hardware has, and how both are told."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
import torch

from amptui.engine.estimate import Ratio
from amptui.engine.float8 import torchao_trouble
from amptui.engine.precision import Tf32Flags
from amptui.reports.doctor.gpus import Gpu
from amptui.reports.doctor.precisions import (
    TORCHAO,
    Measured,
    best_of,
    check_float8,
    check_precision,
    check_unsupported,
    cpu_flags,
    cpu_reason,
    gpu_reason,
    measure,
    precision_checks,
)
from tests.checkout import ROOT

CPU = torch.device("cpu")


def measured(low: float, value: float, high: float) -> Measured:
    return Measured(Ratio(value=value, low=low, high=high))


def gpu(name: str, capability: tuple[int, int]) -> Gpu:
    return Gpu(index=0, name=name, memory_bytes=2**34, capability=capability)


def test_each_precision_is_measured_in_turns_with_float32_and_has_an_interval() -> None:
    found = measure(CPU, ("fp16", "bf16"), size=32, budget_seconds=0.02)
    assert list(found) == ["fp16", "bf16"]
    for one in found.values():
        assert one.ratio is not None
        assert one.ratio.low is not None
        assert one.ratio.high is not None
        assert 0 < one.ratio.low <= one.ratio.value <= one.ratio.high


def test_measuring_leaves_the_tf32_flags_as_they_were() -> None:
    before = Tf32Flags.current()
    try:
        kept = Tf32Flags.full().with_tf32()
        kept.apply()
        measure(CPU, ("bf16",), size=16, budget_seconds=0.0)
        assert Tf32Flags.current() == kept
    finally:
        before.apply()


def test_what_cannot_be_measured_says_why() -> None:
    (found,) = measure(CPU, ("bf16",), size=10_000_000).values()  # 400 TB
    assert found.ratio is None
    assert "memory" in found.trouble
    check = check_precision("bf16", found, "why", 512, "fp32")
    assert check.severity == "warning"
    assert check.facts["speedup"] is None


def test_a_precision_pays_when_its_whole_interval_is_above_float32() -> None:
    check = check_precision("bf16", measured(1.01, 1.9, 2.8), "the reason", 512, "bf16")
    assert (check.severity, check.facts["pays"]) == ("info", True)
    expected = (
        "bf16 is faster: 1.90× the speed of FP32 (1.01 to 2.80) in 512 × 512 matrix products; the reason"
    )
    assert check.text == expected


def test_a_slower_one_does_not_pay_and_the_hint_names_what_does() -> None:
    check = check_precision("fp16", measured(0.01, 0.02, 0.03), "the reason", 512, "bf16")
    assert (check.severity, check.facts["pays"]) == ("warning", False)
    assert check.hint == "train with --precision bf16"


def test_an_interval_around_1_decides_nothing() -> None:
    check = check_precision("bf16", measured(0.9, 1.4, 2.0), "the reason", 512, "fp32")
    assert check.facts["pays"] is None
    assert check.text.startswith("bf16: no clear difference, 1.40×")


def test_the_best_is_what_is_surely_fastest_and_float32_where_nothing_surely_is() -> None:
    assert best_of({"fp16": measured(1.5, 3.0, 6.0), "bf16": measured(1.8, 1.9, 2.0)}) == "bf16"
    assert best_of({"fp16": measured(0.5, 3.0, 9.0), "bf16": Measured(None, "no memory")}) == "fp32"


def test_what_the_engine_does_not_run_is_told_with_what_it_does() -> None:
    check = check_unsupported("bf16", "Tesla T4 has no bfloat16 arithmetic", "fp16")
    assert check.text == "bf16 is not supported here: Tesla T4 has no bfloat16 arithmetic"
    assert check.hint == "train with --precision fp16"


@pytest.mark.parametrize(
    ("precision", "card", "words"),
    [
        (
            "fp16",
            gpu("Tesla V100", (7, 0)),
            "Tensor Cores support float16 (compute capability 7.0)",
        ),
        (
            "bf16",
            gpu("Tesla T4", (7, 5)),
            "Tensor Cores support bfloat16 from compute capability 8.0, this GPU has 7.5",
        ),
        (
            "tf32",
            gpu("NVIDIA H200", (9, 0)),
            "Tensor Cores support TF32 (compute capability 9.0)",
        ),
        ("fp8", gpu("NVIDIA L4", (8, 9)), "Tensor Cores support float8 (compute capability 8.9)"),
        ("fp16", gpu("NVIDIA GeForce GTX 1660", (7, 5)), "NVIDIA GeForce GTX 1660 has no Tensor Cores"),
    ],
)
def test_a_gpu_is_judged_by_its_compute_capability(precision: str, card: Gpu, words: str) -> None:
    assert gpu_reason(precision, card) == words


@pytest.mark.parametrize(
    ("lines", "bf16", "fp16"),
    [
        (
            "processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16\n",
            "has amx_bf16, avx512_bf16",
            "no float16 instructions",
        ),
        ("processor\t: 0\nFeatures\t: fp asimd asimdhp bf16\n", "has bf16", "has asimdhp"),
        ("nothing of use\n", "no bfloat16 instructions", "no float16 instructions"),
    ],
)
def test_a_processors_instructions_are_read_from_the_kernel(
    tmp_path: Path, lines: str, bf16: str, fp16: str
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(lines)
    flags = cpu_flags(tmp_path)
    assert bf16 in cpu_reason("bf16", flags)
    assert fp16 in cpu_reason("fp16", flags)


def test_a_kernel_that_does_not_say_has_no_flags(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path) == frozenset()


# ------------------------------------------------------------------------------------- FP8


@pytest.mark.parametrize(
    ("torchao", "trouble", "emulated", "severity", "text", "hint"),
    [
        (None, "", "", "info", "fp8 needs torchao, which is not installed", "pip install 'amptui[fp8]'"),
        ("0.11.0", "", "", "warning", "torchao 0.11.0 is too old for fp8", "pip install 'torchao>=0.15'"),
        (
            "0.16.0+cpu",
            "torchao cannot be used: ImportError: no config",
            "",
            "warning",
            "no fp8: torchao cannot be used: ImportError: no config (torchao 0.16.0+cpu)",
            "install the torchao that was made for this torch; fp8 is tested with torchao 0.18",
        ),
        (
            "0.18.0",
            "",
            "Tesla T4 does not multiply float8",
            "info",
            "fp8 is emulated here, so its speed is not measured: Tesla T4 does not multiply float8",
            "",
        ),
    ],
)
def test_what_fp8_lacks_is_told_with_what_to_do(
    torchao: str | None, trouble: str, emulated: str, severity: str, text: str, hint: str
) -> None:
    check = check_float8(torchao, trouble, emulated)
    assert check is not None
    assert (check.name, check.severity, check.text, check.hint) == ("fp8", severity, text, hint)
    assert check.facts["torchao"] == torchao
    assert check.facts["usable"] == (torchao == "0.18.0")


def test_where_fp8_lacks_nothing_its_speed_is_measured_instead() -> None:
    assert check_float8("0.18.0", "", "") is None


def test_the_oldest_torchao_is_that_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    least = f"torchao>={'.'.join(map(str, TORCHAO))}"
    assert least in extras["fp8"]
    assert least in extras["test"]


@pytest.mark.ci
def test_this_machine_is_told_what_it_makes_of_fp8() -> None:
    (check,) = [check for check in precision_checks() if check.name == "fp8"]
    if torch.cuda.is_available():
        assert check.facts
    elif importlib.util.find_spec("torchao") is None:
        assert check.hint == "pip install 'amptui[fp8]'"
    elif trouble := torchao_trouble():
        assert (check.severity, check.facts["usable"]) == ("warning", False)
        assert trouble in check.text
    else:
        assert (check.severity, check.facts["emulated"], check.facts["usable"]) == ("info", True, True)


def test_float8_products_are_measured_like_the_others() -> None:
    """On a GPU that has them; torch has the operator for CPUs as well."""
    (found,) = measure(CPU, ("fp8",), size=32, budget_seconds=0.02).values()
    if found.trouble:
        pytest.skip(f"this torch multiplies no float8 on a CPU: {found.trouble}")
    assert found.ratio is not None
    assert found.ratio.value > 0


@pytest.mark.gpu
@pytest.mark.real_gpu("how fast a GPU multiplies matrices")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_every_precision_is_told_and_float16_measured() -> None:
    checks = {check.name: check for check in precision_checks()}
    assert set(checks) == {"tf32", "fp16", "bf16", "fp8"}
    assert checks["fp16"].facts["speedup"]
