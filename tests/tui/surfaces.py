"""Every surface of the screen, drawn on a canvas of any size."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from amptui.diagnosis.activity import switch_target
from amptui.records.answers import REQUEST_KINDS
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.keys import ENDED_KEYS, KEYS, Key, footer_hints, keys_of
from amptui.tui.layout import PANELS, RANKED_PANELS
from amptui.tui.overlays.help import Help
from amptui.tui.overlays.metrics_browser import MetricsBrowser
from amptui.tui.overlays.overlay import Overlay
from amptui.tui.overlays.questions import LossScaleQuestion, PrecisionMenu, QuitQuestion
from amptui.tui.overlays.text_browser import ConfigurationBrowser, EventBrowser, OutputBrowser
from amptui.tui.overlays.xray_overlay import XRay
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.replay import REPLAY_KEYS, position_words
from amptui.tui.run_list import frame as run_list
from amptui.tui.run_list.frame import ListState
from tests.diagnosis import amp_situations
from tests.tui import numerics_views, special_views, views
from tests.tui.overlays.opened import printed, with_xray
from tests.tui.run_list.listed import NOW, STATE
from tests.tui.special_views import (
    DISCRIMINATOR,
    MEMORY,
    at_the_floor,
    gan_view,
    in_turns,
    nan_weights,
    no_losses,
    over,
    seven_optimizers,
    with_flops,
    with_memory,
)

Draw = Callable[[Canvas], object]

SCREEN_OF_LIST = ScreenState(now=NOW)

ALL_REQUESTS = frozenset(REQUEST_KINDS)


def observed() -> SessionView:
    """A script's own loop, which takes no request but a pause."""
    view = amp_situations.view_of("own_loop_that_takes_no_requests")
    assert view.run is not None
    return replace(view, run=replace(view.run, observed=True))


VIEWS: Mapping[str, Callable[[], SessionView]] = {
    **views.ALL,
    **numerics_views.ALL,
    **special_views.RANKED,
    **special_views.TIMED,
    **{name: partial(amp_situations.view_of, name) for name in amp_situations.SITUATIONS},
    "observed": observed,
    "at the floor": at_the_floor,
    "NaN weights": nan_weights,
    "A/B test": in_turns,
    "A/B test over": over,
    "memory by kind": partial(with_memory, *MEMORY),
    "two optimizers": gan_view,
    "the other optimizer": partial(gan_view, front=DISCRIMINATOR),
    "no losses": no_losses,
    "seven optimizers": seven_optimizers,
    "FLOP rates": with_flops,
}

_view = cache(lambda name: VIEWS[name]())


def _screen(view: SessionView, *, focus: str | None = None, **changes: object) -> ScreenState:
    """The state of a screen that shows ``view``, as the screen of a run has it."""
    ended = view.state in ("finished", "failed")
    accepts = frozenset() if ended else ALL_REQUESTS
    if view.run is not None and view.run.observed:
        accepts &= {"pause"}
    hints = footer_hints(
        ENDED_KEYS if ended else keys_of(accepts),
        paused=view.state == "paused",
        switches_to=switch_target(view),
        several_optimizers=bool(view.optimizers),
    )
    state = ScreenState(now=views.NOW, accepts=accepts, hints=hints, focus=focus)
    return replace(state, **changes)  # type: ignore[arg-type]  # each caller's changes are its fields


def draw_dashboard(canvas: Canvas, name: str, **state: object) -> None:
    """The dashboard of a view."""
    view = _view(name)
    Frame().draw(canvas, view, _screen(view, **state))  # type: ignore[arg-type]  # fields of ScreenState


def draw_overlay(
    canvas: Canvas,
    open_overlay: Callable[[SessionView], Overlay],
    view: SessionView,
    keys: tuple[str, ...] = (),
) -> None:
    """An overlay alone, after some keys."""
    overlay, screen = open_overlay(view), _screen(view)
    for key in keys:
        overlay.draw(Canvas(canvas.width, canvas.height), view, screen)
        overlay.press(key, view)
    overlay.draw(canvas, view, screen)


_PRINTED = printed(
    *("epoch 1, loss 0.5", "saved the samples to out/samples.png", "epoch 2, loss 0.25"),
    trace='Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad\n',
)


def _dashboards() -> Iterator[tuple[str, Draw]]:
    for name in VIEWS:
        yield f"dashboard {name}", partial(draw_dashboard, name=name)
    words = "this run takes no X-ray: its model was made by somebody else"
    yield "dashboard, message", partial(draw_dashboard, name="compared", message=words)
    words = "the machine has sent nothing for 41 s, it is asked again"
    yield "dashboard, lost", partial(draw_dashboard, name="compared", lost=words)
    yield "dashboard, silent", partial(draw_dashboard, name="compared", silence=words)
    yield "dashboard, waiting", partial(draw_dashboard, name="compared", waiting=words)


def _enlarged_panels() -> Iterator[tuple[str, Draw]]:
    for name in VIEWS:
        for focus in RANKED_PANELS if name in special_views.RANKED else PANELS:
            yield f"enlarged {focus} {name}", partial(draw_dashboard, name=name, focus=focus)
    for focus in ("loss", "throughput"):
        draw = partial(draw_dashboard, name="with_skips", focus=focus, cursor=812)
        yield f"{focus} with cursor", draw


