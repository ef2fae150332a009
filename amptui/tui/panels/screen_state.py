"""What the panels show beside the session: the user's choices and what the screen itself knows."""

from dataclasses import dataclass

from amptui.records.answers import RequestKind
from amptui.records.run import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenState:
    """The screen at one frame; the session is in the view."""

    log_y: bool = False
    """Whether the loss has a logarithmic axis."""
    zoom: int = 0
    """How far the curves are zoomed in; 0 shows the whole run."""
    steps_ahead: int = 0
    """How many future steps the curves leave room for at their right end."""
    focus: str | None = None
    """The enlarged panel, one of ``layout.RANKED_PANELS``."""
    cursor: int | None = None
    """The step that the cursor of the enlarged curve is at."""
    now: float = 0.0
    """Unix seconds, on the clock of the records."""
    stopping: bool = False
    """Whether this screen asked the run to stop and waits for that."""
    lost: str = ""
    """What to say of a run that ended without its last record; empty otherwise."""
    silence: str = ""
    """What to say of a live run that has sent nothing for seconds; empty otherwise."""
    accepts: frozenset[RequestKind] = frozenset()
    """The kinds of request that the run takes from this screen: none in a replay or after the end."""
    hints: tuple[tuple[str, str], ...] = ()
    """Keys and what they do, the most important first, help and quit at the end."""
    message: str = ""
    """A notice above the footer."""
    severity: Severity = "warning"
    """The notice's."""
    waiting: str = ""
    """Pending requests in words; the hints make room for them."""
