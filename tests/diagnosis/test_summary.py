"""What a run leaves behind in words: only what was measured, and how it ended."""

from dataclasses import replace

import pytest

from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import answer_line
from amptui.diagnosis.rank_words import speed_sentence
from amptui.diagnosis.speed import result_cards, times_speed
from amptui.diagnosis.summary import summary_lines
from amptui.diagnosis.tensor_cores import flops_line
from amptui.records.control import Control
from amptui.records.keeping import WeightsSaved
from amptui.records.run import RunFinished, Validation
from amptui.telemetry.flops import flops_now
from amptui.telemetry.scaling import ScalerFacts, judge_scaler
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, NumericsView, SessionView
from tests.telemetry import record_samples
from tests.telemetry.record_samples import window, xray
from tests.tiny import Log, Tiny, prepare, switching, train
from tests.tui import rank_views, views


def text(view: SessionView) -> str:
    return "\n".join(summary_lines(view))


@pytest.mark.parametrize(
    ("view", "ending"),
    [
        (views.finished(), "done after 1,204 steps in 0:41"),
        (
            replace(
                views.finished(), outcome=RunFinished(time=views.NOW, steps=7, seconds=3700, reason="stopped")
            ),
            "stopped after 7 steps in 1:01:40",
        ),
        (views.failed(), "failed at step 1,204: CUDA out of memory: 2.00 GiB were asked for"),
        (views.compared(), "ended at step 1,204"),
        (EMPTY_VIEW, "ended at step 0"),
    ],
)
def test_the_first_line_is_how_it_ended(view: SessionView, ending: str) -> None:
    assert summary_lines(view)[0].startswith(ending)


def test_what_was_achieved_has_a_line_for_each_precision() -> None:
    run = record_samples.run()
    flops = flops_now(record_samples.flops("fp16", flops=10**12, nchw_flops=10**12), 0.0025, run)
    lines = summary_lines(replace(views.finished(), flops=(flops, replace(flops, flops_per_second=None))))
    assert [line for line in lines if "TFLOP/s" in line] == [flops_line(flops)]
    assert sum("convolutions in NCHW" in line for line in lines) == 1


def test_precisions_stand_side_by_side_with_what_amp_gave() -> None:
    lines = summary_lines(views.finished())
    assert "mnist-deep on NVIDIA H200, MNIST" in lines
    assert "validation after epoch 5: loss 0.0351, accuracy 99.1%" in lines
    header = next(i for i, line in enumerate(lines) if line.startswith("precision"))
    fp32, fp16 = lines[header + 1 : header + 3]
    assert fp32.split() == ["FP32", "600", "3.91", "ms", "65.5", "k/s", "1.90", "GiB", "0.0412", "0"]
    assert fp16.split() == ["AMP", "fp16", "604", "2.02", "ms", "127", "k/s", "1.18", "GiB", "0.0312", "0"]
    assert len(fp32) == len(fp16)
    assert lines[header + 3 : header + 6] == [
        "warm-up steps left out: 40",
        "",
        f"AMP fp16: {times_speed(1.94, 'FP32')}; ✔ no trouble in 604 steps",
    ]
    assert lines[-1] == "journal: runs/mnist-deep/journal.jsonl"


def test_it_says_where_the_weights_are() -> None:
    weights = WeightsSaved(time=views.NOW, step=1204, path="/home/me/mine.pt", averaged=True)
    lines = summary_lines(replace(views.finished(), weights=weights))
    assert lines[-2:] == [
        "averaged weights saved to /home/me/mine.pt",
        "journal: runs/mnist-deep/journal.jsonl",
    ]


def test_what_turns_measured_takes_the_place_of_the_running_tally() -> None:
    compared = record_samples.compared()
    view = replace(views.finished(), compared=compared)
    lines = summary_lines(view)
    (card,) = result_cards(compared, view.run)
    assert [line for line in lines if "1.71×" in line][:2] == [card, answer_line(amp_answer(view))]
    assert "1.94×" not in "\n".join(lines)


def test_what_was_not_measured_is_not_a_number_and_nothing_is_concluded_from_it() -> None:
    summary = text(views.no_nvml())
    assert "peak allocated" not in summary
    assert "the speed of" not in summary
    assert "peak memory" not in summary


def test_a_precision_that_hardly_ran_is_told_of_and_nothing_is_said_to_be_sure() -> None:
    lines = summary_lines(views.first_impression())
    assert "n/a" not in "\n".join(lines)
    header = next(i for i, line in enumerate(lines) if line.startswith("precision"))
    assert [line.split("  ")[0] for line in lines[header : header + 3]] == ["precision", "FP32", "AMP fp16"]
    assert "peak allocated" not in lines[header]
    assert lines[header + 1].split()[1:6] == ["9", "~583", "ms", "~54.9/s", "0.0412"]
    assert lines[header + 3 : header + 5] == [
        "~ from warm-up steps: 9 in FP32, 4 in AMP fp16",
        "",
    ]
    assert f"AMP fp16: ~{times_speed(1.84, 'FP32')}, provisional; ? safety not measured yet" in lines