def _overlays() -> Iterator[tuple[str, Draw]]:
    def with_keys(keys: tuple[Key, ...], title: str) -> Callable[[SessionView], Overlay]:
        return lambda _view: Help(title, keys, glossary=True)

    compared, logged, xray = views.compared(), views.logged(), with_xray()
    opened: tuple[tuple[str, Callable[[SessionView], Overlay], SessionView, tuple[str, ...]], ...] = (
        ("help", with_keys(KEYS, "keys"), compared, ()),
        ("help scrolled", with_keys(KEYS, "keys"), compared, ("end",)),
        ("replay help", with_keys(REPLAY_KEYS, "replay keys"), compared, ()),
        ("replay help scrolled", with_keys(REPLAY_KEYS, "replay keys"), compared, ("end",)),
        ("quit", lambda _view: QuitQuestion(attached=False), compared, ()),
        ("quit attached", lambda _view: QuitQuestion(attached=True), compared, ()),
        ("quit paused", lambda _view: QuitQuestion(attached=True), views.paused(), ()),
        ("quit observed", lambda _view: QuitQuestion(attached=True), observed(), ()),
        ("menu", lambda _view: PrecisionMenu(), compared, ()),
        (
            "menu of a CPU",
            lambda _view: PrecisionMenu(),
            at_the_floor(tf32="needs a GPU of compute capability 8.0"),
            (),
        ),
        ("output", lambda _view: OutputBrowser(), _PRINTED, ()),
        ("output, nothing", lambda _view: OutputBrowser(), compared, ()),
        ("output, search", lambda _view: OutputBrowser(), _PRINTED, ("slash", "e")),
        ("configuration", lambda _view: ConfigurationBrowser(), compared, ()),
        ("configuration, nothing", lambda _view: ConfigurationBrowser(), SessionView(), ()),
        ("charts", lambda _view: MetricsBrowser(), logged, ()),
        ("charts in trouble", lambda _view: MetricsBrowser(), _view("collapsing"), ()),
        ("charts, filter", lambda _view: MetricsBrowser(), logged, ("slash", "l", "r")),
        ("charts, nothing", lambda _view: MetricsBrowser(), SessionView(), ()),
        ("chart", lambda _view: MetricsBrowser(), logged, ("enter",)),
        ("chart with cursor", lambda _view: MetricsBrowser(), logged, ("enter", "left")),
        ("X-ray", lambda _view: XRay(), xray, ()),
        ("floor", lambda _view: LossScaleQuestion(), at_the_floor(bf16="needs a newer GPU"), ()),
        ("NaN weights", lambda _view: LossScaleQuestion(), nan_weights(), ()),
        ("NaN weights, checkpoint", lambda _view: LossScaleQuestion(), nan_weights("step-000000008.pt"), ()),
    )
    for name, open_overlay, view, keys in opened:
        yield f"overlay {name}", partial(draw_overlay, open_overlay=open_overlay, view=view, keys=keys)
    for name in ("with_skips", "failed", "collapsing", "forward_overflow", "8 ranks in trouble"):
        browser = partial(draw_overlay, open_overlay=lambda _view: EventBrowser(), view=_view(name))
        yield f"overlay events of {name}", browser


def _draw_list(
    canvas: Canvas, state: ListState, screen: ScreenState = SCREEN_OF_LIST, overlay: Overlay | None = None
) -> None:
    run_list.draw(canvas, state, screen)
    if overlay is not None:
        overlay.draw(canvas, EMPTY_VIEW, screen)


def _run_lists() -> Iterator[tuple[str, Draw]]:
    states = {
        "": STATE,
        ", selected": replace(STATE, selected=[entry.run for entry in (STATE.entries or ())[:2]]),
        ", pattern": replace(STATE, pattern="mnist"),
        ", typing": replace(STATE, pattern="mnist", is_typing=True),
        ", reading": replace(STATE, entries=None),
        ", none": replace(STATE, entries=()),
        ", no match": replace(STATE, entries=(), pattern="mnist"),
        ", not read yet": replace(STATE, rows={}),
        **{f", at {at}": replace(STATE, cursor=at) for at in range(1, 5)},
    }
    for name, state in states.items():
        yield f"run list{name}", partial(_draw_list, state=state)
    messages = {
        ", message": "select the runs to compare first: a",
        ", long message": "cannot read ./runs/mnist/journal.jsonl: the folder is not there any more",
    }
    for name, message in messages.items():
        said = replace(SCREEN_OF_LIST, message=message)
        yield f"run list{name}", partial(_draw_list, state=STATE, screen=said)
    yield "run list, help", partial(_draw_list, state=STATE, overlay=Help("keys", run_list.KEYS))


def _replays() -> Iterator[tuple[str, Draw]]:
    for state in ("playing", "paused", "seeking", "ended"):
        player: Any = SimpleNamespace(
            state=state, seconds=732.0, total_seconds=4310.0, folded_seconds=400.0, speed=16.0
        )
        words, hints = position_words(player), footer_hints(REPLAY_KEYS)
        draw = partial(draw_dashboard, name="compared", waiting=words, hints=hints, accepts=frozenset())
        yield f"replay {state}", draw


SURFACES: Mapping[str, Draw] = {
    name: draw
    for group in (
        _dashboards(),
        _enlarged_panels(),
        _overlays(),
        _run_lists(),
        _replays(),
    )
    for name, draw in group
}
"""By name."""
