import re
import time
from dataclasses import replace
from typing import Any

import pytest

from amptui.records.run import Severity
from amptui.telemetry.events import Event, EventKind
from amptui.tui.canvas import Canvas
from amptui.tui.keys import FOOTER_HINTS
from amptui.tui.panels import event_list, footer
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import Style
from tests.tui import view_parts, views
from tests.tui.panels.drawing import draw_alone, style_of

HINTS = (("p", "AMP"), ("space", "pause"), ("m", "precision"), ("?", "help"), ("q", "quit"))


def test_events_are_newest_first_with_local_time_and_step() -> None:
    lines = draw_alone(event_list.draw, views.with_skips(), 100, 6).lines()
    times = [line[:8] for line in lines]
    assert times == sorted(times, reverse=True)
    newest = views.with_skips().events[0]
    assert times[0] == time.strftime("%H:%M:%S", time.localtime(newest.time))
    assert re.match(r"\d\d:\d\d:\d\d  step      812  ⚠ overflow", lines[0])


def test_texts_start_in_one_column_and_are_cut_with_a_sign() -> None:
    lines = draw_alone(event_list.draw, views.with_skips(), 60, 6).lines()
    assert lines[0].rstrip().endswith("…")
    signs = [match.start() for line in lines if (match := re.search("[⚠▲·] ", line))]
    assert len(signs) == len(lines)
    assert len(set(signs)) == 1


@pytest.mark.parametrize(
    ("kind", "severity", "sign", "style"),
    [
        ("skip", "warning", "⚠", Style.WARNING),
        ("failed", "error", "✖", Style.ERROR),
        ("note", "info", "·", Style.DIM),
        ("growth", "info", "↑", Style.FP16),
        ("finished", "info", "✔", Style.GOOD),
        ("print", "info", "·", Style.DIM),
    ],
)
def test_each_kind_has_its_sign(kind: EventKind, severity: Severity, sign: str, style: Style) -> None:
    event = Event(views.NOW, 7, kind, severity, view_parts.note("text"))
    canvas = draw_alone(event_list.draw, replace(views.compared(), events=(event,)), 60, 1)
    assert style_of(canvas, sign) == style


def test_a_switch_has_the_sign_of_the_precision_it_led_to() -> None:
    canvas = draw_alone(event_list.draw, views.compared(), 60, 3)
    assert style_of(canvas, "▲") == Style.FP16
    assert style_of(canvas, "■") == Style.FP32


def test_a_switch_has_its_sign_whichever_stretches_are_shown() -> None:
    """Those of the oldest are forgotten, and those of other optimizers are not in the view."""
    one, other = (
        draw_alone(event_list.draw, replace(views.compared(), switches=switches), 60, 3)
        for switches in ((), views.compared().switches)
    )
    assert one.lines() == other.lines()


def test_prints_are_dim() -> None:
    assert style_of(draw_alone(event_list.draw, views.compared(), 100, 6), "building") == Style.DIM


def test_before_any_event_it_says_so() -> None:
    text = "".join(draw_alone(event_list.draw, views.starting(), 60, 3).lines())
    assert text.strip() == event_list.NOTHING_YET


def test_the_events_headline_counts_trouble() -> None:
    words = [phrase.words[0] for phrase in event_list.headline(views.nan_losses(), ScreenState())]
    assert words == [("1 error", Style.ERROR), ("3 warnings", Style.WARNING)]


def footer_of(width: int, **state: Any) -> Canvas:
    """The footer of a screen with these notices and, unless others are named, `HINTS`."""
    screen = ScreenState(**{"hints": HINTS, **state})
    return draw_alone(footer.draw, views.compared(), width, screen=screen)


def test_the_footer_has_keys_and_cost() -> None:
    canvas = footer_of(90, frames_per_second=4.0, frame_cpu_percent=0.62)
    text = canvas.lines()[0]
    assert text.startswith(" p AMP  space pause  m precision  ? help  q quit ")
    assert text.endswith(" 4.0 fps  0.6% cpu ")
    assert style_of(canvas, "p AMP") == Style.KEY
    assert style_of(canvas, "precision") == Style.DIM