def test_thirteen_steps_with_two_switches_leave_an_impression() -> None:
    control, session = Control(), Session("run")
    log = Log(switching(control, {5: "bf16", 9: "fp32"}))
    train(prepare(Tiny(), steps=13), log, control)
    session.fold(log)
    result = session.view().comparison
    assert [(row.precision, row.steps, row.provisional_steps) for row in result.rows] == [
        ("fp32", 0, 9),
        ("bf16", 0, 4),
    ]
    assert [row.steps_made for row in result.rows] == [9, 4]
    assert result.speedup is None
    assert result.provisional_speedup is not None
    assert "n/a" not in text(session.view())


def test_the_steps_of_a_precision_are_all_that_were_made_in_it() -> None:
    session = Session()
    for number in range(1, 41):
        untimed = number in (1, 30, 31)
        seconds = None if untimed else 0.01
        precision = "fp32" if number <= 35 else "bf16"
        session.fold(
            [record_samples.step(number, precision=precision, step_seconds=seconds, settling=number <= 5)]
        )
    rows = {row.precision: row for row in session.view().comparison.rows}
    assert (rows["fp32"].steps, rows["fp32"].warm_up_steps, rows["fp32"].untimed_steps) == (28, 5, 2)
    assert [rows[name].steps_made for name in ("fp32", "bf16")] == [35, 5]
    table = [line.split() for line in summary_lines(session.view()) if line.startswith(("FP32", "AMP"))]
    assert [line[:3] for line in table[:2]] == [["FP32", "35", "10.0"], ["AMP", "bf16", "5"]]


def test_what_one_precision_alone_has_is_not_measured_in_the_other() -> None:
    view = views.first_impression()
    fp32, amp = view.comparison.rows
    rows = (replace(fp32, peak_allocated_bytes=1024), amp)
    lines = summary_lines(replace(view, comparison=replace(view.comparison, rows=rows)))
    assert [line.count("not measured") for line in lines if line.startswith(("FP32 ", "AMP fp16 "))] == [0, 1]


def test_a_run_without_a_step_has_no_table() -> None:
    lines = summary_lines(replace(EMPTY_VIEW, run_dir="runs/x"))
    assert lines == ["ended at step 0", "", "journal: runs/x/journal.jsonl"]


def test_a_stand_in_for_the_data_is_named_as_one() -> None:
    assert "digits (synthetic data)" in text(views.synthetic())


def test_a_validation_without_accuracy_claims_none() -> None:
    view = views.compared()
    assert view.validated is not None
    epoch = replace(view.validated, validation=Validation(loss=None, accuracy=None, samples=3))
    assert "validation after epoch 5: loss n/a\n" in text(replace(view, validated=epoch))


def test_what_was_found_out_about_float16_is_told_with_the_numbers() -> None:
    comparison = views.finished().comparison
    rows = tuple(replace(row, data_fraction=0.6) for row in comparison.rows)
    view = replace(
        views.finished(),
        numerics=NumericsView(
            scaler=judge_scaler(ScalerFacts(steps=300)), window=window(1200), xray=xray(700)
        ),
        comparison=replace(comparison, rows=rows, held_back_by="input"),
    )
    lines = summary_lines(view)
    for words in (
        "AMP fp16: 1.94× the speed of FP32; ✔ safe: gradients agree, no overflow",
        "  ✔ overflow   none in 300 steps  (step 1,204 in AMP fp16)",
        "  ✔ float16    0% of the gradient norm underflows at loss scale 65,536  (step 1,200 in FP32)",
        "  ✔ agreement  worst 0.999 in features.12  (step 700 in AMP fp16 at loss scale 65,536)",
    ):
        assert words in lines
    assert any(line.startswith("input-bound: FP32 ") for line in lines)


def test_a_scaler_that_never_ran_is_not_judged() -> None:
    assert "loss scaler" not in text(views.no_nvml())


def test_a_distributed_run_names_its_ranks_and_the_slow_one() -> None:
    view = rank_views.view(8, "compute")
    assert view.ranks is not None
    lines = summary_lines(view)
    assert lines[1].endswith("MNIST, 8 ranks, DDP, global batch 2,048")
    assert lines[2] == speed_sentence(view.ranks, view.run)
    assert lines[2].startswith("rank 5 ")
