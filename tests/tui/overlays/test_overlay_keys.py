"""What the keys of each overlay do: answers, selections and pages, which stay while records arrive."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import NonFinite, Note, Printed, Record
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.keys import KEYS
from amptui.tui.overlays.help import Help
from amptui.tui.overlays.metrics_browser import MetricsBrowser
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer, Overlay
from amptui.tui.overlays.questions import LossScaleQuestion, PrecisionMenu, QuitQuestion
from amptui.tui.overlays.text_browser import ConfigurationBrowser, EventBrowser, OutputBrowser
from amptui.tui.overlays.xray_overlay import XRay
from tests.builders import fold
from tests.golden import Goldens
from tests.tui import views
from tests.tui.overlays.opened import drawn, layer, lines, with_xray
from tests.tui.special_views import at_the_floor, nan_weights
from tests.tui.test_keyboard import MOVES

OVERLAYS: dict[str, Callable[[], Overlay]] = {
    "help": lambda: Help("keys", KEYS),
    "quit": lambda: QuitQuestion(attached=False),
    "quit attached": lambda: QuitQuestion(attached=True),
    "menu": PrecisionMenu,
    "events": EventBrowser,
    "output": OutputBrowser,
    "configuration": ConfigurationBrowser,
    "floor": LossScaleQuestion,
    "x-ray": XRay,
    "metrics": MetricsBrowser,
}

# ------------------------------------------------------------------------------- of every overlay

ALL_PRESSES = [
    *("up", "down", "pageup", "pagedown", "home", "end", "left", "right", "tab", "enter", "a", "x"),
    *("1", "0", "plus", "minus", "slash", "escape", "left_square_bracket", "backspace"),
]
VIEWS = {name: build() for name, build in views.ALL.items()} | {
    "x-ray": with_xray(),
    "floor": at_the_floor(),
    "NaN weights": nan_weights("step-000000008.pt"),
}


@given(
    name=st.sampled_from(sorted(OVERLAYS)),
    steps=st.lists(
        st.tuples(
            *(st.integers(0, 130), st.integers(0, 50)),
            *(st.sampled_from(ALL_PRESSES), st.sampled_from(sorted(VIEWS))),
        ),
        max_size=6,
    ),
)
def test_no_size_key_or_view_is_an_error(name: str, steps: list[tuple[int, int, str, str]]) -> None:
    overlay = OVERLAYS[name]()
    for width, height, key, view in steps:
        canvas = drawn(overlay, VIEWS[view], width, height)
        assert canvas.chars.shape == (height, width)
        overlay.press(key, VIEWS[view])


FLOOR, NAN = at_the_floor(), nan_weights()
WITHOUT_BF16 = at_the_floor(bf16="no bfloat16 on this GPU")


@pytest.mark.parametrize(
    ("name", "view", "presses", "answer"),
    [
        ("menu", views.fp32_only(), ("escape", "m", "q"), CLOSE),
        ("menu", views.fp32_only(), ("0", "8", "9", "²", "x"), STAY),
        ("floor", FLOOR, ("enter", "space", "p", "x", "n"), STAY),
        ("floor", WITHOUT_BF16, ("1",), STAY),
        ("floor", NAN, ("2", "3"), STAY),  # no other precision repairs the weights
        ("floor", NAN, ("1",), Answer(close=True, action="resume")),
        ("quit", EMPTY_VIEW, ("enter", "escape", "n", "q", "ctrl+q", "p", "space"), CLOSE),
    ],
)  # fmt: skip
def test_what_a_key_answers(name: str, view: SessionView, presses: tuple[str, ...], answer: Answer) -> None:
    for press in presses:
        assert OVERLAYS[name]().press(press, view) == answer, press


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_key_of_the_screen_means_nothing_else_on_an_overlay(name: str) -> None:
    view = VIEWS[name] if name in VIEWS else views.logged()
    for key in KEYS:
        for press in set(key.presses) - MOVES:
            overlay = OVERLAYS[name]()
            before = lines(overlay, view, 80, 24)
            answer = overlay.press(press, view)
            assert answer.action in ("", key.action.format(press=press)), press
            assert answer.precision == "", press
            changes = not answer.close and lines(overlay, view, 80, 24) != before
            assert not changes or key.action == "next_panel", press


# ------------------------------------------------------------------------ pages over a live session


def note(number: int, rest: str = "") -> Note:
    return Note(time=float(number), severity="info", text=f"note {number}{rest}")


def notes(first: int, last: int) -> list[Record]:
    return [note(number) for number in range(first, last + 1)]


def printed(words: str) -> Printed:
    return Printed(time=views.NOW, text=words)


def output(first: int, last: int) -> list[Record]:
    return [printed(f"line {number}") for number in range(first, last + 1)]


def nan_loss(step: int) -> NonFinite:
    return NonFinite(time=float(step), step=step, what="loss", kind="nan", names=(), count=1)


class Browsing:
    """An overlay over a session, or over a view, drawn before each key as on a screen."""

    def __init__(self, browser: Overlay, *records: Record, view: SessionView | None = None) -> None:
        self.session = fold(records)
        self.own_view = view
        self.browser = browser

    @property
    def view(self) -> SessionView:
        return self.own_view or self.session.view()

    def press(self, *keys: str) -> str:
        """What the last key answered."""
        answer = STAY
        for key in keys:
            self.lines()
            answer = self.browser.press(key, self.view)
        return "closes" if answer.close else answer.action or "stays"

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        return lines(self.browser, self.view, width, height)

    def said(self) -> list[str]:
        """The lines without frames and blanks; of a page of charts only the edges and the selected one."""
        said = [" ".join(line.strip("│─╭╮╰╯ ").replace("─", " ").split()) for line in self.lines()]
        if isinstance(self.browser, MetricsBrowser):
            said = [said[0], *(line for line in said[1:-2] if "▸" in line), *said[-2:]]
        return [line for line in said if line]


Happening = str | Sequence[Record] | SessionView
"""Keys in one text, records that arrive, or another view."""

logged, xray = views.logged(), with_xray()
many_layers = with_xray(layers=tuple(layer(f"layer{i:03}", 0.9 + i / 10_000) for i in range(100)))


class Browsed(NamedTuple):
    """An overlay, what it is opened over, and what happens then."""

    open: Callable[[], Overlay]
    begin: Sequence[Record] | SessionView
    happenings: Sequence[Happening]


BROWSED = {
    "the newest event stays in sight until somebody scrolls, also one whose count grows": Browsed(
        EventBrowser,
        [nan_loss(10), *notes(0, 29)],
        [[nan_loss(11), nan_loss(12), note(30)], "up", [note(31)], "slash n a n", "escape end"],
    ),
    "the details of an event stand below it": Browsed(EventBrowser, [note(1, "\nfact 1\nfact 2")], []),
    "without an event there is nothing to scroll": Browsed(EventBrowser, [], ["down up end home pagedown"]),
    "the newest output stays in sight until somebody scrolls, and again from the end on": Browsed(
        OutputBrowser, output(0, 59), [output(60, 60), "home", output(61, 61), "end", output(62, 62)]
    ),
    "what is typed after a slash selects lines and escape shows all again": Browsed(
        OutputBrowser,
        [printed("loss 0.3"), printed("saved"), printed("Loss 0.2")],
        ["slash l o q backspace s", "enter", "escape", "escape"],
    ),
    "arrows, pages and ends scroll the layers": Browsed(
        XRay, many_layers, ["down", "j", "up", "pagedown", "end", "home", "k", "end", xray]
    ),
    "arrows and pages select charts, and the selected one stays so when others come or go": Browsed(
        MetricsBrowser, logged, ["right", "down", "up", "left", "left", "pagedown", "home", "end"]
    ),
    "a chart stays selected when others come, and one that is gone is not shown": Browsed(
        MetricsBrowser, replace(logged, metrics=views.metrics()[6:]), ["end", logged, "enter", EMPTY_VIEW]
    ),
    "typing finds charts by name": Browsed(
        MetricsBrowser,
        logged,
        [
            *("slash G P U", "space m enter", "slash q g", "backspace backspace backspace"),
            *("escape", "escape", "enter left slash G P U"),
        ],
    ),
    "enter enlarges a chart and the cursor reads": Browsed(
        MetricsBrowser, logged, ["right enter", "home", "down", "escape", "escape"]
    ),
    "the cursor stays while steps arrive": Browsed(
        MetricsBrowser, views.trained((("fp32", 500),)), ["enter left left", views.trained((("fp32", 1500),))]
    ),
    "keys of all curves work on charts too": Browsed(MetricsBrowser, logged, ["plus", "minus", "0", "l"]),
}


def transcript(browsed: Browsed) -> list[str]:
    """What an overlay says after each of its happenings."""
    begin = browsed.begin
    browsing = Browsing(browsed.open(), *([] if isinstance(begin, SessionView) else begin))
    browsing.own_view = begin if isinstance(begin, SessionView) else None
    lines, before = ["> it opens", *browsing.said()], browsing.said()
    for happening in browsed.happenings:
        if isinstance(happening, str):
            lines.append(f"> press {happening}: {browsing.press(*happening.split())}")
        elif isinstance(happening, SessionView):
            lines.append("> another view")
            browsing.own_view = happening
        else:
            lines.append(f"> {len(happening)} more")
            browsing.session.fold(happening)
        said = browsing.said()
        lines += [line for line in said if line not in before]
        before = said
    return lines


@pytest.mark.usefixtures("one_time_zone")
def test_each_page_says_what_was_approved(goldens: Goldens) -> None:
    pages = ["\n".join([f"# {name}", *transcript(browsed)]) for name, browsed in BROWSED.items()]
    goldens.check("scripts/overlays", "\n\n".join(pages))
