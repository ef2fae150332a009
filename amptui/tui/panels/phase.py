"""What the run is doing while there are no steps to show, in words."""

from amptui.base import units
from amptui.records.run import PhaseChanged
from amptui.telemetry.view import SessionView
from amptui.tui.panels.screen_state import ScreenState

_WORDS = {
    "importing": "importing torch",
    "data": "loading data",
    "model": "building the model",
    "first step": "first step",
    "validating": "validating",
    "stopping": "stopping",
}
"""What to say if a phase has no detail."""


def waiting_words(view: SessionView, screen: ScreenState) -> str:
    """``downloading train-images 3.10 / 9.50 MiB``; "" while steps run or once the run has ended."""
    if view.state in ("finished", "failed") or screen.lost or screen.silence:
        return ""
    if view.phase is None:
        return "starting" if view.state == "starting" else ""
    if view.phase.phase == "training":
        return ""
    return " ".join(part for part in (_doing(view.phase), _progress(view.phase)) if part)


def is_stopping(view: SessionView) -> bool:
    """Whether the run says that it is stopping, for whatever reason."""
    over = view.state in ("finished", "failed")
    return not over and view.phase is not None and view.phase.phase == "stopping"


def waiting_fraction(view: SessionView) -> float | None:
    """The progress of the phase, from 0 to 1; None if unknown."""
    phase = view.phase
    if phase is None or phase.done is None or not phase.total:
        return None
    return min(1.0, phase.done / phase.total)


def _doing(phase: PhaseChanged) -> str:
    if phase.phase == "first step" and phase.detail not in ("", "first step"):
        return f"first step: {phase.detail}"
    return phase.detail or _WORDS.get(phase.phase, phase.phase)


def _progress(phase: PhaseChanged) -> str:
    """Bytes with their unit, everything else as a plain count."""
    if phase.done is None:
        return ""
    if phase.unit == "bytes":
        return units.bytes_of(phase.done, phase.total)
    whole = "" if phase.total is None else f"/{units.count(phase.total)}"
    return f"{units.count(phase.done)}{whole}"
