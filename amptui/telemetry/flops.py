"""Achieved FLOP/s of each precision, and the most that the GPU reaches."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from amptui.records.findings import FlopsCounted
from amptui.records.run import RunStarted, precision_place
from amptui.telemetry.view import PrecisionFlops, PrecisionStats

_ONE_TYPE = {"ieee": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16"}
"""What nearly all of a precision's operations multiply; in ``fp32`` torch's flags decide, unknown here."""


LITTLE_CHANGE = 0.05
"""If the operations of a sample differ more between two counts, none stands for all steps."""


@dataclass(slots=True, eq=False)
class FlopsWatch:
    """The count of each precision: of several the one of the most samples."""

    _counts: dict[str, FlopsCounted] = field(default_factory=dict)
    _shapes_vary: bool = False

    def add(self, record: FlopsCounted) -> None:
        """Take a count; one without operations says nothing."""
        self._shapes_vary |= record.shapes_vary
        if record.flops <= 0:
            return
        before = self._counts.get(record.precision)
        if before is not None and before.samples and record.samples:
            change = record.flops / record.samples * before.samples / before.flops
            self._shapes_vary |= abs(change - 1) > LITTLE_CHANGE  # longer samples in smaller batches, perhaps
        if before is None or (before.samples or 0) <= (record.samples or 0):
            self._counts[record.precision] = record

    def flops(self, rows: Sequence[PrecisionStats], run: RunStarted | None) -> tuple[PrecisionFlops, ...]:
        """In the order of ``PRECISION_ORDER``; only counted steps, after warm-up, have a speed."""
        if not self._counts:
            return ()
        by_name = dict.fromkeys(self._counts) | {row.precision: row for row in rows}
        flops = []
        for name in sorted(by_name, key=lambda name: (precision_place(name), name)):
            row, counted = by_name[name], self._counts.get(name) or self._borrowed(name)
            if self._shapes_vary:
                counted = replace(counted, shapes_vary=True)
            rate = seconds = None
            if row is not None and not row.provisional_steps:
                rate, seconds = row.samples_per_second, row.mean_step_seconds
            flops.append(flops_now(counted, seconds, run, rate))
        return tuple(flops)

    def _borrowed(self, precision: str) -> FlopsCounted:
        """Another precision's count: a compiled model is counted once, and computes as much in each."""
        number_type, count = _ONE_TYPE.get(precision), next(iter(self._counts.values()))
        return replace(
            count,
            precision=precision,
            flops_by_type={number_type: count.flops} if number_type is not None else {},
            nchw_flops=0,
            unaligned_flops=0,
            unaligned=(),
        )


def flops_now(
    counted: FlopsCounted,
    step_seconds: float | None,
    run: RunStarted | None,
    samples_per_second: float | None = None,
) -> PrecisionFlops:
    """What the counted operations of a sample come to at this rate on a GPU; a CPU has no speed here.

    Where samples are not known, every step counts as one of ``step_seconds``.
    """
    on_gpu = run is not None and run.device.startswith("cuda")
    speed = peak = None
    if run is not None and on_gpu:
        peak = peak_flops(run.device_name, counted.flops_by_type)
        if samples_per_second and counted.samples:
            step_seconds = counted.samples / samples_per_second
        if step_seconds and not counted.shapes_vary:
            speed = counted.flops / step_seconds
    return PrecisionFlops(
        counted=counted,
        on_gpu=on_gpu,
        flops_per_second=speed,
        peak_flops_per_second=peak,
        ranks=1 if run is None else run.world_size,
    )


# ------------------------------------------------------------------------------------- the peaks


class Peak(NamedTuple):
    """TFLOP/s without sparsity at boost clock, accumulated in float32 as torch does; None: no such unit."""

    float32: float
    tf32: float | None
    float16: float | None
    bfloat16: float | None
    float8: float | None = None