@pytest.mark.parametrize(("width", "text"), [(22, "? help  q quit"), (12, "q quit")])
def test_help_and_quit_outlast_every_other_hint_and_quit_outlasts_help(width: int, text: str) -> None:
    assert footer_of(width).lines()[0].strip() == text


@pytest.mark.parametrize(
    ("width", "keys"),
    [(80, "p space d s ? q"), (120, "p space d s m c x f ? q"), (160, "p space d s m c x f l g e t ? q")],
)
def test_each_width_has_the_keys_that_matter_most(width: int, keys: str) -> None:
    text = footer_of(width, hints=FOOTER_HINTS, frames_per_second=4.0, frame_cpu_percent=0.6).lines()[0]
    assert [key for key, words in FOOTER_HINTS if f" {key} {words}" in text] == keys.split()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_lost_run_has_the_footer_in_the_ink_of_an_error(width: int) -> None:
    lost = "the training process exited unexpectedly: see `amptui runs`"
    canvas = footer_of(width, lost=lost, waiting="X-ray …", frames_per_second=4.0, frame_cpu_percent=1.0)
    text = canvas.lines()[0]
    assert style_of(canvas, lost[:24]) == Style.ERROR
    assert "X-ray" not in text
    assert (lost in text, "…" in text) == ((True, False) if width >= 80 else (False, True))
    assert "q quit" in text


def test_a_cost_that_was_not_measured_is_not_shown() -> None:
    assert "fps" not in footer_of(90).lines()[0]


@pytest.mark.parametrize(
    ("severity", "style"), [("info", Style.STRONG), ("warning", Style.WARNING), ("error", Style.ERROR)]
)
def test_a_message_has_the_ink_of_its_severity(severity: Severity, style: Style) -> None:
    assert style_of(notice_of("nothing overflowed", severity=severity), "nothing") == style


def test_what_is_waited_for_stands_before_the_hints_that_still_fit() -> None:
    text = footer_of(60, waiting="checkpoint after this step …").lines()[0]
    assert text.rstrip() == " checkpoint after this step …  p AMP  ? help  q quit"


@pytest.mark.parametrize("width", [60, 80])
def test_what_is_asked_for_is_cut_to_leave_the_first_and_the_last_keys(width: int) -> None:
    waiting = "once training runs: switch, comparison, X-ray, trace, histogram, checkpoint"
    text = footer_of(width, waiting=waiting, frames_per_second=4.0, frame_cpu_percent=0.6).lines()[0]
    assert text.startswith(" once training runs: switch")
    assert text.rstrip().endswith("…  p AMP  ? help  q quit")


def notice_of(message: str, *, framed: bool = True, severity: Severity = "warning") -> Canvas:
    """The lines above the footer with that message over what stood there."""
    screen = ScreenState(message=message, severity=severity)
    canvas = Canvas(40, footer.NOTICE_LINES)
    for y in range(canvas.height):
        canvas.text(0, y, "│" + "x" * 38 + "│" if framed else "x" * 40)
    footer.draw_notice(canvas, screen, framed=framed)
    return canvas


def test_a_message_stands_in_the_edge_of_the_panel_above() -> None:
    assert notice_of("checkpoint saved").lines() == [
        "│" + "x" * 38 + "│",
        "│ checkpoint saved " + "x" * 20 + "│",
    ]


def test_a_long_message_takes_a_second_line_and_is_cut_after_that() -> None:
    first, second = notice_of("no X-ray: " + "word " * 20).lines()
    assert first.startswith("│ no X-ray: word word")
    assert first.endswith(" │")
    assert "…" in second


def test_without_a_frame_a_message_has_its_line_to_itself() -> None:
    above, line = notice_of("checkpoint saved", framed=False).lines()
    assert above == "x" * 40
    assert line[1:-1].strip() == "checkpoint saved"


def test_a_message_leaves_the_footer_alone() -> None:
    assert footer_of(60, message="checkpoint saved").lines() == footer_of(60).lines()
