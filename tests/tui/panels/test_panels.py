"""What holds for panels whatever they show: nothing moves, and nothing is left out in silence."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from amptui.base import units
from amptui.records.keeping import KeepingChanged
from amptui.records.run import Note, PauseChanged, Record, RunFailed, RunFinished
from amptui.telemetry.view import PrecisionSwitch, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.panels import event_list, header, numerics_panel
from amptui.tui.panels.answer_panel import LABEL_WIDTH
from amptui.tui.panels.curve import Extent, cursor_line, press
from amptui.tui.panels.phrases import Phrase, Word, whole_words
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.step_window import visible_window
from tests.builders import make_resumed, make_started, make_switch, view_of
from tests.diagnosis.test_labels import asked_for
from tests.golden import Goldens
from tests.telemetry.record_samples import skip_row
from tests.tui import views
from tests.tui.numerics_views import collapsing, healthy
from tests.tui.renderables.tracks import series_of
from tests.tui.special_views import seven_optimizers


def line_of(draw: Callable[[Canvas, SessionView, ScreenState], None], view: SessionView, width: int) -> str:
    canvas = Canvas(width, 1)
    draw(canvas, view, ScreenState(now=views.NOW))
    return canvas.lines()[0]


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_while_a_run_goes_on_nothing_moves_in_the_header(width: int) -> None:
    view = views.compared()
    lines = [
        line_of(header.draw, one, width)
        for one in (
            replace(view, step=9, epoch=1),
            view,
            replace(view, eta_seconds=None),
            replace(view, eta_seconds=4000.0, precision="fp32"),
            replace(view, errors=12, warnings=345),
            replace(view, state="paused"),
            replace(view, state="finished", elapsed_seconds=4000.0),
            replace(view, pending=(asked_for("precision", precision="fp32"),)),
            replace(view, phase=views.validating().phase),
        )
    ]
    for word in ("mnist-deep", "epoch", "step", "/2,350"):
        assert len({line.find(word) for line in lines}) == 1, lines
    assert len({line.find("FP32") for line in lines if "FP32" in line}) == 1, lines
    states = [re.search("running|paused|finished|switching", line) for line in lines]
    assert len({state and state.start() for state in states}) == 1, lines
    assert len({len(line.rstrip()) for line in lines if re.search(r" left| in ", line)}) <= 1, lines


@pytest.mark.parametrize("width", [*range(51, 120, 7), 160])
def test_trouble_stands_first_and_says_what_to_do(width: int) -> None:
    canvas = Canvas(width, 3)
    event_list.draw(canvas, collapsing(), ScreenState(now=views.NOW))
    assert "✖ step 712  overflow" in canvas.lines()[0]
    assert "FP32 → AMP fp16" in "".join(canvas.lines())
    assert "use bf16 or FP32" in " ".join(" ".join(canvas.lines()).split())


SKIPPED = "overflow: step skipped, scale 4 → 2, non-finite gradient in features.13"
LEFT = "overflow: step skipped, scale 4 → 2…"
UNSAVED = KeepingChanged(time=views.NOW, what="journal", trouble="no space left on device")
PAUSE = PauseChanged(time=views.NOW, step=9, paused=True, reason="the loss is NaN")
OLD = Note(time=views.NOW - 3600, severity="warning", text="no X-ray")
DONE = RunFinished(time=views.NOW, steps=9, seconds=1.0, reason="done")
FAILED = RunFailed(time=views.NOW, step=9, error="failed", traceback="")
SKIPS = skip_row(1, 6, 65536.0, time=views.NOW)


@pytest.mark.parametrize(
    ("records", "stands"),
    [
        ([UNSAVED], True),
        ([UNSAVED, replace(UNSAVED, trouble="")], False),
        ([PAUSE], True),
        ([PAUSE, replace(PAUSE, paused=False, reason="")], False),
        ([replace(OLD, time=views.NOW - 1)], True),
        ([OLD], False),
        ([OLD, DONE], True),
        ([FAILED], True),
        ([FAILED, make_resumed(9)], False),
        (SKIPS, True),
        ([*SKIPS, make_switch(7, "fp16", "bf16")], False),
    ],
)
def test_trouble_stands_before_what_is_newer_unless_it_is_over(
    records: Sequence[Record], stands: bool
) -> None:
    newest = Note(time=views.NOW, severity="info", text="newest")
    canvas = Canvas(60, 6)
    event_list.draw(canvas, view_of(make_started(time=1.0), *records, newest), ScreenState(now=views.NOW))
    assert ("newest" not in canvas.lines()[0]) is stands


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [
        ("step skipped, scale 4 → 2; normal", 33, "step skipped, scale 4 → 2; normal"),
        ("step skipped, scale 4 → 2; normal", 32, "step skipped…; normal"),
        (f"{SKIPPED}; normal", 60, "overflow: step skipped, scale 4 → 2…; normal"),
        (f"{SKIPPED}; normal", 34, "overflow: step skipped…; normal"),
        (f"{SKIPPED}; it keeps falling; use bf16", 66, f"{LEFT}; it keeps falling; use bf16"),
        (f"{SKIPPED}; it keeps falling; use bf16", 60, f"{LEFT}; use bf16"),
        (f"{SKIPPED}; it keeps falling; use bf16", 40, "overflow: step skipped…; use bf16"),
    ],
)
def test_of_an_event_that_is_too_long_what_to_do_stays(text: str, width: int, line: str) -> None:
    canvas = Canvas(width + 2, 1)
    event_list.draw(canvas, view_of(Note(time=1.0, severity="info", text=text)), ScreenState())
    assert canvas.lines()[0][2:].strip() == line


def test_how_many_optimizers_have_no_room_is_always_told() -> None:
    for width in range(34, 160):
        line = line_of(header.draw_optimizers, seven_optimizers(), width)
        assert len(re.findall("critic", line)) == 6 or re.search(r" \+\d", line), width


SKIP, WIDE = "loss scale 65,536 after a skip", "漢字 漢字 漢字"


@pytest.mark.parametrize(
    ("text", "width", "words"),
    [
        (SKIP, 30, SKIP),
        (SKIP, 29, "loss scale 65,536 after a…"),
        (SKIP, 24, "loss scale 65,536 after…"),
        (SKIP, 23, "loss scale…"),  # never "65,536…", as if more digits followed
        (SKIP, 10, "loss…"),
        (SKIP, 3, SKIP),  # a canvas cuts the only word
        (WIDE, 11, "漢字 漢字…"),
        (WIDE, 9, "漢字…"),
    ],
)
def test_whole_words_are_kept_and_no_number_looks_cut(text: str, width: int, words: str) -> None:
    assert whole_words(text, width) == words


# ------------------------------------------------------------------ the cursor of an enlarged chart
def pressed(extent: Extent, keys: Sequence[str]) -> int | None:
    cursor = None
    for key in keys:
        cursor = press(cursor, key, extent)
    return cursor


def words(line: Sequence[Phrase]) -> list[str]:
    return ["".join(word.text for word in phrase.words if isinstance(word, Word)) for phrase in line]


def validated(*steps: int) -> Extent:
    """A run of 1,000 steps with a value at some of them."""
    run = visible_window(series_of([1.0] * 1000), 0)
    return Extent(series_of([0.5 if step in steps else None for step in range(1, 1001)]), run, 70)


def test_keys_lead_the_cursor_where_was_approved(goldens: Goldens) -> None:
    back = "left_square_bracket"
    scripts = (
        *("left", "left left", f"right {back}", f"right {back} right_square_bracket"),
        *("home", "end home", "end", "end left", "left escape"),
    )
    long = series_of([1.0] * 10_000)
    extent_of_long = Extent(long, visible_window(long, 1), 70)
    few = ("left", "left left", "left left left", "left left left left", "home right")
    lines = [
        f"{keys}: {pressed(extent, keys.split())}"
        for extent, some in ((extent_of_long, scripts), (validated(100, 500, 900), few))
        for keys in some
    ]
    loss = series_of([float(step) for step in range(1, 33)], buckets=8, recent=2)
    scale = series_of([None] * 16 + [4.0] * 2 + [8.0] * 14, buckets=8, recent=2)
    switches = (PrecisionSwitch(1, "fp32"), PrecisionSwitch(17, "fp16"))
    broken = series_of([math.inf, None, 1.0, math.nan, None, None, 1.0], buckets=4, recent=1)
    for view, series, steps in (
        (SessionView(loss=loss, loss_scale=scale, switches=switches), loss, (1, 18, 32)),
        (SessionView(loss=broken), broken, (1, 3, 5)),
    ):
        lines += [" | ".join(words(cursor_line(view, series, step, units.loss))) for step in steps]
    goldens.check("scripts/cursor", "\n".join(lines))


def test_no_finding_loses_its_words_where_room_is_scarce() -> None:
    view, screen = healthy(), ScreenState(now=views.NOW, focus="numerics")
    for width in range(44, 130):
        canvas = Canvas(width, 22)
        numerics_panel.draw(canvas, view, screen)
        rows = [
            line.rstrip()
            for line in canvas.lines()
            if re.match(r"[ a-z] (overflow|outputs|underflow) ", line)
        ]
        assert all(len(row) > LABEL_WIDTH for row in rows), rows
