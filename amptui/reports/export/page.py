"""A run as one self-contained HTML page, which needs no network and no other file."""

from amptui.base.version import __version__
from amptui.reports.export import run_details, safety, sections
from amptui.reports.export.chart import draw
from amptui.reports.export.curves import charts
from amptui.reports.export.markup import Markup, card, chip, document, element
from amptui.reports.export.optimizers_card import axis_attributes, optimizers_card, other_cards
from amptui.reports.export.ranks_card import ranks_card
from amptui.reports.export.recorded_run import RecordedRun
from amptui.reports.export.step_axis import StepRange


def page(recording: RecordedRun) -> str:
    """The page as HTML."""
    run = recording.view.run
    title = f"{recording.name if run is None else run.model} · amptui"
    return document(title, _main(recording), _footer(recording), script="page.js")


def _main(recording: RecordedRun) -> Markup:
    view = recording.view
    steps = StepRange(view.loss.first_step, view.loss.last_step, view.switches)
    curves = [draw(chart, steps) for chart in charts(recording)] if view.loss.count else []
    loss, others = curves[:1], curves[1:]
    cards = [
        sections.figures(recording),
        safety.conclusions(view),
        optimizers_card(view),
        card("training", *loss, _legend(recording)),
        sections.comparison(view),
        ranks_card(view),
        sections.time_spent(view),
        sections.memory_spent(view),
        card("curves", element("div", *others, class_="charts") if any(others) else None),
        *other_cards(recording),
        safety.window(view.numerics.window),
        safety.trace(view.numerics.trace),
        safety.xray(view.numerics.xray),
        run_details.events(view),
        run_details.settings(recording),
    ]
    return element("main", sections.header(recording), *cards, **axis_attributes(steps))


def _legend(recording: RecordedRun) -> Markup | None:
    """The colours of the precisions that ran, and what the marks mean."""
    views = (recording.view, *recording.other_views)
    used = dict.fromkeys(switch.precision for view in views for switch in view.switches)
    if not used:
        return None
    items = [element("li", chip(precision)) for precision in used]
    items += [
        element("li", "× step skipped", class_="skip"),
        element("li", "× NaN or Inf", class_="nonfinite"),
        element("li", "○ validation", class_="dots"),
    ]
    return element("ul", *items, class_="legend")


def _footer(recording: RecordedRun) -> Markup:
    run = recording.view.run
    by = "" if run is None else f", recorded by amptui {run.versions.get('amptui', '')}".rstrip()
    return element("footer", f"{recording.name}: exported by amptui {__version__}{by}")
