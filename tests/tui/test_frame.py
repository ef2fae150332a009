"""The whole screen: what it shows of each kind of run, and what a frame costs."""

import math
import re
import time
import timeit
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.loss_scale import idle_words
from amptui.diagnosis.speed import less_memory, times_speed, uncounted, why_no_ratio
from amptui.records.run import RunFailed
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.contrast import BLACK, WHITE, Rgb
from amptui.tui.frame import Frame
from amptui.tui.layout import PANELS, RANKED_PANELS, TITLES
from amptui.tui.painter import Painter
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.panels.step_cursor import Cursor
from amptui.tui.renderables.step_window import Window, steps_ahead
from amptui.tui.style import BOLD, Style, styles_on
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step
from tests.tui import numerics_views, rank_views, views
from tests.tui.panels.drawing import style_of

GAIN = times_speed(1.94, "FP32")

SIZES = [(80, 24), (120, 40), (200, 60)]
HINTS = (("p", "precision"), ("space", "pause"), ("tab", "panels"), ("?", "help"), ("q", "quit"))

sizes = pytest.mark.parametrize(("width", "height"), SIZES)


def drawn(view: SessionView, width: int, height: int, screen: ScreenState | None = None) -> Canvas:
    canvas = Canvas(width, height)
    default = ScreenState(
        now=views.NOW, accepts=view.accepts, hints=HINTS, frames_per_second=4.0, frame_cpu_percent=0.6
    )
    Frame().draw(canvas, view, screen or default)
    return canvas


def text_of(canvas: Canvas) -> str:
    return "\n".join(canvas.lines())


def quick_run(seconds: int, *, precision: str = "fp32") -> Iterator[SessionView]:
    """What a screen sees four times a second of a noisy run of 480 steps a second."""
    session, noise = Session("runs/x"), np.random.default_rng(0)
    session.fold([started(precision=precision, total_steps=100_000, steps_per_epoch=10_000)])
    for frame in range(4 * seconds):
        records = [
            step(
                number,
                time=100 + number / 480,
                precision=precision,
                loss=2 * math.exp(-number / 900) + 0.3 + 0.1 * noise.random(),
                step_seconds=(1.9 + 0.4 * noise.random()) / 1000,
            )
            for number in range(120 * frame + 1, 120 * frame + 121)
        ]
        session.fold(records)
        yield session.view()


@pytest.mark.ci
@pytest.mark.parametrize("background", [BLACK, WHITE])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_quick_run_is_shown_in_three_kilobytes_a_second(precision: str, background: Rgb) -> None:
    painter = Painter(styles_on(background, has_256_colours=True))
    frame, shown, written, ahead = Frame(), Canvas(120, 40), 0, 0
    for view in quick_run(8, precision=precision):
        ahead = steps_ahead(ahead, view.step_seconds)
        canvas = Canvas(120, 40)
        frame.draw(canvas, view, ScreenState(hints=HINTS, steps_ahead=ahead))
        written += len(painter.paint(canvas, canvas.changes_since(shown)).encode())
        shown = canvas
    assert written / 8 < 3000


def test_curves_follow_within_two_frames_and_at_once_after_a_key() -> None:
    frame, state = Frame(), ScreenState(hints=HINTS)
    first, second = islice(quick_run(1), 2)

    def curve(view: SessionView, screen: ScreenState = state) -> str:
        canvas = Canvas(120, 40)
        frame.draw(canvas, view, screen)
        return "\n".join(line[:82] for line in canvas.lines()[2:20])

    before = curve(first)
    assert {curve(second), curve(second)} - {before}
    assert curve(second) == curve(second)
    logarithmic = replace(state, log_y=True)
    assert curve(second, logarithmic) == curve(second, logarithmic) != curve(second)


