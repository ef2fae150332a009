"""A comparison in turns as the screen asks for it: which precisions, what to wait for, what came of it."""

from typing import TYPE_CHECKING

from amptui.records import AMP_PRECISIONS, RunStarted
from amptui.telemetry.view import SessionView
from amptui.tui.panels import inturns

if TYPE_CHECKING:
    from amptui.findings import PrecisionsCompared


def precisions_to_compare(view: SessionView, run: RunStarted) -> tuple[str, str]:
    """The precision without AMP that ran last, or FP32; then the AMP that runs or that ``p`` means."""
    before = [switch.precision for switch in view.switches if switch.precision not in AMP_PRECISIONS]
    amp = view.precision if view.precision in AMP_PRECISIONS else run.amp_precision
    return (before or ["fp32"])[-1], amp or run.amp_precision


class Comparing:
    """Follows the comparison from one view to the next."""

    def __init__(self) -> None:
        self._asked = False
        self._before: PrecisionsCompared | None = None
        self._chosen: str | None = None
        self._running = False

    def ask(self, view: SessionView) -> None:
        """A comparison was asked for while the session looked like ``view``."""
        self._asked, self._before, self._chosen = True, view.compared, view.precision

    def chosen(self, view: SessionView) -> str | None:
        """The precision that a person last chose: in a comparison, what ran before it."""
        return self._chosen or view.precision if self._running else view.precision

    def came(self, view: SessionView) -> str:
        """The result of a comparison that was seen to run, told once when it is over; empty otherwise."""
        runs = inturns.running(view) is not None
        over, self._running = self._running and not runs, runs
        if view.compared is not self._before or view.state in ("finished", "failed"):
            self._asked = False
        return next((event.text for event in view.events if event.kind == "compared"), "") if over else ""

    def words(self, view: SessionView) -> str:
        """``comparing: round  3/24, c ends it``; empty when nothing is waited for."""
        runs = inturns.running(view)
        if runs is not None:
            return f"comparing: {inturns.short_round_words(runs)}, c ends it"
        return "comparing from the next step on …" if self._asked else ""
