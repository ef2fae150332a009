from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.speed import (
    explanations,
    less_memory,
    provisional_lines,
    times_speed,
    uncounted,
    unfair_losses,
    why_no_ratio,
)
from amptui.records.answers import REQUEST_KINDS
from amptui.telemetry.view import Comparison, PrecisionStats, SessionView
from amptui.tui.panels import precision_table
from amptui.tui.panels.phrases import Word
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style
from tests.telemetry import record_samples
from tests.tui import views
from tests.tui.panels.drawing import SCREEN, draw_alone, style_of


def table(view: SessionView, width: int, height: int, screen: ScreenState = SCREEN) -> list[str]:
    canvas = draw_alone(precision_table.draw, view, width, height, screen=screen)
    return [line.rstrip() for line in canvas.lines()]


def verdict(**changes: Any) -> SessionView:
    view = views.compared()
    return replace(view, comparison=replace(view.comparison, **changes))


def stats(precision: str) -> PrecisionStats:
    return replace(views.compared().comparison.rows[0], precision=precision)


@pytest.mark.parametrize(
    ("speedup", "word"),
    [
        (1.94, Word("AMP 1.94× the speed of FP32", Style.GOOD | BOLD)),
        (0.5, Word("AMP 0.50× the speed of FP32", Style.WARNING | BOLD)),
        (1.03, Word("AMP 1.03× the speed of FP32")),
        (0.97, Word("AMP 0.97× the speed of FP32")),
        (1.004, Word("AMP 1.00× the speed of FP32")),
        (0.998, Word("AMP 1.00× the speed of FP32")),
        (None, None),
    ],
)
def test_the_speed_is_said_plainly(speedup: float | None, word: Word | None) -> None:
    assert precision_table.speed_words(Comparison(baseline="fp32", low="fp16", speedup=speedup)) == word


@pytest.mark.parametrize(
    ("saving", "word"),
    [
        (0.38, Word("38% less peak memory", Style.GOOD)),
        (-0.12, Word("12% more peak memory", Style.WARNING)),
        (0.001, Word("the same peak memory")),
        (None, None),
    ],
)
def test_the_memory_is_said_plainly(saving: float | None, word: Word | None) -> None:
    assert precision_table.memory_words(Comparison(memory_saving=saving)) == word


def test_the_baseline_stands_beside_amp_and_others_follow() -> None:
    rows = tuple(stats(name) for name in ("bf16", "fp16", "fp32", "tf32"))
    view = replace(views.compared(), comparison=Comparison(rows=rows, baseline="fp32", low="fp16"))
    head = table(view, 80, 12)[0]
    assert head.split() == ["■", "FP32", "▲", "AMP", "fp16", "●", "AMP", "bf16", "◆", "TF32"]


def test_emulated_steps_have_a_loss_and_a_count_but_no_cost() -> None:
    rows = (stats("bf16"), stats("fp8-emulated"))
    tally = Comparison(rows=rows, baseline="bf16", low="fp8-emulated", missing="emulated")
    view = replace(views.compared(), comparison=tally, compared=None)
    for width, head in ((30, "▽ emulated"), (80, "▽ FP8 emulated")):
        lines = table(view, width, 20)
        assert lines[0].endswith(head)
        cells = {line[:8].strip(): line.split()[-1] for line in lines[1:7]}
        assert (cells["median"], cells["samples"], cells["peak"]) == ("emulated", "–", "–")
        assert cells["steps"] == lines[6].split()[-2]
        assert "–" not in cells["last los"]
    assert not any("▰" in line and "▽" in line for line in table(view, 80, 40))


def test_figures_stand_under_their_precision() -> None:
    lines = table(views.compared(), 30, 11)
    assert [line.split() for line in lines[:7]] == [
        ["■", "FP32", "▲", "AMP", "fp16"],
        ["median", "3.91", "ms", "2.02", "ms"],
        ["samples", "65.5", "k/s", "127", "k/s"],
        ["peak", "1.90", "GiB", "1.18", "GiB"],
        ["last", "loss", "0.0412", "0.0312"],
        ["skipped", "0", "0"],
        ["steps", "580", "584"],
    ]
    ends = {len(line.rstrip()) for line in lines[:7]}
    assert len(ends) == 1