@sizes
def test_before_the_first_step_it_says_what_is_going_on(width: int, height: int) -> None:
    text = text_of(drawn(views.starting(), width, height))
    assert "amptui" in text
    assert "importing torch" in text
    assert "waiting for" in text
    assert "loss scale" not in text
    assert "no sample yet" in text
    assert " 0 " not in text.splitlines()[0]


@sizes
def test_a_download_shows_its_progress(width: int, height: int) -> None:
    assert "train-images 3.10 / 9.50" in drawn(views.downloading(), width, height).lines()[0]


@sizes
def test_without_a_switch_it_says_how_to_compare(width: int, height: int) -> None:
    view = views.fp32_only()
    text = text_of(drawn(view, width, height))
    assert "■ FP32" in text.splitlines()[0]
    assert why_no_ratio(view.comparison, view.accepts) in text
    assert "press p" in text
    assert "the speed of" not in text
    assert "65.5 k samples/s" in text
    assert "3.91 ms/step" in text
    assert "step 1,204/2,350" in text.splitlines()[0]


@sizes
def test_after_a_switch_the_gain_is_shown(width: int, height: int) -> None:
    canvas = drawn(views.compared(), width, height)
    text = text_of(canvas)
    assert "▲ AMP fp16" in text.splitlines()[0]
    assert GAIN in text
    assert less_memory(0.38) in text
    assert "127 k samples/s" in text
    assert "65,536" in text
    assert style_of(canvas, GAIN) == Style.GOOD | BOLD


@pytest.mark.parametrize(("width", "height"), [(120, 40), (200, 60)])
def test_a_wide_screen_has_both_columns_and_what_was_left_out(width: int, height: int) -> None:
    view = views.compared()
    text = text_of(drawn(view, width, height))
    head = next(line for line in text.splitlines() if "■ FP32" in line and "▲ AMP fp16" in line)
    assert head.index("■ FP32") < head.index("▲ AMP fp16")
    (left_out,) = uncounted(view)
    assert left_out in text
    assert "doubles" in text


@sizes
def test_a_pause_is_in_the_header(width: int, height: int) -> None:
    canvas = drawn(views.paused(), width, height)
    assert "paused" in canvas.lines()[0]
    assert style_of(canvas, "paused") == Style.WARNING


@sizes
def test_nan_losses_are_marked_and_named(width: int, height: int) -> None:
    view = views.nan_losses()
    canvas = drawn(view, width, height)
    assert "nan" in text_of(canvas)
    assert style_of(canvas, "nan") & ~BOLD == Style.ERROR
    nan, _, _ = event_text(view.events[0]).partition("; ")
    assert f"✖ {nan}; " in text_of(canvas)
    assert "✖ 1" in canvas.lines()[0]


@sizes
def test_a_failure_is_shown_without_a_key(width: int, height: int) -> None:
    view = views.failed()
    assert isinstance(view.outcome, RunFailed)
    what, _, hint = view.outcome.error.partition("; ")
    canvas = drawn(view, width, height)
    lines = canvas.lines()
    assert "failed" in lines[0]
    assert lines[1].startswith(f" ✖ failed at step 1,204: {what.partition(':')[0]}")
    assert canvas.styles[1, 1] == Style.ERROR | BOLD
    banner = " ".join(line.strip() for line in lines[1:4])
    assert hint in banner


@pytest.mark.parametrize("focus", PANELS)
def test_a_failure_is_shown_above_every_enlarged_panel(focus: str) -> None:
    view, screen = views.failed(), ScreenState(now=views.NOW, focus=focus)
    assert isinstance(view.outcome, RunFailed)
    assert view.outcome.error[:20] in drawn(view, 80, 24, screen).lines()[1]


@sizes
def test_without_nvml_the_host_is_shown(width: int, height: int) -> None:
    text = text_of(drawn(views.no_nvml(), width, height))
    assert views.NO_NVML in text
    assert "host" in text
    assert "12.0 / 31.0 GiB" in text
    assert "GPU0" not in text


