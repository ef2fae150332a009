"""The page's cards of a run with several optimizers: all side by side, and the charts of the others."""

import json

from amptui.base import units
from amptui.base.text import printable
from amptui.diagnosis.labels import optimizers_left_out, precision_label, signed_label
from amptui.reports.export.chart import draw
from amptui.reports.export.curves import step_charts
from amptui.reports.export.markup import Markup, card, element, paragraph, table
from amptui.reports.export.recorded_run import RecordedRun
from amptui.reports.export.step_axis import StepRange
from amptui.telemetry.view import OptimizerView, SessionView

_HEAD = ("", "optimizer", "steps", "precision", "last loss", "smoothed", "best", "learning rate", "skipped")


def optimizers_card(view: SessionView) -> Markup | None:
    """The newest numbers of each; None for a single one."""
    if not view.optimizers:
        return None
    front = next(optimizer.label for optimizer in view.optimizers if optimizer.is_front)
    notes = [f"the other figures and charts are of {front}, unless they say otherwise"]
    notes += optimizers_left_out(view)
    rows = table(_HEAD, map(_row, view.optimizers))
    return card("optimizers", rows, *(paragraph(line, "note") for line in notes))


def _row(optimizer: OptimizerView) -> list[str]:
    return [
        optimizer.label,
        optimizer.kind,
        units.count(optimizer.step),
        signed_label(optimizer.precision or "unknown"),
        units.loss(optimizer.loss),
        units.loss(optimizer.smoothed_loss),
        units.loss(optimizer.best_loss),
        units.loss(optimizer.lr),
        units.count(optimizer.skipped),
    ]


def other_cards(recording: RecordedRun) -> list[Markup | None]:
    """The charts of each optimizer but the first, over its own steps."""
    return [_card(recording, view) for view in recording.other_views]


def _card(recording: RecordedRun, view: SessionView) -> Markup | None:
    if not view.loss.count:
        return None
    label = next(optimizer.label for optimizer in view.optimizers if optimizer.is_front)
    steps = StepRange(view.loss.first_step, view.loss.last_step, view.switches)
    loss, *others = (draw(chart, steps) for chart in step_charts(recording, view))
    content = element("div", *others, class_="charts") if any(others) else None
    return card(label, element("div", loss, content, **axis_attributes(steps)))


def axis_attributes(steps: StepRange) -> dict[str, object]:
    """What the page's script reads of an axis that charts have in common."""
    # JSON escapes these a second time, so element() does not find their control characters.
    labels = [[switch.step, printable(precision_label(switch.precision))] for switch in steps.switches]
    return {"data_first": steps.first, "data_last": steps.last, "data_switches": json.dumps(labels)}
