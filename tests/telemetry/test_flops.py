"""Operations a second beside a GPU's peak, and joules a sample: no number without what it rests on."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from amptui.diagnosis.tensor_cores import flops_hints, flops_line, mfu_words, rate_words
from amptui.records.findings import FlopsCounted
from amptui.records.run import PauseChanged, PhaseChanged, PrecisionChanged, Record
from amptui.telemetry.comparison import MIN_ENERGY_SECONDS
from amptui.telemetry.flops import flops_now, peak_flops
from amptui.telemetry.view import PrecisionFlops
from tests.builders import fold
from tests.diagnosis.wording import table
from tests.golden import Goldens
from tests.telemetry import record_samples as samples
from tests.telemetry.record_samples import device, run, steps, traced, xray

TERA = 10**12

NAMES = (
    *("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA GH200 480GB"),
    *("NVIDIA B200", "NVIDIA GB200", "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S"),
    *("NVIDIA GH200 120GB", "NVIDIA GH200 144G HBM3e", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"),
    *("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA A10", "NVIDIA A10G", "NVIDIA A30"),
    *("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-32GB", "Tesla T4", "NVIDIA A40", "NVIDIA RTX A6000"),
    *(f"NVIDIA GeForce RTX {model}" for model in (3090, 4090, 5090, 5080, 5070)),
    # Similar names, parts of a GPU, and unconfirmed figures.
    *("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GH200"),
    *("NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 5090 D", "NVIDIA GeForce RTX 5070 Ti"),
    *("NVIDIA H200 NVL", "NVIDIA H20", "AMD EPYC", ""),
)
NUMBER_TYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")


def test_dense_peaks_are_as_read_in_data_sheets(goldens: Goldens) -> None:
    lines = [f"TFLOP/s{'':28}" + "".join(f"{number_type:>10}" for number_type in NUMBER_TYPES)]
    for name in NAMES:
        peaks = [peak_flops(name, {number_type: 1}) for number_type in NUMBER_TYPES]
        told = ["-" if peak is None else f"{peak / 1e12:.6g}" for peak in peaks]
        lines.append(f"{name or 'no name':35}" + "".join(f"{peak:>10}" for peak in told))
    goldens.check("words/dense peaks", "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "flops_by_type", "teraflops"),
    [
        # The fastest kind in use counts: what ran in float32 beside it ran below its speed.
        ("NVIDIA A100-SXM4-40GB", {"float16": 9, "float32": 1}, 312.0),
        ("NVIDIA A100-SXM4-40GB", {"tf32": 9, "float32": 1}, 156.0),
        ("NVIDIA A100-SXM4-40GB", {"float32": 9, "tf32": 0}, 19.5),
        ("NVIDIA H200", {"float8": 1, "bfloat16": 9}, 1979.0),
        # Of a GeForce nothing says which of its two peaks of float8 holds.
        ("NVIDIA GeForce RTX 4090", {"float8": 9, "bfloat16": 1}, None),
        ("NVIDIA A100-SXM4-40GB", {"float64": 9, "float32": 1}, None),
        ("NVIDIA A100-SXM4-40GB", {}, None),
    ],
)
def test_the_peak_is_of_the_numbers_that_are_multiplied(
    name: str, flops_by_type: dict[str, int], teraflops: float | None
) -> None:
    expected = None if teraflops is None else teraflops * 1e12
    assert peak_flops(name, flops_by_type) == expected


def folded(*records: Record, **run: Any) -> tuple[PrecisionFlops, ...]:
    session = fold([samples.run(**run), *records], "runs/x")
    return session.view().flops


STEPS = [
    *samples.steps(1, 10, settling=True, step_seconds=9.0),
    *samples.steps(11, 40, step_seconds=0.004),
    *samples.steps(41, 50, precision="fp16", settling=True, step_seconds=9.0),
    *samples.steps(51, 80, precision="fp16", step_seconds=0.002),
]


MIXED = [
    *samples.steps(1, 10, settling=True),
    *samples.steps(11, 50, samples=256, step_seconds=0.004),
    *samples.steps(51, 60, samples=64, step_seconds=0.001),
]
MANY, FEW = samples.flops(flops=2 * TERA, samples=256), samples.flops(flops=TERA // 2, samples=64)
HALF = samples.flops("fp16", flops=2 * TERA)
VARIED = samples.flops("fp16", samples=256, shapes_vary=True)

SPEEDS: dict[str, tuple[PrecisionFlops, ...]] = {
    "of the steps after warm-up": folded(HALF, samples.flops(flops=2 * TERA // 100), *STEPS),
    "warm-up steps alone": folded(samples.flops(), *STEPS[:10]),
    "a CPU": folded(samples.flops(flops=2 * TERA), *STEPS, device="cpu", device_name="NVIDIA H200"),
    "what could not be counted": folded(samples.flops(flops=10**9, uncounted=("mine",)), HALF, *STEPS),
    "each of four ranks": folded(samples.flops(flops=2 * TERA), HALF, *STEPS, world_size=4),
    "compiled and counted in fp16: torch's flags may let FP32 multiply TF32": folded(HALF, *STEPS),
    "compiled and counted in fp32": folded(samples.flops(flops=TERA), *STEPS),
    "steps of two sizes, the larger counted": folded(MANY, *MIXED),
    "steps of two sizes, the smaller counted": folded(FEW, *MIXED),
    "steps of two sizes, both counted": folded(MANY, FEW, *MIXED),
    "two sizes whose samples take different operations": folded(
        MANY, samples.flops(flops=TERA, samples=64), *MIXED
    ),
    "steps of one size": folded(MANY, *MIXED[:50]),
    "a size that no counted step had": folded(samples.flops(samples=100), *MIXED),
    "shapes that vary": folded(samples.flops(samples=256), VARIED, *STEPS),
    "another device afterwards": folded(samples.flops(), *STEPS, samples.resumed(80, device_name="other")),
}


def test_speeds_are_those_of_the_steps_that_were_counted(goldens: Goldens) -> None:
    def row(flops: PrecisionFlops) -> str:
        speed, mfu = flops.flops_per_second, flops.mfu
        measured = [
            f"{flops.counted.samples} samples",
            "-" if speed is None else f"{speed / TERA:.6g} TFLOP/s",
            "-" if mfu is None else f"{mfu:.4%}",
        ]
        words = [rate_words(flops), mfu_words(flops), flops_line(flops)]
        return " | ".join([flops.counted.precision, *measured, *words])

    goldens.check("words/flops", table({name: [*map(row, every)] for name, every in SPEEDS.items()}))


# --------------------------------------------------------------------------------------- hints

TROUBLED = {
    "flops": 1000,
    "flops_by_type": {"float16": 600, "float32": 400},
    "unaligned_flops": 500,
    "unaligned": (samples.product("head", sizes=(256, 10, 512), padded=(10,)),),
    "nchw_flops": 300,
}
SMALL = {"flops_by_type": {"float16": 99}, "flops": 99, "unaligned_flops": 9, "nchw_flops": 9}
IN_FLOAT16 = {**TROUBLED, "flops_by_type": {"float16": 1000}}


def hints(*counted: FlopsCounted, **run: Any) -> list[str]:
    return flops_hints([flops_now(item, 0.004, samples.run(**run)) for item in counted])


def test_what_is_said_of_operations(goldens: Goldens) -> None:
    count = samples.flops
    varied = count("fp16", samples=256, shapes_vary=True, **TROUBLED)
    line = folded(count("fp16", flops=828 * 10**9), *STEPS)[1]
    rows = {
        "a line": flops_line(line),
        "everything": hints(count("fp16", **TROUBLED)),
        "small shares": hints(count("fp16", unaligned=(samples.product(),), **SMALL)),
        "a tenth": hints(count("fp16", **{**IN_FLOAT16, "unaligned_flops": 100, "nchw_flops": 100})),
        "full precision": hints(count("fp32", **TROUBLED)),
        "nothing to pad": hints(
            count("fp16", **{**TROUBLED, "unaligned": (samples.product("", sizes=(1, 64), padded=()),)})
        ),
        "one without a formula": hints(count(uncounted=("mine",)), count("bf16", uncounted=("mine", "fft"))),
        "shapes that vary": flops_hints(folded(count(samples=256), varied, *STEPS)),
    }
    goldens.check("words/operations", table(rows))


# ---------------------------------------------------------------------------------- joules a sample


def second(number: int, watts: float, precision: str = "fp32", **changes: object) -> list[Record]:
    """A second's 100 steps of 256 samples and then a look, in a run that always takes ``watts``."""
    first = 100 * number + 1
    return [
        *steps(first, first + 99, precision=precision, **changes),
        device(100.0 + number, precision, None, energy_joules=1e6 + watts * number),
    ]