def test_energy_has_a_line_where_a_gpu_counts_it() -> None:
    view = views.compared()
    fp32, amp = view.comparison.rows
    rows = (fp32, replace(amp, joules_per_1000_samples=1234.0))
    counted = replace(view, comparison=replace(view.comparison, rows=rows))
    lines = [line.split() for line in table(counted, 30, 12)]
    assert lines[4] == ["energy", "n/a", "1.23", "kJ/1k"]
    assert [line for line in lines if line[:1] != ["energy"]] == [
        line.split() for line in table(view, 30, 11)
    ]


def test_what_was_not_measured_is_not_a_number() -> None:
    view = views.no_nvml()
    assert ["peak", "n/a"] in [line.split() for line in table(view, 30, 10)]


def test_with_few_lines_the_verdict_stays() -> None:
    view = views.compared()
    lines = table(view, 30, 6)
    assert lines[1].startswith("median")
    assert lines[2].startswith("peak")
    assert lines[3:] == [f"AMP {times_speed(1.94, 'FP32')}", less_memory(0.38), *uncounted(view)]
    assert len(lines) == 6


def test_steps_that_were_not_measured_are_told() -> None:
    view = views.compared()
    text = "\n".join(table(replace(view, unmeasured_steps=12), 30, 14))
    assert "steps not measured: 12" in text
    assert "not measured" not in "\n".join(table(view, 30, 14))


def test_why_it_cannot_be_said_is_wrapped() -> None:
    view = verdict(speedup=None, memory_saving=None, missing="more steps")
    few = tuple(replace(row, steps=12) for row in view.comparison.rows)
    view = replace(view, comparison=replace(view.comparison, rows=few))
    canvas = draw_alone(precision_table.draw, view, 30, 12)
    text = " ".join(line.strip() for line in canvas.lines())
    assert why_no_ratio(view.comparison) in text
    assert "12 of 20" in text
    assert style_of(canvas, "not enough") == Style.DIM


def test_why_amp_gave_little_stands_under_the_verdict() -> None:
    lines = table(views.explained(), 34, 22)
    first = lines.index("1% less peak memory") + 1
    last = next(i for i, line in enumerate(lines) if line.startswith("loss after"))
    assert " ".join(lines[first:last]) == " ".join(explanations(views.explained()))


def test_the_losses_after_as_many_steps_stand_last() -> None:
    lines = table(views.compared(), 34, 16)
    first = next(i for i, line in enumerate(lines) if line.startswith("loss after"))
    text = " ".join(lines[first : lines.index("warm-up steps left out: 40")])
    assert text == unfair_losses(views.compared())[0]


@pytest.mark.parametrize("lines", range(10, 22))
def test_the_losses_have_the_longest_form_with_room_and_are_never_cut(lines: int) -> None:
    rows = table(views.compared(), 34, lines)
    first = next((i for i, line in enumerate(rows) if line.startswith("loss after")), None)
    if first is not None:
        text = " ".join(rows[first : rows.index("warm-up steps left out: 40")])
        assert text in unfair_losses(views.compared())
    assert (first is None) == (lines < 13)


HINT = "press c for an interval"
WITH_KEYS = replace(SCREEN, accepts=REQUEST_KINDS)


@pytest.mark.parametrize("size", [(30, 12), (34, 16), (50, 24)])
def test_where_there_is_room_the_ratio_says_how_to_get_an_interval(size: tuple[int, int]) -> None:
    canvas = draw_alone(precision_table.draw, views.compared(), *size, screen=WITH_KEYS)
    lines = [line.strip() for line in canvas.lines()]
    assert lines[lines.index(less_memory(0.38)) + 1] == HINT
    assert style_of(canvas, HINT) == Style.DIM
    assert any(line.startswith("steps") for line in lines)


@pytest.mark.parametrize(
    ("view", "screen", "size"),
    [
        (views.compared(), WITH_KEYS, (34, 10)),  # no room
        (views.compared(), SCREEN, (34, 16)),  # a replay takes no request
        (views.first_impression(), WITH_KEYS, (34, 16)),
        (replace(views.compared(), compared=record_samples.compared()), WITH_KEYS, (34, 24)),
    ],
)
def test_nobody_is_told_to_press_what_brings_no_interval(
    view: SessionView, screen: ScreenState, size: tuple[int, int]
) -> None:
    lines = draw_alone(precision_table.draw, view, *size, screen=screen).lines()
    assert not any("press c" in line for line in lines)


