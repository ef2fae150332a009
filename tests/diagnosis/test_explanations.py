"""Why AMP gave little, and what a ratio still needs, in words."""

from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.memory_use import saved_for_backward
from amptui.diagnosis.speed import (
    explanations,
    of_steps,
    provisional_lines,
    speed_of,
    uncounted,
    unfair_losses,
    why_no_ratio,
)
from amptui.records.run import Record
from amptui.records.steps import StepRecord
from amptui.telemetry.comparison import LITTLE_SPEED
from amptui.telemetry.session import Session
from amptui.telemetry.view import Comparison, SessionView
from tests.telemetry.record_samples import device, run, steps, xray


def view_of(*records: Record) -> SessionView:
    session = Session()
    session.fold([run(), *records])
    return session.view()


def both(**of_both: Any) -> list[StepRecord]:
    return [*steps(1, 30, **of_both), *steps(31, 60, precision="fp16", **of_both)]


IDLE = [
    *(device(float(time), "fp32", None, 60.0) for time in range(3)),
    *(device(float(time), "fp16", None, 55.0) for time in range(3, 6)),
]


def test_a_loop_that_waits_for_data_is_told_what_to_speed_up() -> None:
    (text,) = explanations(view_of(*both(step_seconds=0.01, data_seconds=0.006)))
    assert text == (
        "input-bound: FP32 spends 60.0% of each step waiting for data, AMP fp16 60.0%; "
        "speed up data loading first"
    )


def test_a_launch_bound_loop_is_told_what_launches_less() -> None:
    view = view_of(*both(data_seconds=0.0), *IDLE)
    hint = "; use larger batches, CUDA graphs or torch.compile"
    assert explanations(view) == [f"launch-bound: the GPU is idle 45.0% of the time{hint}"]
    slower = replace(view.comparison, speedup=1 - 2 * LITTLE_SPEED)
    assert explanations(replace(view, comparison=slower)) == [
        f"launch-bound: the GPU is idle 45.0% of the time, and AMP's casts add kernel launches{hint}"
    ]


def with_peaks(fp16: int, *others: Record) -> SessionView:
    """FP32 with a peak of 1,000 bytes beside a faster AMP."""
    fast = steps(31, 60, precision="fp16", step_seconds=0.002)
    return view_of(*steps(1, 30), *fast, device(1.0, "fp32", 1000), device(1.0, "fp16", fp16), *others)


def test_memory_that_amp_does_not_lower_is_probably_the_weights() -> None:
    (text,) = explanations(with_peaks(990))
    assert text == (
        "1% less peak memory: probably mostly weights, gradients and optimizer state, which stay FP32"
    )
    assert explanations(with_peaks(990), {"x-ray"}) == [f"{text}; press x for the breakdown"]
    assert explanations(with_peaks(1100))[0].startswith("10% more peak memory: ")
    assert explanations(with_peaks(1000))[0].startswith("the same peak memory: ")
    assert explanations(with_peaks(950)) == []


def test_an_xray_says_where_the_memory_is() -> None:
    one_xray = xray(saved_bytes_fp32=12 * 2**20, saved_bytes_amp=6 * 2**20)
    (text,) = explanations(with_peaks(990, one_xray), {"x-ray"})
    assert text == f"1% less peak memory: {saved_for_backward(one_xray)}"


def test_before_there_are_enough_steps_nothing_is_explained() -> None:
    few = [*steps(1, 30), *steps(31, 40, precision="fp16")]
    assert explanations(view_of(*few, device(1.0, "fp32", 1000), device(1.0, "fp16", 1000))) == []


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([], "no steps yet"),
        ([steps(1, 30)], "no steps in AMP"),
        ([steps(1, 30, precision="bf16")], "no steps in FP32"),
        ([steps(1, 30), steps(31, 42, precision="fp16")], "not enough steps: AMP 12 of 20"),
        (
            [steps(1, 3, precision="tf32"), steps(4, 15, precision="bf16")],
            "not enough steps: TF32 3 of 20, AMP 12 of 20",
        ),
        ([steps(1, 30), steps(31, 60, precision="fp16")], ""),
    ],
)
def test_a_ratio_that_is_missing_says_what_it_needs(batches: list[list[StepRecord]], words: str) -> None:
    view = view_of(*(record for batch in batches for record in batch))
    assert why_no_ratio(view.comparison) == words


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([steps(1, 30, precision="fp8")], "no steps in AMP bf16"),
        ([steps(1, 30), steps(31, 60, precision="fp8")], "no steps in AMP bf16"),
        (
            [steps(1, 12, precision="bf16"), steps(13, 17, precision="fp8")],
            "not enough steps: AMP bf16 12 of 20, FP8 5 of 20",
        ),
        ([steps(1, 30, precision="bf16"), steps(31, 60, precision="fp8")], ""),
        ([steps(1, 30, precision="bf16"), steps(31, 60, precision="fp8-emulated")], "emulated: "),
    ],
)
def test_in_fp8_the_ratio_needs_bf16(batches: list[list[StepRecord]], words: str) -> None:
    comparison = view_of(*(record for batch in batches for record in batch)).comparison
    assert why_no_ratio(comparison).startswith(words)
    assert bool(words) == (comparison.speedup is None)
    if comparison.missing == "baseline":
        assert why_no_ratio(comparison, {"comparison"}) == "press c to compare with AMP bf16"