def energies(*records: Record, **started: Any) -> dict[str, float | None]:
    session = fold([run(**started), *records])
    return {row.precision: row.joules_per_1000_samples for row in session.view().comparison.rows}


def flat(seconds: Sequence[list[Record]]) -> list[Record]:
    return [record for part in seconds for record in part]


def test_each_precision_has_its_own_energy_after_ten_seconds_of_looks() -> None:
    fp32 = flat([second(number, 512.0) for number in range(12)])
    switch = PrecisionChanged(time=112.0, step=1201, previous="fp32", current="fp16")
    fp16 = flat([second(number, 256.0, "fp16") for number in range(12, 22)])
    assert energies(*fp32, switch, *fp16) == {"fp32": pytest.approx(20.0), "fp16": None}
    last = second(22, 256.0, "fp16")
    assert energies(*fp32, switch, *fp16, *last) == {"fp32": pytest.approx(20.0), "fp16": pytest.approx(10.0)}


INTERRUPTED: list[list[Record]] = [
    [PauseChanged(time=1.0, step=1, paused=True), PauseChanged(time=1.0, step=1, paused=False)],
    [PhaseChanged(time=1.0, phase="validating"), PhaseChanged(time=1.0, phase="training")],
    [
        PrecisionChanged(time=1.0, step=1, previous="fp32", current="fp16"),
        PrecisionChanged(time=1.0, step=1, previous="fp16", current="fp32"),
    ],
    [xray(1)],
    [traced(1)],
    [run()],
]


