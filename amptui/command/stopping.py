"""A training that was asked to stop: how long it is waited for, and what is lost if it is not."""

import math
import signal
import time
from collections.abc import Callable

from amptui.engine.worker import TrainingThread
from amptui.records.control import Control
from amptui.telemetry.view import SessionView

RANKS_PATIENCE_SECONDS = 12.0
"""How long a rank is waited for once another one has ended, or before all have met: the reason has to be
found. It is less than the time after which a signal ends a process without a word."""

HURRIED_SECONDS = 5.0
"""How long a trainer may take to stop whose run nobody keeps."""

_LOOK_INTERVAL_SECONDS = 0.5


class Stopping:
    """Waits for a trainer's end: for its step however long, unless somebody asks to end at once.

    ``timeout_seconds`` limits that, but not the time in which a checkpoint is written. ``tell`` gets what is
    awaited, in words, if it takes longer than a moment.
    """

    def __init__(
        self,
        thread: TrainingThread,
        control: Control,
        *,
        timeout_seconds: float | None = None,
        tell: Callable[[str], object] = lambda _words: None,
    ) -> None:
        self._thread = thread
        self._control = control
        self._timeout_seconds = math.inf if timeout_seconds is None else timeout_seconds
        self._tell = tell
        self._over = False
        self.waited_seconds = 0.0
        """How long the trainer has been waited for."""

    @property
    def waits(self) -> bool:
        """Whether the process must not exit yet, by the trainer's leave."""
        return not (self._over or self._thread.ended.is_set())

    def wait(self, *, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the trainer to stop; return whether it did.

        While ``hurried()`` is true, no longer than ``HURRIED_SECONDS``.
        """
        began, last_words = time.monotonic(), ""
        while not self._thread.join(_LOOK_INTERVAL_SECONDS):
            self.waited_seconds = time.monotonic() - began
            if self._is_given_up(HURRIED_SECONDS if hurried() else self._timeout_seconds):
                self._over = True
                return False
            if not self._thread.saving and (words := self._thread.awaited) != last_words:
                last_words = words
                self._tell(words)
        self._over = True
        return True

    def why_given_up(self) -> str:
        """Why the trainer is left, and what it is doing: ``ended at once, in step 20``."""
        if self._control.ends_at_once:
            return f"ended at once, {self._thread.doing}"
        return f"the trainer did not stop within {self.waited_seconds:.0f} s, {self._thread.doing}"

    def _is_given_up(self, limit_seconds: float) -> bool:
        if self._control.ends_at_once:
            return True
        if self._thread.saving:
            return False
        if self.waited_seconds >= limit_seconds:
            return True
        return self.waited_seconds >= RANKS_PATIENCE_SECONDS and not self._thread.others_are_there


def lost_words(view: SessionView, step: int, resume_command: str) -> str:
    """Which steps up to ``step``, the last that was finished, a run loses that ends without a checkpoint."""
    kept = 0 if view.checkpoint is None else view.checkpoint.step
    lost = "no finished step is lost"
    if step > kept:
        lost = f"step {step:,} is lost" if step == kept + 1 else f"steps {kept + 1:,} to {step:,} are lost"
    if not kept:
        return f"{lost}, there is no checkpoint"
    return f"{lost}; to resume from step {kept:,}: {resume_command}"


def signal_of(reason: str | None) -> int:
    """The number of the signal that asked for a stop; a key on a screen stands for Ctrl+C."""
    return signal.Signals.__members__.get(reason or "", signal.SIGINT)
