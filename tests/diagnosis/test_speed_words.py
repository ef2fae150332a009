"""What is said of speed, of what limits it, and of memory: approved words and true numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.speed import little_memory, of_steps, provisional_lines, result_cards, uncounted
from amptui.diagnosis.words import explained_words, long_words, short_words
from amptui.records.findings import MemoryBreakdown, PrecisionsCompared
from amptui.records.run import Record
from amptui.telemetry.comparison import judge_held_back
from amptui.telemetry.memory import judge_memory_use
from amptui.telemetry.timing import MIN_STEPS, judge_gain, judge_limit
from amptui.telemetry.view import Comparison, PrecisionTiming, SessionView
from tests.builders import make_started, make_steps, view_of
from tests.diagnosis.wording import table
from tests.golden import Goldens
from tests.telemetry.record_samples import (
    ALIKE,
    BUSY,
    HOST,
    compared,
    device,
    faster,
    measured,
    memory,
    timed,
    xray,
)

MIB = 2**20

HALF_FORWARD = (0.0, 0.3, 0.3, None, 0.4)

TIMINGS: Mapping[str, PrecisionTiming] = {
    "data on the device's clock": timed(0.0050, *HOST[1:], device=(0.0051, *BUSY[1:])),
    "computation on the host's clock": timed(0.02, 0.22, 0.40, None, 0.36),
    "computation on the device's clock": timed(*HOST, device=BUSY),
    "computation of a busy device": timed(*HOST, device=BUSY, busy=97.0),
    "computation of an idle device": timed(*HOST, device=BUSY, busy=40.0),
    "launches to an idle device": timed(*HOST, device=ALIKE, busy=40.0),
    "nothing but forward and backward in AMP": timed(0.0, 0.4, 0.58, None, 0.02, precision="fp16"),
    "computation in FP8": timed(*HALF_FORWARD, precision="fp8"),
    "weights in fp16": timed(*HALF_FORWARD, precision="fp16 weights"),
    "few steps": timed(*HALF_FORWARD, steps=MIN_STEPS - 1),
}


def gains() -> list[str]:
    """What FP32 and an AMP that is slower can give at most beside each other."""
    timings = timed(0.0, 0.1, 0.2, None, 0.1), timed(0.0, 3.7, 7.2, None, 0.1, precision="fp16")
    comparison = Comparison(baseline="fp32", low="fp16", speedup=0.4 / 11.0)
    return [long_words(judge_gain(timing, comparison)) for timing in timings]


def test_what_is_said_of_what_a_step_waits_for(goldens: Goldens) -> None:
    rows: dict[str, list[str]] = {}
    for name, timing in TIMINGS.items():
        limit = judge_limit(timing)
        rows[name] = [explained_words(limit), f"short: {short_words(limit)}"]
        if limit.state == "compute":
            rows[name].append(f"4 ranks: {explained_words(judge_limit(timing, ranks=4))}")
    rows["FP8 beside bf16"] = [long_words(judge_limit(timed(*HALF_FORWARD, precision="bf16"), about="fp8"))]
    rows["FP32 and a slower AMP"] = gains()
    goldens.check("words/bottlenecks", table(rows))


# --------------------------------------------------------------------- why AMP gave little, or what lacks


def after(*records: Record) -> SessionView:
    return view_of(make_started(), *records)


def steps_in(*counts: tuple[str, int], **changes: Any) -> list[Record]:
    """So many steps in one precision after another."""
    records: list[Record] = []
    for precision, count in counts:
        first = len(records) + 1
        records += make_steps(first, first + count - 1, precision=precision, **changes)
    return records


def with_peaks(fp16: int, *others: Record, fp32: int = 1000) -> SessionView:
    """FP32 with a peak beside a faster AMP."""
    fast = make_steps(31, 60, precision="fp16", step_seconds=0.002)
    peaks = (device(1.0, "fp32", fp32), device(1.0, "fp16", fp16))
    return after(*make_steps(1, 30), *fast, *peaks, *others)


FULL = memory("fp32", activations=20 * MIB, peak=250 * MIB)
LOW = memory("fp16", activations=22 * MIB, peak=248 * MIB)
IDLE = [
    *(device(float(time), "fp32", None, 60.0) for time in range(3)),
    *(device(float(time), "fp16", None, 55.0) for time in range(3, 6)),
]
LAUNCH_BOUND = after(*steps_in(("fp32", 30), ("fp16", 30), data_seconds=0.0), *IDLE)

EXPLAINED: Mapping[str, SessionView] = {
    "waits for data": after(*steps_in(("fp32", 30), ("fp16", 30), step_seconds=0.01, data_seconds=0.006)),
    "launches": LAUNCH_BOUND,
    "launches and is slower": replace(LAUNCH_BOUND, comparison=replace(LAUNCH_BOUND.comparison, speedup=0.8)),
    "10% more memory": with_peaks(1100),
    "breakdown of the memory": with_peaks(248 * MIB, FULL, LOW, xray(), fp32=250 * MIB),
    "FP8 beside bf16": after(
        *make_steps(1, 30, precision="bf16"),
        *make_steps(31, 60, precision="fp8", step_seconds=0.002),
        *(device(1.0, name, peak) for name, peak in (("bf16", 1000), ("fp8", 1100), ("fp32", 9999))),
        xray(),
    ),
}


def test_what_is_said_of_little_gain(goldens: Goldens) -> None:
    rows: dict[str, list[str]] = {}
    for name, view in EXPLAINED.items():
        held_back = judge_held_back(view.comparison)
        limits = [explained_words(held_back)] if held_back.freshness == "fresh" else []
        memory = [f"{long_words(it)} (by {it.measured_by or 'nothing'})" for it in little_memory(view)]
        rows[name] = limits + memory
    goldens.check("words/explanations", table(rows))


@pytest.mark.parametrize(
    ("fp32_steps", "figure", "notes"),
    [
        (0, "9.61 ms", ["~ from warm-up steps: 4 in AMP fp16", "warm-up steps left out: 9"]),
        (1, "not measured", ["~ from warm-up steps: 4 in AMP fp16", "warm-up steps left out: 9"]),
        (9, "~9.61 ms", ["~ from warm-up steps: 9 in FP32, 4 in AMP fp16"]),
    ],
)
def test_warm_up_steps_are_behind_a_marked_figure_or_left_out(
    fp32_steps: int, figure: str, notes: list[str]
) -> None:
    fp32, fp16 = after(*steps_in(("fp32", 30), ("fp16", 30))).comparison.rows
    assert of_steps(replace(fp32, provisional_steps=fp32_steps), "9.61 ms") == figure
    rows = (
        replace(fp32, warm_up_steps=9, provisional_steps=fp32_steps),
        replace(fp16, warm_up_steps=4, provisional_steps=4),
    )
    view = SessionView(comparison=Comparison(rows=rows))
    assert provisional_lines(view.comparison) + uncounted(view) == notes


# ------------------------------------------------------------------------------------ the A/B result


def beside_fp32(**changes: Any) -> PrecisionsCompared:
    return compared(rows=(measured("fp32"), faster(**changes)))


def test_what_a_comparison_found_may_be_quoted(goldens: Goldens) -> None:
    run = make_started(device_name="NVIDIA H200", model="mnist-deep", batch_size=256)
    results = {
        "no interval": beside_fp32(speedup_low=None),
        "the same memory": beside_fp32(peak_allocated_bytes=2 * 2**30),
        "more memory": beside_fp32(peak_allocated_bytes=3 * 2**30),
    }
    rows = {name: result_cards(result, None) for name, result in results.items()}
    goldens.check("words/comparisons", table({"of a run": result_cards(compared(), run), **rows}))


# -------------------------------------------------------------------------------------------- memory

FP32 = memory("fp32", activations=1500 * MIB, peak=1850 * MIB)
ON_A_CPU = (memory("fp32"), memory("bf16"))


def test_what_is_said_of_memory(goldens: Goldens) -> None:
    def said(memory: Sequence[MemoryBreakdown]) -> list[str]:
        return [*map(long_words, filter(None, [judge_memory_use(memory)]))]

    def beside(full: tuple[int, int], amp: tuple[int, int]) -> list[str]:
        """What is said of activations and peaks, in MiB."""
        fp32 = memory("fp32", activations=full[0] * MIB, peak=full[1] * MIB)
        return said((fp32, memory("fp16", activations=amp[0] * MIB, peak=amp[1] * MIB)))

    rows = {
        "hardly moved": beside((20, 250), (22, 252)),
        "hardly moved, most is data": beside((20, 2500), (22, 2490)),
        "rose": beside((2, 226), (30, 254)),
        "before AMP": said((FP32,)),
        "CPU": said(ON_A_CPU),
    }
    goldens.check("words/memory", table(rows))