@pytest.mark.parametrize(("screen", "names_key"), [(WITH_KEYS, True), (SCREEN, False)])
def test_a_guess_at_the_memory_says_which_key_tells_more(screen: ScreenState, names_key: bool) -> None:
    view = verdict(memory_saving=0.01)
    lines = draw_alone(precision_table.draw, view, 60, 24, screen=screen).lines()
    assert any("press x" in line for line in lines) == names_key
    assert any("probably mostly weights" in line for line in lines)


def test_the_folded_panel_says_it_too_where_its_line_is_long_enough() -> None:
    wide, narrow = (
        draw_alone(precision_table.draw_line, views.compared(), width, screen=WITH_KEYS).lines()[0]
        for width in (120, 60)
    )
    assert HINT in wide
    assert HINT not in narrow
    assert "3.91 ms → 2.02 ms" in narrow


@pytest.mark.parametrize(("height", "lines_of_it"), [(10, 0), (11, 0), (12, 1), (13, 2), (17, 6)])
def test_explanations_leave_the_table_whole(height: int, lines_of_it: int) -> None:
    with_them = table(views.explained(), 34, height)
    why = " ".join(explanations(views.explained()))
    last = next(y for y, line in enumerate(with_them) if line.startswith("1% less peak memory")) + 1
    said = [line for line in with_them[last:] if line.strip(" …") and line.strip(" …") in why]
    assert len(said) == lines_of_it
    assert any("warm-up steps" in line for line in with_them)
    assert any(line.startswith("steps") for line in with_them)


def test_bars_are_as_long_as_their_figures() -> None:
    canvas = draw_alone(precision_table.draw, views.compared(), 42, 26)
    bars = [line for line in canvas.lines() if "▰" in line]
    assert [line.count("▰") for line in bars] == [40, round(40 * 2.02 / 3.91), 40, round(40 * 1.18 / 1.9)]
    assert style_of(canvas, "▰") == Style.FP32


def test_bars_need_something_to_compare() -> None:
    assert "▰" not in "".join(table(views.fp32_only(), 42, 20))


@pytest.mark.parametrize("size", [(30, 12), (34, 16)])
def test_a_first_impression_is_marked_and_dim(size: tuple[int, int]) -> None:
    canvas = draw_alone(precision_table.draw, views.first_impression(), *size)
    lines = [line.split() for line in canvas.lines()]
    assert ["median", "~583", "ms", "~316", "ms"] in lines
    assert ["AMP", "~1.84×", "the", "speed", "of", "FP32"] in lines
    (note,) = provisional_lines(views.first_impression().comparison)
    assert " ".join(word for line in lines for word in line).endswith(note)
    assert {style_of(canvas, text) for text in ("~583 ms", "~316 ms", "AMP ~1.84", "~ from")} == {Style.DIM}
    assert not any("left out" in line for line in canvas.lines())


def test_steps_say_how_many_are_missing() -> None:
    view = views.first_impression()
    lines = [line.split() for line in table(view, 34, 16)]
    assert ["steps", "0/20", "0/20"] in lines
    assert why_no_ratio(view.comparison) in " ".join(word for line in lines for word in line)
    assert "0 of 20" in why_no_ratio(view.comparison)


def test_a_single_warm_up_step_is_no_figure_of_the_table() -> None:
    view = views.first_impression()
    fp32, _ = view.comparison.rows
    alone = replace(view, comparison=Comparison(rows=(replace(fp32, provisional_steps=1),), baseline="fp32"))
    lines = [line.split() for line in table(alone, 30, 12)]
    assert ["median", "n/a"] in lines


def test_a_first_impression_has_no_bars() -> None:
    assert "▰" not in "".join(table(views.first_impression(), 42, 26))


def test_before_any_counted_step_nothing_is_claimed() -> None:
    text = "".join(table(views.starting(), 30, 9))
    assert text.strip() == "no steps counted yet"


def test_a_narrow_panel_shows_as_many_columns_as_fit() -> None:
    rows = tuple(stats(name) for name in ("fp32", "ieee", "tf32", "fp16", "bf16"))
    view = replace(views.compared(), comparison=Comparison(rows=rows, baseline="fp32", low="fp16"))
    narrow = table(view, 30, 12)[0]
    wide = table(view, 80, 12)[0]
    assert narrow.split() == ["■", "FP32", "▲", "AMP", "fp16"]
    assert all(sign in wide for sign in "■▲□◆●")
