"""Which precisions are faster on this device: what the hardware supports, and a short measurement.

It measures a matrix product, where low precision helps most. That is an upper bound: a model also spends
time on casts, memory traffic and everything else in a step.
"""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from amptui.diagnosis.finding_fields import interval_ends, times_speed
from amptui.monitor.ab_test import MIN_PAIRS, Ratio, paired_ratio
from amptui.reports.doctor.check import Check, fact, fine, one_line, poor
from amptui.reports.doctor.gpus import read_gpus

if TYPE_CHECKING:
    import torch

_BUDGET_SECONDS = 1.0
_SAMPLE_SECONDS = 0.003
"""A sample repeats the product for at least this long, so that reading the clock costs nothing."""

_SAMPLES = 3
"""Other load can only slow a sample down, so the fastest of these counts, as with `timeit`."""

_CPU_SIZE, _GPU_SIZE = 512, 4096
"""Rows and columns: large enough to be compute-bound, small enough for a second."""

_NAMES = ("tf32", "fp16", "bf16", "fp8")


Measured: TypeAlias = Ratio | str
"""The speed of one precision relative to FP32, or why it could not be measured."""


def precision_checks() -> list[Check]:
    """Each precision on the default device: the first GPU, else the CPU."""
    import torch

    from amptui.device.accelerator import default_device
    from amptui.recipe.float8 import torchao_trouble
    from amptui.recipe.precision import unsupported_precisions

    gpus = list(read_gpus().values())
    device = default_device() if gpus else torch.device("cpu")
    unsupported = unsupported_precisions(device)
    if trouble := torchao_trouble():
        unsupported.pop("fp8", None)
    without = {"fp8"} if trouble or not gpus else set[str]()  # no CPU multiplies float8 faster
    measured = measure(device, tuple(name for name in _NAMES if name not in {*unsupported, *without}))
    checks = []
    if not gpus:
        checks.append(fact("cpu", f"torch uses {torch.backends.cpu.get_cpu_capability()} kernels"))
    checks += [check_precision(name, ratio, _size_for(device)) for name, ratio in measured.items()]
    if gpus and gpus[0].compute_capability:
        checks += [fact(name, f"{name} is not supported: {why}") for name, why in unsupported.items()]
    if trouble:
        checks.append(fact("fp8", f"no fp8: {trouble}", "pip install 'amptui[fp8]'"))
    return checks


def check_precision(name: str, measured: Measured, size: int) -> Check:
    """Whether ``name`` is faster than FP32: its whole 95% interval lies above 1, or below, or neither."""
    hint = "the machine may be busy; `amptui bench` measures a whole model"
    if isinstance(measured, str):
        return poor(name, f"{name} could not be measured: {measured}", hint)
    ends = interval_ends(measured.low, measured.high)
    times = times_speed(measured.value, "FP32") + (f" ({ends})" if ends else "")
    speed = f"{times} in {size} × {size} matrix products"
    if measured.low is not None and measured.low > 1:
        return fine(name, f"{name} is faster: {speed}")
    if measured.high is not None and measured.high < 1:
        return fact(name, f"{name} is slower: {speed}")
    return fact(name, f"{name}: speed-up unclear, {speed}", hint)


def measure(
    device: "torch.device", names: tuple[str, ...], *, size: int = 0, budget_seconds: float = _BUDGET_SECONDS
) -> dict[str, Measured]:
    """The speed of each of ``names`` relative to FP32, in products of two ``size`` × ``size`` matrices.

    Each takes turns with FP32, so that other load slows both, and gets an equal share of ``budget_seconds``,
    or more if `MIN_PAIRS` turns need more. Waits for the device.
    """
    from amptui.recipe.precision import Tf32Flags

    flags_before, size = Tf32Flags.current(), size or _size_for(device)
    measured: dict[str, Measured] = {}
    try:
        for name in names:
            seconds: tuple[list[float], list[float]] = ([], [])
            try:
                timers = _timer(device, "fp32", size), _timer(device, name, size)
                end = time.perf_counter() + budget_seconds / len(names)
                while len(seconds[0]) < MIN_PAIRS or time.perf_counter() < end:
                    for timer, durations in zip(timers, seconds, strict=True):
                        durations.append(timer())
                ratio = paired_ratio(*seconds)
                assert ratio is not None, "there are pairs"
                measured[name] = ratio
            except RuntimeError as error:  # out of memory, or a format that this torch has no kernel for
                measured[name] = one_line(error)
        return measured
    finally:
        flags_before.apply()


def _size_for(device: "torch.device") -> int:
    from amptui.device.accelerator import TRAINABLE

    # One that torch has as a plugin may be as slow as a CPU.
    return _GPU_SIZE if device.type in TRAINABLE and device.type != "cpu" else _CPU_SIZE


def _timer(device: "torch.device", name: str, size: int) -> Callable[[], float]:
    """Warm up, and return a function that measures a product: the fastest of a few short samples."""
    import torch

    from amptui.recipe.precision import Tf32Flags

    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
    a, b = torch.randn(2, size, size, device=device).to(kinds.get(name, torch.float32))
    flags = Tf32Flags.full().with_tf32() if name == "tf32" else Tf32Flags.full()
    scale = torch.ones((), device=device)

    def multiply() -> None:
        if name == "fp8":  # its second factor has to be stored by columns
            torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
        else:
            torch.mm(a, b)

    def wait() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    def seconds(repetitions: int) -> float:
        flags.apply()
        wait()
        began = time.perf_counter()
        for _ in range(repetitions):
            multiply()
        wait()
        return (time.perf_counter() - began) / repetitions

    seconds(1)  # the first one chooses kernels and gets memory
    repetitions = max(1, math.ceil(_SAMPLE_SECONDS / seconds(1)))
    samples = _SAMPLES if repetitions > 1 else 1
    return lambda: min(seconds(repetitions) for _ in range(samples))
