"""The charts that a view has: everything that was logged, each with its title, its unit and its axis."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from amptui.base import units
from amptui.telemetry.axis import Kind
from amptui.telemetry.view import Series, SessionView
from amptui.tui.canvas import Canvas, text_width
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.renderables.plot import CurvePlot
from amptui.tui.renderables.step_window import GUTTER, Window
from amptui.tui.style import Style

SMALLEST_CHART = (36, 8)
"""Columns and lines of a chart with its title; a small terminal shows one."""

Format = Callable[[float | None], str]


def _label(value: float) -> str:
    """A loss that fits beside an axis: ``0.00015``, ``1.05e-4``."""
    text, digits = units.tick(units.loss(value)), 2
    while len(text) >= GUTTER and digits >= 0:
        text = f"{value:.{digits}e}".replace("e-0", "e-").replace("e+0", "e")
        digits -= 1
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How the values of a chart are shown."""

    format_value: Format = units.loss
    format_y: Callable[[float], str] = _label
    """Of the labels of the axis."""
    kind: Kind = "linear"
    has_log: bool = False
    """Whether the key for a logarithmic axis applies."""
    band: bool = True
    """As in :class:`CurvePlot`."""
    ceiling: float = math.inf
    """What the values cannot exceed."""
    per_tick: float = 1.0
    """The axis counts in this many of the series' unit: in GiB, for bytes."""


class Chart(NamedTuple):
    """One chart; its series is computed when it is drawn."""

    key: tuple[str, str]
    """Tells it from all others, also in a later view."""
    title: str
    read: Callable[[], Series]
    look: Look

    def new_plot(self) -> CurvePlot:
        """A plot without limits yet."""
        look = self.look
        return CurvePlot(look.format_y, band=look.band, ceiling=look.ceiling)

    def draw(
        self, plot: CurvePlot, canvas: Canvas, view: SessionView, screen: ScreenState, window: Window
    ) -> None:
        """Draw the curve on a cleared canvas."""
        kind: Kind = "log10" if self.look.has_log and screen.log_y else self.look.kind
        series = self.read().in_units_of(self.look.per_tick)
        plot.draw(canvas, series, window=window, switches=view.switches, kind=kind)

    def draw_titled(
        self, plot: CurvePlot, canvas: Canvas, view: SessionView, screen: ScreenState, window: Window
    ) -> None:
        """Draw a title with the newest value, and below it the curve."""
        step = self.newest_step()
        reading, value = None if step is None else self.read().at(step), units.NOT_AVAILABLE
        if reading is not None and reading.mean is not None:
            value = self.look.format_value(reading.mean) if math.isfinite(reading.mean) else "NaN or Inf"
        room = max(0, canvas.width - text_width(value) - 4)
        canvas.text(2, 0, self.title, width=min(room, text_width(self.title)))
        canvas.text(canvas.width - text_width(value), 0, value, Style.STRONG)
        self.draw(plot, canvas.rows(1), view, screen, window)

    def newest_step(self) -> int | None:
        """The newest step with a value."""
        steps = self.read().measured_steps()
        return int(steps[-1]) if len(steps) else None


def _percent(value: float | None) -> str:
    return units.percent(value, 1)


def _of_hundred(percent: float | None) -> str:
    return _percent(None if percent is None else percent / 100)


def _of_unit(unit: str) -> Look:
    def with_unit(value: float | None) -> str:
        return f"{units.loss(value)} {unit}"

    return Look(format_value=with_unit, format_y=with_unit, band=False)


def _seconds_label(milliseconds: float) -> str:
    """``2 ms``; only the number if the unit has no room beside the axis: the newest value has it too."""
    value, unit = (milliseconds / 1000, "s") if milliseconds >= 1000 else (milliseconds, "ms")
    number = _label(value)
    return text if len(text := f"{number} {unit}") < GUTTER else number


def _bytes_label(gib: float) -> str:
    """``1.85 Gi``, ``347 Mi``: without the B, for which the axis has no room; the newest value has it."""
    return units.tick(units.number_of_bytes(gib * 2**30)).removesuffix("B").rstrip()


_LOSS = Look(has_log=True)
_VALIDATION_LOSS = Look(has_log=True, band=False)
_MEMORY = Look(format_value=units.number_of_bytes, format_y=_bytes_label, band=False, per_tick=2.0**30)
_SECONDS = Look(format_value=units.milliseconds, format_y=_seconds_label, per_tick=1e-3)

_RATIO = Look(kind="log10", band=False)

_LOOKS: dict[str, tuple[str, Look]] = {
    "panel loss scale": (
        "loss scale",
        Look(format_value=units.count, format_y=units.short_count, kind="log2", band=False),
    ),
    "panel headroom": (
        "headroom",
        Look(format_value=units.headroom, format_y=units.headroom, band=False),
    ),
    "panel throughput": ("samples/s", Look(format_value=units.rate, format_y=units.short_count)),
    "step grad_norm": ("gradient norm", _LOSS),
    "step grad_max": ("largest gradient", _LOSS),
    "step lr": ("learning rate", Look(band=False)),
    "step step_seconds": ("step time", _SECONDS),
    "step data_seconds": ("waiting for data", _SECONDS),
    "validation loss": ("validation loss", _VALIDATION_LOSS),
    "validation accuracy": (
        "validation accuracy",
        Look(format_value=_percent, format_y=_percent, band=False, ceiling=1.0),
    ),
    "device memory_used_bytes": ("GPU memory", _MEMORY),
    "device utilization_percent": (
        "GPU utilization",
        Look(format_value=_of_hundred, format_y=_of_hundred, band=False, ceiling=100.0),
    ),
    "device power_watts": ("GPU power", _of_unit("W")),
    "device temperature_c": ("GPU temperature", _of_unit("°C")),
    "device allocated_bytes": ("allocated", _MEMORY),
}
"""Title and look of what has a name of its own."""


_PANELS: dict[str, Callable[[SessionView], Series]] = {
    "loss": lambda view: view.loss,
    "loss scale": lambda view: view.loss_scale,
    "headroom": lambda view: view.numerics.headrooms,
    "throughput": lambda view: view.samples_rate,
}
"""The charts that are not metrics."""


def charts_of(view: SessionView) -> list[Chart]:
    """All that have a value, in the order in which they are shown."""
    if not view.loss.count:
        return []
    panels = [panel_chart(view, name) for name in _PANELS]
    own = [_chart(it.kind, it.name, it.read) for it in view.metrics]
    before = sum(metric.kind in ("part", "validation", "own validation") for metric in view.metrics)
    charts = [panels[0], *own[:before], *panels[1:], *own[before:]]
    # Those of metrics have a value, or they would not have come.
    return [chart for chart in charts if chart.key[0] != "panel" or chart.newest_step() is not None]


def panel_chart(view: SessionView, name: str) -> Chart:
    """The chart that a panel shows, one of ``_PANELS``."""
    return _chart("panel", name, partial(_PANELS[name], view))


def _chart(kind: str, name: str, read: Callable[[], Series]) -> Chart:
    title, look = _title_and_look(kind, name)
    return Chart((kind, name), title, read, look)


@lru_cache(maxsize=4096)
def _title_and_look(kind: str, name: str) -> tuple[str, Look]:
    if kind == "step" and name.startswith("lr "):
        return f"learning rate {name.removeprefix('lr ')}", Look(band=False)
    if kind == "update":
        return f"{name} update/weight", _RATIO  # if the end is cut, the layer is still named
    if own := _LOOKS.get(f"{kind} {name}"):
        return own
    return (f"validation {name}", Look(band=False)) if kind == "own validation" else (name, _LOSS)
