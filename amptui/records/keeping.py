"""Records of what is saved, and what is not."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

UNSAVED_STATUS = 3
"""The exit status of a run that is done, but whose records or checkpoints are not all saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """All that training needs to go on after ``step`` is in a file, complete and on the disk."""

    time: float
    step: int
    name: str
    """The file's, in the run's folder of checkpoints."""
    size_bytes: int
    reason: Literal["asked", "epoch", "interval", "end"]
    blocked_seconds: float
    """How long it blocked training; the rest was written in the background."""
    seconds: float
    """From the step boundary until the file was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSaved:
    """The ``state_dict`` after ``step``, the run's last, is in a file of the user's."""

    time: float
    step: int
    path: str
    averaged: bool
    """Of the experiment's ``AveragedModel``, not of the model itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingChanged:
    """A part of the run is no longer saved, or is saved again; training continues either way."""

    time: float
    what: Literal["journal", "checkpoints", "run.json"]
    trouble: str
    """What is not kept and why, in one line; empty when all is kept again."""
    unsaved: int | None = None
    """Records, or checkpoints since the last one, that are not saved; 0 if only the file's name has changed,
    None if nobody counted."""


def unsaved_status(changes: Iterable[KeepingChanged]) -> int:
    """The exit status that follows from the newest change of each part: 0 if nothing is missing."""
    return UNSAVED_STATUS if any(change.trouble and change.unsaved != 0 for change in changes) else 0
