"""An overlay on a canvas of its own, and X-rays to show."""

from dataclasses import replace

from amptui.records.findings import LayerAgreement, XRayTaken
from amptui.records.run import Printed, Record, RunFailed
from amptui.telemetry.view import NumericsView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.overlay import Overlay
from amptui.tui.panels.screen_state import ScreenState
from tests.builders import view_of
from tests.telemetry import record_samples as samples
from tests.tui import views

MIB = 1024**2
SCREEN = ScreenState(now=views.NOW)


def drawn(
    overlay: Overlay,
    view: SessionView,
    width: int = 120,
    height: int = 40,
    *,
    screen: ScreenState = SCREEN,
) -> Canvas:
    canvas = Canvas(width, height)
    overlay.draw(canvas, view, screen)
    return canvas


def lines(overlay: Overlay, view: SessionView, width: int = 120, height: int = 40) -> list[str]:
    return drawn(overlay, view, width, height).lines()


def printed(*texts: str, trace: str = "") -> SessionView:
    """A run that printed these lines, and failed where there is a trace of it."""
    records: list[Record] = [Printed(time=views.NOW, text=text) for text in texts]
    if trace:
        records.append(RunFailed(time=views.NOW, step=3, error="ValueError: bad", traceback=trace))
    return view_of(*records)


def layer(name: str, cosine: float | None = 0.99996, **changes: object) -> LayerAgreement:
    error, lost = (None, None) if cosine is None else (0.009, 0.0031)
    return samples.layer(name, cosine, **{"elements": 1728, "relative_error": error, "lost": lost, **changes})


LAYERS = (
    layer("features.0.conv", 0.99987, elements=864),
    layer("features.0.norm", 0.99961, kind="BatchNorm2d", elements=64),
    layer("features.1.conv", 0.8973, lost=0.114, elements=4_718_592),
    layer("features.2.conv", 0.4421, relative_error=0.34, lost=0.31),
    layer("head.island", 0.99999, kind="Linear", output_dtype="float32", lost=0.0),
    layer("head.blown", float("nan"), relative_error=float("nan"), lost=0.0),
    layer("", None, kind="Net", output_dtype=""),
)


def xray(**changes: object) -> XRayTaken:
    record = samples.xray(
        1204,
        time=views.NOW - 12,
        loss_fp32=0.031214,
        loss_amp=0.0312295,
        layers=LAYERS,
        output_dtypes={layer.name: layer.output_dtype for layer in LAYERS},
        seconds=0.412,
    )
    return replace(record, **changes)  # type: ignore[arg-type]  # each caller's changes are its fields


def with_xray(**changes: object) -> SessionView:
    """A session whose newest X-ray differs from the usual one in ``changes``."""
    return replace(views.compared(), numerics=NumericsView(xray=xray(**changes)))
