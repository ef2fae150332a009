"""What the list of runs shows, whichever machine the runs are on: entries, and the rows behind them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from amptui.base.runfiles import Removal

RowState = Literal[
    "starting",
    "running",
    "paused",
    "stalled",
    "finished",
    "stopped",
    "ended",
    "failed",
    "died",
    "unreadable",
]
"""``stalled``: it is being trained, and has recorded nothing new for much longer than a step takes. ``died``:
no process trains it, and it has no last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run at one moment; None for what was not recorded."""

    state: RowState
    model: str | None = None
    precision: str | None = None
    step: int | None = None
    total_steps: int | None = None
    losses: Sequence[float | None] = ()
    """Of its newest steps, oldest first; None for a step without one."""
    seconds: float | None = None
    """How long it has trained: from its first record to its newest, or to now if it is being trained."""
    written: float | None = None
    """When its journal was last written, in Unix seconds."""
    detail: str = ""
    """What else there is to say: why it failed, where it is being trained."""

    @property
    def loss(self) -> float | None:
        """Of the newest step that has one."""
        return next((loss for loss in reversed(self.losses) if loss is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run of the list, before any of its files is opened."""

    run: str
    """What commands call it, and what tells it from all others."""
    name: str
    is_live: bool
    """Whether a process trains it now."""
    written: float
    """Unix seconds; while they and ``is_live`` stay the same, so does the row of a run that has ended."""
    read: Callable[[], RunRow]
    """Reads its row. Called in the thread of a reader; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """Where the list comes from."""

    entries: Callable[[], Sequence[RunEntry]]
    """All runs, live ones first, then the newest. Called again and again in the thread of a reader. Raises
    AmptuiError."""
    plan_removal: Callable[[str], Removal]
    """What removing the run of that name would delete. Raises AmptuiError, also for one that is live."""
    remove: Callable[[Removal], Removal]
    """Delete what the plan names, and nothing else; what was deleted. Raises AmptuiError, also for a run that
    has changed since. Both may take long, and are called in a thread."""
    host: str = ""
    """The other machine that the runs are on: their files cannot be read here."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the user wants to do with which runs."""

    action: Literal["attach", "replay", "compare"]
    runs: Sequence[str]
