"""A comparison in turns as panel, line, header: how far it is, calmly, and its result."""

from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.speed import result_cards, times_speed, uncounted
from amptui.records.findings import PrecisionMeasured, PrecisionsCompared
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import ab_comparison, header, precision_table, throughput
from amptui.tui.panels.phrases import Word
from amptui.tui.style import BOLD, Style
from tests.telemetry import record_samples
from tests.telemetry.record_samples import faster, measured
from tests.tui import views
from tests.tui.panels.drawing import draw_alone, style_of

BEGUN = (measured("fp32", blocks=0), measured("fp16", blocks=0))


def in_turns(
    rounds: int = 2, rows: tuple[PrecisionMeasured, ...] = (measured("fp32"), faster())
) -> SessionView:
    comparison = record_samples.compared(rounds=rounds, rows=rows, over=False, reason="running")
    return replace(views.compared(), compared=comparison)


def over(**changes: Any) -> SessionView:
    return replace(views.compared(), compared=record_samples.compared(**changes))


def found_in(view: SessionView) -> PrecisionsCompared:
    assert view.compared is not None
    return view.compared


def panel(view: SessionView, width: int = 34, height: int = 22) -> list[str]:
    return [line.strip() for line in draw_alone(precision_table.draw, view, width, height).lines()]


def test_while_it_runs_the_round_the_ratio_and_its_interval_are_shown() -> None:
    lines = panel(in_turns())
    first = lines.index("A/B test: round  3 of at most 24")
    bar, ratio, interval, marks, labels = lines[first + 1 : first + 6]
    assert bar.startswith("━━")
    assert (ratio, interval) == (f"AMP fp16 {times_speed(1.71, 'FP32')}", "(1.68 to 1.74)")
    assert "●" in marks
    assert labels.split() == ["0.50×", "1×", "2.00×"]
    assert lines[1].startswith("median")
    assert not any("warm-up steps" in line for line in lines)


def test_before_the_first_pair_no_ratio_is_claimed() -> None:
    text = " ".join(panel(in_turns(rounds=0, rows=BEGUN)))
    assert "round  1 of at most 24" in text
    assert "running the first two blocks" in text
    assert "×" not in text


@pytest.mark.parametrize("height", range(3, 24))
def test_with_few_lines_round_and_ratio_stay(height: int) -> None:
    text = " ".join(panel(in_turns(), height=height))
    assert "round  3 of at most 24" in text
    assert "1.71×" in text


@pytest.mark.parametrize("width", [30, 34, 60, 118])
def test_from_round_to_round_nothing_moves(width: int) -> None:
    places = []
    for rounds in (2, 12, 23):
        lines = draw_alone(precision_table.draw, in_turns(rounds), width, 22).lines()
        places.append(
            [
                (y, line.index(word))
                for y, line in enumerate(lines)
                for word in ("of at most", "●")
                if word in line
            ]
        )
    assert places[0] == places[1] == places[2]
    assert len(places[0]) == 2


def test_its_result_stays_in_the_panel_in_place_of_the_running_tally() -> None:
    view = over()
    (card,) = result_cards(found_in(view), view.run)
    lines = panel(view)
    assert card in " ".join(lines)
    assert not any(line.startswith("AMP 1.94") for line in lines)
    (left_out,) = uncounted(view)
    assert left_out in lines


def test_a_result_for_another_pair_stands_beside_the_running_tally() -> None:
    text = " ".join(panel(over(rows=(measured("fp32"), replace(faster(), precision="bf16"))), height=30))
    assert f"AMP bf16 {times_speed(1.71, 'FP32')}" in text
    assert f"AMP {times_speed(1.94, 'FP32')}" in text


def test_stopped_before_the_first_pair_it_leaves_no_trace() -> None:
    assert panel(over(rows=BEGUN, reason="stopped")) == panel(views.compared())


def test_a_run_that_ended_in_the_middle_of_it_compares_no_more() -> None:
    assert ab_comparison.running(in_turns()) is not None
    assert ab_comparison.running(replace(in_turns(), state="failed")) is None


