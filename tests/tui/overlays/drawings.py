"""What overlays draw of what is seldom in a run, and after their keys: approved as one text an overlay."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from amptui.records.run import Note, RunFailed
from amptui.telemetry.eventlog import PRINTS
from amptui.telemetry.view import EMPTY_VIEW, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.keys import KEYS
from amptui.tui.overlays.event_browser import EventBrowser
from amptui.tui.overlays.menus import Help, PrecisionMenu
from amptui.tui.overlays.metrics_browser import MetricsBrowser
from amptui.tui.overlays.overlay import Overlay
from amptui.tui.overlays.questions import LossScaleQuestion, QuitQuestion
from amptui.tui.overlays.text_browser import ConfigurationBrowser, OutputBrowser
from amptui.tui.overlays.xray_overlay import ORDERS as LAYER_ORDERS
from amptui.tui.overlays.xray_overlay import XRay
from amptui.tui.panels.screen_state import ScreenState
from tests.builders import view_of
from tests.tui import views
from tests.tui.overlays.opened import LAYERS, SCREEN, layer, printed, with_float8_xray, with_xray
from tests.tui.special_views import at_the_floor, nan_weights

Drawn = tuple[str, Canvas]
"""A title and its picture."""


def after(
    title: str,
    overlay: Overlay,
    view: SessionView,
    *keys: str,
    sizes: str = "80x24",
    screen: ScreenState = SCREEN,
) -> Iterator[Drawn]:
    """An overlay after some keys, drawn before each as on a screen; then in each of the sizes."""
    for key in keys:
        overlay.draw(Canvas(80, 24), view, screen)
        overlay.press(key, view)
    for size in sizes.split():
        canvas = Canvas(*map(int, size.split("x")))
        overlay.draw(canvas, view, screen)
        yield title, canvas


def _help() -> Iterator[Drawn]:
    yield from after("all of it", Help("keys", KEYS), views.compared(), sizes="50x90 60x90 70x90 120x60")


def _questions() -> Iterator[Drawn]:
    floor = at_the_floor()
    yield from after("at the floor", LossScaleQuestion(), floor, sizes="40x12 80x24 120x40")
    long = replace(floor, pause_reason="word " * 30)
    yield from after("a long reason", LossScaleQuestion(), long, sizes="60x24")
    unsupported = at_the_floor(bf16="no bfloat16 on this GPU")
    yield from after("unsupported", LossScaleQuestion(), unsupported, sizes="80x24 120x40")
    for checkpoint in ("", "step-000000008.pt"):
        yield from after("NaN weights", LossScaleQuestion(), nan_weights(checkpoint), sizes="40x12")
    yield from after("quit", QuitQuestion(attached=True), views.compared(), sizes="40x12 120x40")
    reason = "NVIDIA A100-SXM4-80GB does not multiply float8, which needs compute capability 8.9"
    without = replace(views.compared(), run=views.run_started(unsupported={"fp8": reason, "tf32": "no TF32"}))
    yield from after("menu", PrecisionMenu(without), without, sizes="40x12 80x24 120x40")


def _texts() -> Iterator[Drawn]:
    trace = "Traceback:\n  File x\nValueError: bad\n"
    many = printed(*(f"line {i}" for i in range(60)))
    yield from after("output", OutputBrowser(), many)
    yield from after("the first lines", OutputBrowser(), many, "home")
    yield from after(
        "dropped lines", OutputBrowser(), printed(*map(str, range(PRINTS + 5))), "home", sizes="40x12"
    )
    yield from after("a traceback", OutputBrowser(), printed("before", trace=trace), sizes="60x12")
    twice = printed("before", *trace.splitlines(), trace=trace)
    yield from after("a printed traceback", OutputBrowser(), twice, sizes="60x12")
    losses = printed("loss 0.3", "saved", "Loss 0.2")
    search = ("slash", *"loq", "backspace", "s")
    yield from after("while somebody types", OutputBrowser(), losses, *search, sizes="60x12")
    yield from after("found", OutputBrowser(), losses, *search, "enter", sizes="60x12")
    yield from after("long lines", OutputBrowser(), printed("x" * 300, "漢字 " * 60), sizes="40x24")
    values = {"a": None, "b": True, "c": 0.1, "d": "none", "e": [], "f": ["--lr", "0.1", "--name", "a run"]}
    run = views.run_started(
        config=values,
        versions={"torch": "2.11.0"},
        environment={"OMP_NUM_THREADS": "3"},
        hardware={"processor": None},
    )
    view = replace(views.compared(), run=run)
    yield from after("configuration", ConfigurationBrowser(), view, sizes="40x40 80x30")


def _events() -> Iterator[Drawn]:
    prose = "the gradient of features.13.conv left the range of float16 because the loss scale was too high"
    trace = "Traceback:\n" + "    raise ValueError(  a  ,  b  )" * 3
    texts = ("first", f"second\n  {prose}\n{prose}", "wide\n" + "日" * 60 + "\n  " + "本" * 60)
    notes = [Note(time=float(n), severity="info", text=text) for n, text in enumerate(texts)]
    view = view_of(*notes, RunFailed(time=9.0, step=5, error="boom", traceback=trace))
    yield from after("newest", EventBrowser(), view)
    for place in range(4):
        yield from after(f"at {place}", EventBrowser(), view, *["down"] * place, "enter")
    yield from after("details scrolled", EventBrowser(), view, "down", "right", sizes="60x12")
    yield from after("none", EventBrowser(), EMPTY_VIEW, "down", "enter", sizes="40x12")


def _xray() -> Iterator[Drawn]:
    for count in (4, 3, 2):
        yield from after(f"{count} layers", XRay(), with_xray(layers=LAYERS[:count]), sizes="80x24 120x24")
    for order in range(len(LAYER_ORDERS)):
        yield from after("in each order", XRay(), with_xray(), *["s"] * order, sizes="120x24")
    unmeasured = with_xray(saved_bytes_fp32=None, saved_bytes_amp=None, loss_scale=None)
    many = {"a": "float16"} | {f"norm{i}": "float32" for i in range(7)}
    cosines = (layer("a", 0.999999), layer("b", 0.998999), layer("c", -0.99996), layer("d", 1.0))
    lost = tuple(
        layer(str(fraction), lost=fraction, relative_error=fraction)
        for fraction in (0.0, 0.114, 2.5, 1234.0, math.inf)
    )
    deep = layer("backbone.encoder.layers.11.attention.self.projection.out")
    for title, view in {
        "unmeasured": unmeasured,
        "nothing saved": with_xray(saved_bytes_fp32=0, saved_bytes_amp=0),
        "the same saved": with_xray(saved_bytes_fp32=200, saved_bytes_amp=200),
        "more saved": with_xray(saved_bytes_fp32=100, saved_bytes_amp=150),
        "equal losses": with_xray(loss_fp32=0.5, loss_amp=0.5),
        "a loss of zero": with_xray(loss_fp32=0.0, loss_amp=0.5),
        "an infinite loss": with_xray(loss_amp=math.inf),
        "no loss of the reference": with_float8_xray(loss_reference=None),
        "dropout": with_xray(random=True),
        "all in FP32": with_xray(output_dtypes={"a": "float32", "b": "float32"}),
        "many in FP32": with_xray(output_dtypes=many),
        "cosines": with_xray(layers=cosines),
        "shares": with_xray(layers=lost),
        "a deep name": with_xray(layers=(deep,)),
        "no layers": with_xray(layers=(), operators=(), output_dtypes={}),
    }.items():
        yield from after(title, XRay(), view, sizes="80x18")
    takes = replace(SCREEN, accepts=frozenset({"x-ray"}))
    yield from after("none yet", XRay(), EMPTY_VIEW, sizes="80x12", screen=takes)
    yield from after("none possible", XRay(), EMPTY_VIEW, sizes="80x12")
    for screen in (
        *(takes, ScreenState(waiting="X-ray with the next step …")),
        ScreenState(message="no X-ray: out of memory", waiting="x"),
    ):
        yield from after("on the edge", XRay(), with_xray(), sizes="120x14", screen=screen)
    long = with_xray(layers=tuple(layer(f"layer{i:03}", 0.9 + i / 10_000) for i in range(100)))
    for keys in (("down", "j", "up"), ("pagedown",), ("end",), ("end", "s")):
        yield from after(" ".join(keys), XRay(), long, *keys, sizes="80x16")


def _charts() -> Iterator[Drawn]:
    logged = views.logged()
    for keys in (("right", "enter", "home"), ("right", "enter"), ("slash", *"accuracy", "enter", "enter")):
        yield from after(" ".join(keys), MetricsBrowser(), logged, *keys)
    for keys in (("slash", *"GPU"), ("slash", *"GPU", "space", "m", "enter"), ("slash", *"GPUqg"), ("end",)):
        yield from after(" ".join(keys), MetricsBrowser(), logged, *keys)
    more = replace(logged, metrics_left_out=True)
    yield from after("more than are kept", MetricsBrowser(), more, sizes="80x24 200x60")
    for zoom, log_y in ((2, False), (0, True)):
        screen = replace(SCREEN, zoom=zoom, log_y=log_y)
        yield from after(f"{zoom=}, {log_y=}", MetricsBrowser(), logged, screen=screen)
    for key in ("end", "home"):
        yield from after(f"loss, {key}", MetricsBrowser(), views.with_skips(), "enter", key)


DETAILS: Mapping[str, Callable[[], Iterator[Drawn]]] = {
    "help": _help,
    "questions": _questions,
    "texts": _texts,
    "events": _events,
    "X-ray": _xray,
    "charts": _charts,
}
"""The pictures of each overlay."""
