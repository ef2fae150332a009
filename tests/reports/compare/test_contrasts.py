"""The verdict on final losses, and what forbids one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.speed import EMULATED
from amptui.records.run import BlockFinished, Record, RunFailed
from amptui.reports.compare.contrasts import (
    CONFIDENCE,
    Check,
    Compared,
    Outcome,
    compared,
    median_of,
    peak_of,
    process_peak_of,
    rate_of,
)
from amptui.reports.compare.following import read_all
from amptui.reports.compare.sentences import how_measured, verdict
from amptui.reports.compare.tables import group_table, run_table
from amptui.reports.compare.trace import RunFigures
from tests.reports.compare.compared_runs import (
    BF16,
    FP32,
    SYNTHETIC,
    figures,
    finished,
    seeds,
    started,
    trained,
    validated,
    whole_run,
)
from tests.telemetry import record_samples

NEAR, FAR = [1.0, 1.1, 0.9], [2.0, 2.1, 1.9]


def outcome(runs: list[RunFigures]) -> Outcome:
    (contrast,) = compared(runs).contrasts
    return contrast.outcome


def kinds(found: Compared) -> list[str]:
    return [check.kind for check in found.checks]


def check(found: Compared, kind: str) -> Check:
    (one,) = [item for item in found.checks if item.kind == kind]
    return one


def test_losses_apart_by_more_than_the_seeds_differ() -> None:
    (contrast,) = compared([*seeds(NEAR), *seeds(FAR, precision="bf16")]).contrasts
    assert contrast.outcome == "differ"
    assert contrast.interval is not None
    # Both variances are 0.01: freedom 4, standard error 0.1 * sqrt(2 / 3).
    reach = 2.776 * 0.1 * math.sqrt(2 / 3)
    assert contrast.difference == pytest.approx(1.0)
    assert contrast.interval.freedom == pytest.approx(4)
    assert contrast.interval.low == pytest.approx(1 - reach, abs=1e-3)
    assert contrast.interval.high == pytest.approx(1 + reach, abs=1e-3)
    assert contrast.interval.confidence == CONFIDENCE


def test_losses_within_the_seeds_spread() -> None:
    (contrast,) = compared([*seeds(NEAR), *seeds([1.05, 0.95, 1.1], precision="bf16")]).contrasts
    assert contrast.outcome == "not shown"
    assert contrast.interval is not None
    assert contrast.interval.low < 0 < contrast.interval.high


def test_the_first_run_s_group_is_the_baseline_of_all_others() -> None:
    runs = [*seeds(FAR, precision="bf16"), *seeds(NEAR), *seeds(NEAR, precision="fp16")]
    comparison = compared(runs)
    assert [(item.baseline.letter, item.other.letter) for item in comparison.contrasts] == [
        ("A", "B"),
        ("A", "C"),
    ]
    assert [item.difference for item in comparison.contrasts] == pytest.approx([-1.0, -1.0])
    # Two intervals that hold at once.
    assert [item.interval.confidence for item in comparison.contrasts if item.interval] == pytest.approx(
        [0.975] * 2
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (NEAR[:1], FAR[:1], "few seeds"),
        (NEAR, FAR[:1], "few seeds"),
        ([1.0, 1.0], [2.0, 2.0], "no spread"),
        (NEAR, [2.0, math.nan, 2.0], "diverged"),
    ],
)
def test_what_gives_no_verdict(ours: list[float], theirs: list[float], expected: Outcome) -> None:
    runs = [*seeds(ours), *seeds(theirs, precision="bf16")]
    assert outcome(runs) == expected
    (contrast,) = compared(runs).contrasts
    assert contrast.interval is None
    if expected != "diverged":
        assert contrast.difference == pytest.approx(1.0)


def test_a_repeated_seed_is_no_second_one() -> None:
    repeated = [figures(whole_run(loss, seed=0, precision="bf16")) for loss in FAR]
    comparison = compared([*seeds(NEAR), *repeated])
    assert outcome([*comparison.runs]) == "few seeds"
    assert check(comparison, "repeated seed").groups == ("B",)
    assert check(comparison, "repeated seed").values == (0,)


def test_a_run_without_a_loss() -> None:
    silent = figures(
        [started(precision="bf16", batch_size=10), *trained([None] * 30, precision="bf16"), finished(30)]
    )
    assert outcome([*seeds(NEAR), silent]) == "no loss"


def test_one_group_has_no_contrast() -> None:
    comparison = compared(seeds(NEAR))
    assert comparison.contrasts == ()
    assert comparison.differences == ()


@pytest.mark.parametrize(
    ("change", "kind", "expected"),
    [
        (lambda: seeds(FAR, precision="bf16", steps=60), "samples", "not comparable"),
        (lambda: seeds(FAR, precision="bf16", data=SYNTHETIC), "data", "not comparable"),
        (lambda: seeds(FAR, precision="bf16", model="other"), "model", "not comparable"),
        (lambda: seeds(FAR, precision="bf16", device_name="NVIDIA A100"), "devices", "differ"),
    ],
)
def test_unequal_training_is_told(
    change: Callable[[], list[RunFigures]], kind: str, expected: Outcome
) -> None:
    comparison = compared([*seeds(NEAR), *change()])
    assert kind in kinds(comparison)
    (contrast,) = comparison.contrasts
    assert contrast.outcome == expected
    assert len(set(check(comparison, kind).values)) == 2


def test_a_last_batch_that_was_smaller_is_no_other_training() -> None:
    shorter = [replace(run, samples=run.samples - 2) for run in seeds(FAR, precision="bf16")]
    assert "samples" not in kinds(compared([*seeds(NEAR), *shorter]))


def test_times_of_different_devices_are_not_compared() -> None:
    comparison = compared([*seeds(NEAR), *seeds(FAR, precision="bf16", device_name="NVIDIA A100")])
    assert comparison.contrasts[0].speedup is None


def test_times_of_emulated_float8_are_not_compared_but_losses_are() -> None:
    comparison = compared([*seeds(NEAR), *seeds(FAR, precision="fp8-emulated")])
    (contrast,) = comparison.contrasts
    assert (contrast.speedup, contrast.outcome) == (None, "differ")
    times = [comparison.seconds_to_target(run) for run in comparison.runs]
    assert None not in times[: len(NEAR)]
    assert times[len(NEAR) :] == [None] * len(FAR)
    assert any("emulated" in line for line in how_measured(comparison))
    for figure in (median_of, rate_of):
        assert [figure(run) is None for run in comparison.runs] == [False] * len(NEAR) + [True] * len(FAR)
    assert compared([*seeds(NEAR), *seeds(FAR, precision="fp8")]).contrasts[0].speedup is not None


def test_the_tables_say_emulated_in_place_of_times_and_rates() -> None:
    comparison = compared([*seeds(NEAR), *seeds(FAR, precision="fp8-emulated")])
    for table in (group_table(comparison), run_table(comparison)):
        (target,) = (heading for heading in table.head if heading.startswith("time to "))
        for heading in ("median step", "samples/s", target):
            column = [row[table.head.index(heading)] for row in table.rows]
            half = len(column) // 2
            assert EMULATED not in column[:half]
            assert column[half:] == [EMULATED] * half
        assert "peak allocated" not in table.head, "on a CPU nobody has one"


def test_the_peak_of_emulated_steps_is_not_that_of_the_run() -> None:
    def peak(*precisions: str) -> int | None:
        records: list[Record] = [started(precision=precisions[0])]
        for turn, name in enumerate(precisions):
            size, last = 1000 * (turn + 1), 10 * (turn + 1)
            records += trained([1.0] * 10, precision=name, first=last - 9)
            records.append(
                BlockFinished(
                    time=100.0 + last, step=last, precision=name, steps=10, peak_allocated_bytes=size
                )
            )
        return peak_of(figures(records))

    assert peak("fp8-emulated") is None
    assert peak("bf16", "fp8-emulated") == 1000
    assert peak("bf16", "fp8") == 2000


@pytest.mark.parametrize(("precision", "expected"), [("bf16", 9), ("fp8-emulated", None)])
def test_the_process_of_emulated_steps_has_no_peak_of_its_own(precision: str, expected: int | None) -> None:
    run = figures([started(precision=precision), *trained([1.0] * 10, precision=precision)])
    assert process_peak_of(replace(run, peak_process_bytes=9)) == expected


def letters(comparison: Compared) -> list[str]:
    return [contrast.baseline.letter + contrast.other.letter for contrast in comparison.contrasts]


@pytest.mark.parametrize("fp8", ["fp8", "fp8-emulated"])
def test_fp8_is_also_judged_against_bf16_of_the_same_training(fp8: str) -> None:
    comparison = compared([*seeds(NEAR), *seeds(FAR, precision=fp8), *seeds(NEAR, precision="bf16")])
    assert letters(comparison) == ["AB", "AC", "CB"]
    contrast = comparison.contrasts[-1]
    assert contrast.outcome == "differ"
    assert contrast.difference == pytest.approx(1.0)
    assert contrast.interval is not None
    assert contrast.interval.confidence == pytest.approx(1 - (1 - CONFIDENCE) / 3)
    assert (contrast.speedup is None) == (fp8 == "fp8-emulated")
    assert verdict(contrast, comparison).startswith(f"B {precision_label(fp8)} against C AMP bf16")


def test_where_bf16_comes_first_or_differs_in_more_fp8_has_no_second_verdict() -> None:
    fp8 = seeds(FAR, precision="fp8")
    assert letters(compared([*seeds(NEAR, precision="bf16"), *fp8])) == ["AB"]
    other_rate = seeds(NEAR, precision="bf16", config={"learning_rate": 0.2})
    assert letters(compared([*seeds(NEAR), *other_rate, *fp8])) == ["AB", "AC"]
    recipe = seeds(FAR, precision="fp8", config={"fp8_recipe": "rowwise"})
    assert letters(compared([*seeds(NEAR), *seeds(NEAR, precision="bf16"), *recipe])) == ["AB", "AC", "BC"]


def test_a_speed_up_is_told_with_its_range() -> None:
    slow = [figures(whole_run(loss, seed=seed)) for seed, loss in enumerate(NEAR)]
    fast = [
        figures(
            [
                started(seed=seed, precision="bf16", batch_size=10),
                *trained([loss] * 30, precision="bf16", step_seconds=seconds),
                finished(30),
            ]
        )
        for seed, (loss, seconds) in enumerate(zip(FAR, (0.25, 0.2, 0.3125), strict=True))
    ]
    speedup = compared([*slow, *fast]).contrasts[0].speedup
    assert speedup is not None
    assert (speedup.low, speedup.high) == pytest.approx((1.6, 2.5))
    assert speedup.mean == pytest.approx((40 + 50 + 32) / 3 / 20)


def test_running_runs_have_no_verdict_yet() -> None:
    running = [figures(run_of[:-1], is_live=True) for run_of in [whole_run(2.0, precision="bf16")]]
    comparison = compared([*seeds(NEAR), *running])
    assert comparison.contrasts[0].outcome == "running"
    assert "unfinished" not in kinds(comparison)


def test_a_journal_that_is_still_read_has_no_verdict_yet() -> None:
    partly = replace(figures(whole_run(2.0, precision="bf16")[:-5]), read_share=0.5)
    comparison = compared([*seeds(NEAR), partly])
    assert comparison.contrasts[0].outcome == "reading"
    assert not {"samples", "unfinished"} & {*kinds(comparison)}


def test_a_run_that_died_or_failed_is_told() -> None:
    dead = figures(whole_run(2.0, precision="bf16")[:-1], name="dead")
    failure = RunFailed(time=999.0, step=30, error="out of memory", traceback="")
    failed = figures([*whole_run(2.0, precision="bf16", seed=1)[:-1], failure], name="failed")
    comparison = compared([*seeds(NEAR), dead, failed])
    assert check(comparison, "unfinished").groups == ("dead", "failed")
    # They trained as long as the others: nothing is missing but the last record.
    assert comparison.contrasts[0].outcome == "differ"


def test_runs_at_the_same_time_on_one_gpu_are_told() -> None:
    def at(time: float, uuid: str, **changes: Any) -> RunFigures:
        steps = trained([1.0] * 30, precision=changes.get("precision", "fp32"))
        moved = [replace(step, time=step.time - 100 + time) for step in steps]
        return figures([started(time=time, gpu_uuid=uuid, **changes), *moved], name=f"{time:g}")

    comparison = compared([at(100, "GPU-1"), at(110, "GPU-1", precision="bf16"), at(500, "GPU-1", seed=1)])
    assert check(comparison, "overlap").groups == ("100", "110")
    assert "overlap" not in kinds(compared([at(100, "GPU-1"), at(110, "GPU-2", precision="bf16")]))


def test_steps_of_uneven_length_are_told() -> None:
    steps = [replace(step, step_seconds=5.0) if step.step % 5 == 0 else step for step in trained([1.0] * 100)]
    uneven = figures([started(batch_size=10), *steps, finished(100)], name="uneven")
    even = figures(whole_run(2.0, precision="bf16", steps=100), name="even")
    assert check(compared([uneven, even]), "uneven").groups == ("uneven",)


def test_what_else_limits_a_comparison() -> None:
    moved = figures(
        [started(), *trained([1.0] * 30), record_samples.resumed(30, device_name="B")], name="moved"
    )
    unread = figures(whole_run(), name="unread", passed_over="1 line")
    untimed = figures([started(seed=None), *trained([1.0] * 30, step_seconds=None)], name="untimed")
    again = figures(whole_run(seed=None))
    comparison = compared([moved, unread, untimed, again])
    assert check(comparison, "several devices").groups == ("moved",)
    assert check(comparison, "unread").groups == ("unread",)
    assert check(comparison, "unread").values == ("1 line",)
    assert check(comparison, "untimed").groups == ("untimed",)
    assert "unknown seed" in kinds(compared([again, again, *seeds(NEAR)]))


# ---------------------------------------------------------------------- validations, targets


def test_final_losses_are_those_of_validations_where_every_run_has_one() -> None:
    def with_validation(loss: float, **changes: Any) -> RunFigures:
        *records, end = whole_run(5.0, **changes)
        return figures([*records, validated(30, loss), end])

    ours = [with_validation(loss, seed=seed) for seed, loss in enumerate(NEAR)]
    theirs = [with_validation(loss, seed=seed, precision="bf16") for seed, loss in enumerate(FAR)]
    comparison = compared([*ours, *theirs])
    assert comparison.validation
    assert comparison.contrasts[0].difference == pytest.approx(1.0)
    mixed = compared([*ours, *seeds(FAR, precision="bf16")])
    assert not mixed.validation
    assert mixed.contrasts[0].difference == pytest.approx(2.0 - 5.0)


def test_the_target_is_the_highest_final_loss() -> None:
    rising = figures(whole_run([3.0] * 30 + [1.0] * 30 + [2.0] * 30))
    comparison = compared([rising, figures(whole_run([1.5] * 90))])
    assert comparison.target == pytest.approx(2.0)
    assert [comparison.seconds_to_target(run) for run in comparison.runs] == pytest.approx([20.0, 10.0])


def test_a_run_that_ended_at_nan_has_its_best_loss_for_a_target() -> None:
    broken = figures(whole_run([3.0] * 30 + [math.nan] * 30))
    assert compared([broken, figures(whole_run([1.5] * 60))]).target == pytest.approx(3.0)


def test_a_target_may_be_asked_for() -> None:
    comparison = compared(
        [figures(whole_run([3.0] * 30 + [1.0] * 30)), figures(whole_run([2.0] * 60))], target=1.5
    )
    assert comparison.target_asked
    times = [comparison.seconds_to_target(run) for run in comparison.runs]
    assert times[0] == pytest.approx(22.5)
    assert times[1] is None


def test_without_enough_steps_there_is_no_target() -> None:
    comparison = compared([figures(whole_run()), figures(whole_run(steps=5, precision="bf16"))])
    assert comparison.target is None


def test_the_recorded_runs_show_no_difference() -> None:
    comparison = read_all([*FP32, *BF16], target=None)
    (contrast,) = comparison.contrasts
    assert contrast.outcome == "not shown"
    assert contrast.interval is not None
    assert contrast.interval.low == pytest.approx(-0.1088, abs=1e-3)
    assert contrast.interval.high == pytest.approx(0.1042, abs=1e-3)
    assert {run.samples for run in comparison.runs} == {3840}