@sizes
def test_the_gpu_that_trains_comes_first_with_why_it_is_slow(width: int, height: int) -> None:
    canvas = drawn(views.two_gpus(), width, height)
    text = text_of(canvas)
    assert "▸GPU1" in text
    assert "⚠ throttled: thermal (sw)" in text
    assert style_of(canvas, "⚠ throttled") == Style.WARNING


@pytest.mark.parametrize(("width", "height"), [(120, 40), (200, 60)])
def test_other_gpus_follow_where_there_is_room(width: int, height: int) -> None:
    lines = drawn(views.two_gpus(), width, height).lines()
    first, second = (next(y for y, line in enumerate(lines) if name in line) for name in ("▸GPU1", " GPU0"))
    assert first < second


@sizes
def test_synthetic_data_is_always_shown(width: int, height: int) -> None:
    canvas = drawn(views.synthetic(), width, height)
    assert "⚠ synthetic data" in canvas.lines()[0]
    assert style_of(canvas, "⚠ synthetic data") == Style.WARNING


@sizes
def test_skips_are_counted_and_listed(width: int, height: int) -> None:
    view = views.with_skips()
    text = text_of(drawn(view, width, height))
    assert "skipped 3" in text
    skips = [event for event in view.events if event.kind == "skip"]
    oldest, _, _ = event_text(skips[-1]).partition(" → ")
    assert f"⚠ {oldest} → 65,536" in text
    assert "8,192" in text
    assert "×" in text


@sizes
def test_the_scale_is_kept_while_fp32_runs(width: int, height: int) -> None:
    view = views.back_in_fp32()
    text = text_of(drawn(view, width, height))
    assert idle_words(view)
    assert idle_words(view) in text
    assert "65,536" in text


@sizes
def test_a_validation_shows_its_batches(width: int, height: int) -> None:
    assert "validating 12/40" in drawn(views.validating(), width, height).lines()[0]


def test_a_terminal_that_is_too_small_keeps_the_step() -> None:
    text = " ".join(line.strip() for line in drawn(views.compared(), 20, 5).lines()).strip()
    assert text == "amptui: the terminal is too small (20x5); training continues — step 1,204"


def test_a_terminal_that_is_too_small_says_that_a_run_failed() -> None:
    assert "training failed" in drawn(views.failed(), 39, 5).lines()[1]


@pytest.mark.parametrize("focus", PANELS)
def test_an_enlarged_panel_is_the_only_one(focus: str) -> None:
    lines = drawn(views.compared(), 80, 24, ScreenState(now=views.NOW, focus=focus)).lines()
    assert lines[1].startswith(f" ▲ AMP fp16  {GAIN}")
    assert lines[2].startswith(f"╭ {TITLES[focus]} ─")
    assert lines[22] == "╰" + "─" * 78 + "╯"
    assert "▲ AMP fp16" in lines[0]


def test_blanks_at_the_end_of_a_headline_are_part_of_the_edge() -> None:
    edges = [line for line in drawn(views.starting(), 120, 40).lines() if "throughput" in line]
    assert [line.count("   ") for line in edges] == [0]


def test_boxes_are_closed_at_every_corner() -> None:
    text = text_of(drawn(views.compared(), 120, 40))
    corners = [text.count(corner) for corner in "╭╮╰╯"]
    assert corners == [7, 7, 7, 7]


def test_a_large_screen_shows_the_float16_window_beside_the_rest() -> None:
    text = text_of(drawn(numerics_views.collapsing(), 200, 60))
    assert "float16 gradients  at scale 16" in text
    assert "✖ collapsing" in text
    assert text.count("╭") == 8


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_a_scaler_in_trouble_is_visible_on_the_main_screen(width: int, height: int) -> None:
    canvas = drawn(numerics_views.collapsing(), width, height)
    assert "✖ collapsing" in text_of(canvas)
    assert "float16 window" not in text_of(canvas)
    assert "✔ no overflow" not in text_of(drawn(numerics_views.healthy(), width, height))