@pytest.mark.parametrize(
    ("view", "width", "text"),
    [
        (
            in_turns(),
            80,
            "comparison round 3 of at most 24 AMP fp16 1.71× the speed of FP32",
        ),
        (in_turns(), 40, "comparison round 3 of at most 24"),
        (in_turns(0, BEGUN), 80, "comparison round 1 of at most 24"),
        (
            over(),
            100,
            "comparison AMP fp16 1.71× the speed of FP32 (1.68 to 1.74) 12 blocks of 20 steps",
        ),
        (over(), 60, "comparison AMP fp16 1.71× the speed of FP32"),
    ],
)
def test_in_one_line(view: SessionView, width: int, text: str) -> None:
    line = draw_alone(precision_table.draw_line, view, width).lines()[0]
    assert " ".join(line.split()) == text


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_header_stays_the_same_whichever_block_runs(width: int) -> None:
    blocks = [replace(in_turns(), precision=precision) for precision in ("fp32", "fp16")]
    one, other = (draw_alone(header.draw, view, width) for view in blocks)
    assert "■ FP32 ▲ AMP fp16" in one.lines()[0]
    assert ("comparing" in one.lines()[0]) == (width > 80)
    assert "step " in one.lines()[0]
    assert one.lines() == other.lines()
    assert (one.styles == other.styles).all()
    assert style_of(one, "▲ AMP fp16") == Style.FP16 | BOLD


def test_more_than_two_are_counted() -> None:
    rows = (measured("fp32"), faster(), replace(faster(), precision="bf16"))
    assert "comparing  3 precisions" in draw_alone(header.draw, in_turns(rows=rows), 120).lines()[0]
    lines = panel(in_turns(rows=rows), height=30)
    assert sum("●" in line for line in lines) == 2


def test_rows_beside_eager_ones_are_called_compiled() -> None:
    rows = (measured("fp16 eager"), faster())
    comparison = record_samples.compared(rows=rows, baseline="fp16 eager", over=False, reason="running")
    assert [phrase.words[0] for phrase in ab_comparison.measured_phrases(comparison, 100)] == [
        Word(f"AMP fp16 compiled {times_speed(1.71, 'AMP fp16 eager')}", Style.GOOD | BOLD),
        Word("(1.68 to 1.74)", Style.DIM),
    ]
    assert [word.text for word in ab_comparison.names(comparison) if word.text.strip()] == [
        "▲ AMP fp16 eager",
        "▲ AMP fp16 compiled",
    ]


def test_the_throughput_line_does_not_flicker() -> None:
    lines = [
        draw_alone(throughput.draw_line, replace(in_turns(), precision=precision), 80)
        for precision in ("fp32", "fp16")
    ]
    assert (lines[0].styles == lines[1].styles).all()


@pytest.mark.parametrize(
    ("changes", "style"),
    [
        ({"speedup": 1.94, "speedup_low": 1.9, "speedup_high": 1.98}, Style.GOOD | BOLD),
        ({"speedup": 0.5, "speedup_low": 0.4, "speedup_high": 0.625}, Style.WARNING | BOLD),
        ({"speedup": 1.01, "speedup_low": 0.98, "speedup_high": 1.04}, Style.TEXT),
    ],
)
def test_a_speed_has_the_style_of_its_gain(changes: dict[str, Any], style: int) -> None:
    rows = (record_samples.measured("fp32"), record_samples.faster(**changes))
    word = ab_comparison.measured_phrases(record_samples.compared(rows=rows), 100)[0].words[0]
    assert isinstance(word, Word)
    assert word.style == style
    assert word.text.startswith("AMP fp16 ")


@pytest.mark.parametrize("width", range(17, 60))
def test_an_interval_is_not_torn(width: int) -> None:
    comparison = record_samples.compared(over=False, reason="running")
    canvas = Canvas(width, ab_comparison.progress_height(comparison, width, 3))
    ab_comparison.draw_progress(canvas, comparison)
    assert any("(1.68 to 1.74)" in line for line in canvas.lines())
