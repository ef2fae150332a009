"""The progress of a measurement: what is being measured, and how long it takes at most."""

from typing import TextIO

from amptui.base import units
from amptui.diagnosis.activity import phase_words
from amptui.diagnosis.labels import precision_label
from amptui.reports.advise.stages import Stages
from amptui.reports.bench.progress import Progress, comparison_parts
from amptui.telemetry.view import SessionView


class StagesShown:
    """One line on a terminal, which is rewritten; elsewhere only what the run warns of before its steps."""

    def __init__(self, out: TextIO) -> None:
        self._progress = Progress(out)
        self._on_terminal = out.isatty()

    def look(self, stages: Stages, view: SessionView) -> None:
        """Show how far it is; to be called a few times a second."""
        if view.step == 0 and not stages.over:
            self._progress.tell_warnings(view)
        if self._on_terminal:
            self._progress.show(progress_words(stages, view))

    def clear(self) -> None:
        """Remove the line."""
        self._progress.clear()


def progress_words(stages: Stages, view: SessionView) -> str:
    """``alternating, round  3 of at most 24, AMP bf16 1.61× (1.55 to 1.68), at most 2:10 left``."""
    if stages.stage == "starting":
        return phase_words(view.phase)
    time_left = f"at most {units.duration(max(0.0, stages.seconds_left()))} left"
    return ", ".join(part for part in (_doing(stages, view), time_left) if part)


def _doing(stages: Stages, view: SessionView) -> str:
    label = precision_label(stages.precision)
    match stages.stage:
        case "comparing":
            return _alternating(view)
        case "probing":
            return f"measuring gradients in {label}"
        case "losses":
            total = None if view.run is None else view.run.total_steps
            steps = f", step {units.count(view.step)} of {units.count(total)}" if total else ""
            return f"loss from the same start, seed {stages.seed} in {label}{steps}"
        case "over":
            return ""
    return f"first steps in {label}, step {units.count(view.step)}"


def _alternating(view: SessionView) -> str:
    compared = view.compared
    if compared is None or compared.over:
        return "alternating"
    return ", ".join(["alternating", *comparison_parts(compared)])