@sizes
@pytest.mark.parametrize("world_size", [2, 8, 64, 1024])
def test_a_slow_rank_is_visible_at_every_size(world_size: int, width: int, height: int) -> None:
    canvas = drawn(rank_views.view(world_size, "input"), width, height)
    text = text_of(canvas)
    assert re.search(rf"⚠ rank {rank_views.SLOW_RANK[world_size]} .*slow", text)
    assert text.count("╭") == {80: 1, 120: 7, 200: 9}[width]


def test_values_change_in_place() -> None:
    """From one step to the next, of the frame outside the curves only digits change."""
    view = views.compared()
    later = replace(view, step=1_205, epoch_step=view.epoch_step + 1, smoothed_loss=0.5, best_loss=1e-5)
    changed = [
        y
        for y, (a, b) in enumerate(
            zip(drawn(view, 120, 40).lines(), drawn(later, 120, 40).lines(), strict=True)
        )
        if _words(a) != _words(b)
    ]
    assert changed == []


def _words(line: str) -> list[tuple[int, str]]:
    """Where the letters of a line stand."""
    return [(x, character) for x, character in enumerate(line) if character.isalpha() and character != "e"]


def test_the_same_view_twice_changes_no_cell() -> None:
    frame, view = Frame(), views.with_skips()
    screen = ScreenState(now=views.NOW, hints=HINTS)
    first, second = Canvas(120, 40), Canvas(120, 40)
    frame.draw(first, view, screen)
    frame.draw(second, view, screen)
    assert second.changes_since(first) == []


def test_an_ascii_terminal_gets_only_ascii() -> None:
    for build in (views.ALL | numerics_views.ALL | rank_views.ALL).values():
        for focus in (None, "numerics"):
            canvas = Canvas(120, 40, ascii_only=True)
            Frame().draw(canvas, build(), ScreenState(now=views.NOW, hints=HINTS, focus=focus))
            assert text_of(canvas).isascii()


VIEWS = {name: build() for name, build in (views.ALL | numerics_views.ALL | rank_views.ALL).items()}


@given(
    st.tuples(st.integers(0, 200), st.integers(0, 200)),
    st.sampled_from(sorted(VIEWS)),
    st.none() | st.sampled_from(RANKED_PANELS),
    st.booleans(),
    st.integers(0, 12),
    st.none() | st.builds(Cursor, st.integers(-9, 2000), st.none() | st.just(Window(5, 400))),
    st.lists(st.sampled_from([("panel", "headroom"), ("step", "lr"), ("validation", "loss")]), max_size=2),
)
def test_no_size_or_view_is_an_error(
    size: tuple[int, int],
    name: str,
    focus: str | None,
    log_y: bool,
    zoom: int,
    cursor: Cursor | None,
    pinned: list[tuple[str, str]],
) -> None:
    screen = ScreenState(
        now=views.NOW,
        focus=focus,
        log_y=log_y,
        zoom=zoom,
        hints=HINTS,
        cursor=cursor,
        pinned=tuple(pinned),
    )
    canvas = Canvas(*size)
    Frame().draw(canvas, VIEWS[name], screen)
    assert all(len(line) <= size[0] for line in canvas.lines())


@pytest.mark.parametrize("focus", [None, "numerics"])
def test_a_frame_of_a_long_run_is_cheap(focus: str | None) -> None:
    """The budget is 3.5 ms on a quiet machine; ten times that of CPU time here: others may be slower."""
    view = views.trained((("fp32", 3000), ("fp16", 3000)), skipped_steps=range(3001, 6000, 200))
    view = replace(view, numerics=VIEWS["healthy"].numerics)
    frame, canvas = Frame(), Canvas(120, 40)
    screen = ScreenState(now=views.NOW, hints=HINTS, focus=focus)
    draws = timeit.Timer(lambda: frame.draw(canvas, view, screen), timer=time.thread_time)
    assert min(draws.repeat(number=5, repeat=5)) / 5 < 0.035
