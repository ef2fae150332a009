"""What a run leaves behind in words: how it ended, and only what was measured."""

from dataclasses import replace

from amptui.diagnosis.summary import summary_lines
from amptui.records.keeping import WeightsSaved
from amptui.records.run import RunFinished, Validation
from amptui.telemetry.flops import flops_now
from amptui.telemetry.scaling import ScalerFacts, judge_scaler
from amptui.telemetry.view import EMPTY_VIEW, NumericsView, SessionView
from tests.builders import fold, make_started, make_step
from tests.diagnosis.wording import table
from tests.golden import Goldens
from tests.telemetry.record_samples import compared, flops, window, xray
from tests.tui import rank_views, views


def with_flops() -> SessionView:
    counted = flops("fp16", flops=10**12, nchw_flops=10**12)
    measured = flops_now(counted, 0.0025, make_started())
    return replace(views.finished(), flops=(measured, replace(measured, flops_per_second=None)))


def with_numerics() -> SessionView:
    view = views.finished()
    rows = tuple(replace(row, data_fraction=0.6) for row in view.comparison.rows)
    return replace(
        view,
        numerics=NumericsView(
            scaler=judge_scaler(ScalerFacts(steps=300)), window=window(1200), xray=xray(700)
        ),
        comparison=replace(view.comparison, rows=rows, held_back_by="input"),
    )


def half_measured() -> SessionView:
    view = views.first_impression()
    fp32, amp = view.comparison.rows
    rows = (replace(fp32, peak_allocated_bytes=1024), amp)
    return replace(view, comparison=replace(view.comparison, rows=rows))


def without_accuracy() -> SessionView:
    view = views.compared()
    assert view.validated is not None
    validation = Validation(loss=None, accuracy=None, samples=3)
    return replace(view, validated=replace(view.validated, validation=validation))


def test_summaries_are_as_approved(goldens: Goldens) -> None:
    finished = views.finished()
    stopped = RunFinished(time=views.NOW, steps=7, seconds=3700, reason="stopped")
    weights = WeightsSaved(time=views.NOW, step=1204, path="/home/me/mine.pt", averaged=True)
    runs = {
        "stopped": replace(finished, outcome=stopped),
        "no step": replace(EMPTY_VIEW, run_dir="runs/x"),
        "weights saved": replace(finished, weights=weights),
        "compared in turns": replace(finished, compared=compared()),
        "FLOPs counted": with_flops(),
        "float16 measured": with_numerics(),
        "memory measured in one precision": half_measured(),
        "validation without accuracy": without_accuracy(),
        "stand-in data": views.synthetic(),
        "8 ranks, one slow": rank_views.view(8, "compute"),
    }
    goldens.check("words/summaries", table({name: summary_lines(view) for name, view in runs.items()}))


def test_the_steps_of_a_precision_are_all_that_were_made_in_it() -> None:
    session = fold(
        make_step(
            number,
            precision="fp32" if number <= 35 else "bf16",
            step_seconds=None if number in (1, 30, 31) else 0.01,
            settling=number <= 5,
        )
        for number in range(1, 41)
    )
    rows = {row.precision: row for row in session.view().comparison.rows}
    assert (rows["fp32"].steps, rows["fp32"].warm_up_steps, rows["fp32"].untimed_steps) == (28, 5, 2)
    assert [rows[name].steps_made for name in ("fp32", "bf16")] == [35, 5]
    lines = [line.split() for line in summary_lines(session.view()) if line.startswith(("FP32", "AMP"))]
    assert [line[:3] for line in lines[:2]] == [["FP32", "35", "10.0"], ["AMP", "bf16", "5"]]