def test_memory_that_fp8_does_not_lower_is_beside_that_of_bf16() -> None:
    bf16, fp8 = steps(1, 30, precision="bf16"), steps(31, 60, precision="fp8", step_seconds=0.002)
    view = view_of(
        *bf16, *fp8, device(1.0, "bf16", 1000), device(1.0, "fp8", 1100), device(1.0, "fp32", 9999)
    )
    one_xray = xray(saved_bytes_fp32=12 * 2**20, saved_bytes_amp=6 * 2**20)
    (text,) = explanations(replace(view, numerics=replace(view.numerics, xray=one_xray)), {"x-ray"})
    assert text == (
        "10% more peak memory: probably mostly weights, gradients and optimizer state, which stay FP32"
    )


@pytest.mark.parametrize(("precision", "other"), [("fp32", "AMP"), ("bf16", "FP32")])
def test_the_key_that_gets_a_ratio_is_named_where_it_works(precision: str, other: str) -> None:
    comparison = view_of(*steps(1, 30, precision=precision)).comparison
    assert why_no_ratio(comparison, {"precision"}) == f"press p to compare with {other}"
    assert why_no_ratio(comparison, {"stop"}) == f"no steps in {other}"


@pytest.mark.parametrize(
    ("speed", "words", "gain"),
    [
        ((1.94, 1.9, 1.98), "1.94× the speed of FP32 (1.90 to 1.98)", 1),
        ((0.5, 0.4, 0.625), "0.50× the speed of FP32 (0.40 to 0.62)", -1),
        ((1.01, 0.98, 1.04), "1.01× the speed of FP32 (0.98 to 1.04)", 0),
        ((0.99, 0.96, 1.02), "0.99× the speed of FP32 (0.96 to 1.02)", 0),
        ((1.71, 0.27, 11.01), "no clear difference from FP32 yet (0.27 to 11.01)", 0),
        ((1.28, 0.7, 2.32), "no clear difference from FP32 yet (0.70 to 2.32)", 0),
        ((1.003, 1.001, 1.005), "1.00× the speed of FP32 (1.00 to 1.00)", 0),
        ((1.94, None, None), "1.94× the speed of FP32 ", 1),
    ],
)
def test_a_speed_is_said_with_its_interval(
    speed: tuple[float, float | None, float | None], words: str, gain: int
) -> None:
    result = speed_of(*speed, than="FP32")
    assert (f"{result.words} {result.interval}", result.gain) == (words, gain)


def test_losses_are_of_as_many_steps_of_each_and_say_what_they_do_not_mean() -> None:
    view = view_of(*steps(1, 200, loss=0.5), *steps(201, 320, precision="fp16", loss=0.4))
    losses = "loss after 120 steps of each: FP32 0.500, AMP 0.400"
    assert unfair_losses(view) == (
        f"{losses}; mid-run losses start where the other precision left off",
        f"{losses}; no fair race",
    )
    assert unfair_losses(view_of(*both())) == ()


@pytest.mark.parametrize(("warm_up_steps", "figure"), [(0, "9.61 ms"), (1, "not measured"), (2, "~9.61 ms")])
def test_a_single_warm_up_step_is_no_figure(warm_up_steps: int, figure: str) -> None:
    row = replace(view_of(*both()).comparison.rows[0], provisional_steps=warm_up_steps)
    assert of_steps(row, "9.61 ms") == figure


@pytest.mark.parametrize(
    ("fp32_steps", "notes"),
    [
        (0, ["~ from warm-up steps: 4 in AMP fp16", "warm-up steps left out: 9"]),
        (1, ["~ from warm-up steps: 4 in AMP fp16", "warm-up steps left out: 9"]),
        (9, ["~ from warm-up steps: 9 in FP32, 4 in AMP fp16"]),
    ],
)
def test_warm_up_steps_are_behind_a_marked_figure_or_left_out(fp32_steps: int, notes: list[str]) -> None:
    fp32, fp16 = view_of(*both()).comparison.rows
    rows = (
        replace(fp32, warm_up_steps=9, provisional_steps=fp32_steps),
        replace(fp16, warm_up_steps=4, provisional_steps=4),
    )
    view = SessionView(comparison=Comparison(rows=rows))
    assert provisional_lines(view.comparison) + uncounted(view) == notes
    assert uncounted(SessionView(unmeasured_steps=12)) == ["steps not measured: 12"]