@pytest.mark.parametrize("interruption", INTERRUPTED, ids=lambda records: type(records[0]).__name__)
def test_what_passes_between_two_looks_still_interrupts_the_training(interruption: list[Record]) -> None:
    looks = [second(number, 512.0) for number in range(int(MIN_ENERGY_SECONDS) + 1)]
    assert energies(*flat(looks)) == {"fp32": pytest.approx(20.0)}
    looks[5] = [*interruption, *looks[5]]
    assert energies(*flat(looks)) == {"fp32": None}, "a second of the ten is missing"
    more = second(len(looks), 512.0)
    assert energies(*flat(looks), *more) == {"fp32": pytest.approx(20.0)}
    settling = flat([second(number, 9000.0, settling=True, samples=1) for number in range(12, 15)])
    settled = second(15, 512.0)
    assert energies(*flat(looks), *more, *settling, *settled) == {"fp32": pytest.approx(20.0)}


@pytest.mark.parametrize("joules", [None, math.nan, math.inf])
def test_a_counter_that_is_missing_tells_nothing_of_two_seconds(joules: float | None) -> None:
    looks = [second(number, 512.0) for number in range(int(MIN_ENERGY_SECONDS) + 3)]
    looks[5][-1] = device(105.0, "fp32", None, energy_joules=joules)
    assert energies(*flat(looks[:-1])) == {"fp32": None}
    assert energies(*flat(looks)) == {"fp32": pytest.approx(20.0)}
    assert energies(*flat(looks), gpu_uuid=None) == {"fp32": None}


def test_a_counter_that_begins_anew_tells_nothing_of_that_second() -> None:
    looks = [second(number, 512.0) for number in range(5)]
    looks += [
        [*steps(100 * n + 1, 100 * n + 100), device(100.0 + n, "fp32", None, None, 512.0 * n)]
        for n in range(5, 12)
    ]
    assert energies(*flat(looks[:-1])) == {"fp32": None}
    assert energies(*flat(looks)) == {"fp32": pytest.approx(20.0)}