_PEAKS: tuple[tuple[str, Peak], ...] = (
    # NVIDIA H100 Tensor Core GPU Architecture, v1.04, table 2.
    ("NVIDIA H100 80GB HBM3", Peak(66.9, 494.7, 989.4, 989.4, 1978.9)),
    ("NVIDIA H100 PCIe", Peak(51.2, 378.0, 756.0, 756.0, 1513.0)),
    # NVIDIA H100 Tensor Core GPU datasheet, column H100 NVL; half of the values with sparsity.
    ("NVIDIA H100 NVL", Peak(60.0, 417.5, 835.5, 835.5, 1670.5)),
    # NVIDIA H200 Tensor Core GPU datasheet; half of the values with sparsity.
    ("NVIDIA H200", Peak(67.0, 494.5, 989.5, 989.5, 1979.0)),
    # NVIDIA GH200 Grace Hopper Superchip datasheet: 494 and 990 without sparsity, as half of 989 and 1,979.
    # The gigabytes are those of the CPU's memory, or of the GPU's where HBM3e follows.
    (r"NVIDIA GH200 (120GB|480GB|144G HBM3e)", Peak(67.0, 494.5, 989.5, 989.5, 1979.0)),
    # NVIDIA HGX platform, HGX B200: an eighth of the system's, half of the values with sparsity.
    ("NVIDIA B200", Peak(75.0, 1125.0, 2250.0, 2250.0, 4500.0)),
    # NVIDIA GB200 NVL72, specifications of an individual Blackwell GPU; half of the values with sparsity.
    ("NVIDIA GB200", Peak(80.0, 1250.0, 2500.0, 2500.0, 5000.0)),
    # NVIDIA A100 Tensor Core GPU datasheet; the same for SXM and PCIe.
    (r"NVIDIA A100(-SXM4|-PCIE)-(40|80)GB", Peak(19.5, 156.0, 312.0, 312.0)),
    ("NVIDIA A100 80GB PCIe", Peak(19.5, 156.0, 312.0, 312.0)),
    # NVIDIA A30 datasheet. GA100 with 56 SMs at 1.44 GHz: 128, 1024 and 2048 operations per SM and clock.
    ("NVIDIA A30", Peak(10.3, 82.0, 165.0, 165.0)),
    # Datasheets of A10 and A40.
    ("NVIDIA A10", Peak(31.2, 62.5, 125.0, 125.0)),
    # NVIDIA A10G datasheet (for AWS, February 2022): half the Tensor Core rate of an A10, as a GeForce.
    ("NVIDIA A10G", Peak(35.0, 35.0, 70.0, 70.0)),
    ("NVIDIA A40", Peak(37.4, 74.8, 149.7, 149.7)),
    # Datasheets of L4, L40 and L40S; half of the values with sparsity.
    ("NVIDIA L4", Peak(30.3, 60.0, 121.0, 121.0, 242.5)),
    ("NVIDIA L40", Peak(90.5, 90.5, 181.05, 181.05, 362.0)),
    ("NVIDIA L40S", Peak(91.6, 183.0, 362.05, 362.05, 733.0)),
    # NVIDIA T4 datasheet.
    ("(NVIDIA |Tesla )T4", Peak(8.1, None, 65.0, None)),
    # NVIDIA V100 and V100S datasheet.
    (r"(NVIDIA |Tesla )V100-SXM[23]-(16|32)GB(-LS)?", Peak(15.7, None, 125.0, None)),
    (r"(NVIDIA |Tesla )V100-PCIE-(16|32)GB", Peak(14.0, None, 112.0, None)),
    (r"(NVIDIA |Tesla )V100S-PCIE-32GB", Peak(16.4, None, 130.0, None)),
    # NVIDIA Ampere GA102 GPU Architecture, appendices A and C: FP16 with FP32 accumulate. There a GeForce (82
    # SMs at 1.695 GHz) has half the Tensor Core rate of an RTX A6000 (84 SMs at 1.8 GHz): 512 operations per
    # SM and clock in FP16 and 256 in TF32, as many as in FP32.
    ("NVIDIA GeForce RTX 3090", Peak(35.6, 35.6, 71.0, 71.0)),
    ("NVIDIA RTX A6000", Peak(38.7, 77.4, 154.8, 154.8)),
    # NVIDIA Ada GPU Architecture, appendix A: FP16 with FP32 accumulate.
    ("NVIDIA GeForce RTX 4090", Peak(82.6, 82.6, 165.2, 165.2)),
    # NVIDIA RTX Blackwell GPU Architecture, V1.1, tables 3, 4 and 6: FP16 with FP32 accumulate. In
    # TF32 half as many, as in FP32 and as of the RTX 4090.
    ("NVIDIA GeForce RTX 5090", Peak(104.8, 104.8, 209.5, 209.5)),
    ("NVIDIA GeForce RTX 5080", Peak(56.3, 56.3, 112.6, 112.6)),
    ("NVIDIA GeForce RTX 5070", Peak(30.9, 30.9, 61.7, 61.7)),
)
"""By whole names: a part of a GPU (MIG), a laptop's or a cut-down GPU of a similar name has another peak.

A GeForce has two peaks in FP8: with FP32 accumulate, and twice as much with FP16 accumulate. With the fast
accumulation that torchao asks for in forward passes cuBLAS exceeds the first one, and nothing says which of
them holds for a step: none is given.
"""


def peak_flops(device_name: str, flops_by_type: Mapping[str, int]) -> float | None:
    """FLOP/s that ``device_name`` reaches at most with the fastest kind of number in use; None if unknown.

    A step in AMP is measured by the peak of its half precision although a part of it may run in float32, one
    in FP8 by that of float8 although a part runs in bfloat16, and one in FP32 by that of TF32 if torch's
    flags let convolutions use it.
    """
    peak = next((peak for pattern, peak in _PEAKS if re.fullmatch(pattern, device_name)), None)
    if peak is None:
        return None
    by_type: Mapping[str, float | None] = peak._asdict()
    peaks = [by_type.get(name) for name, flops in flops_by_type.items() if flops > 0]
    measured_peaks = [peak_of_type for peak_of_type in peaks if peak_of_type is not None]
    return max(measured_peaks) * 1e12 if measured_peaks and len(measured_peaks) == len(peaks) else None
