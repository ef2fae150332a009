"""What the user asked for: set by a front or a signal, read by the trainer at step boundaries."""

import threading
from typing import Literal

Probe = Literal["x-ray", "trace"]
"""A measurement that a person can ask for: the same batch in both precisions, or hooks on every module."""


class Control:
    """Requests that cross from a front's thread to the trainer's.

    Setting a request never blocks. The trainer reads them only between two optimizer steps, so that a
    request never cuts a step in half.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._precision: str | None = None
        self._paused = False
        self._stop_reason: str | None = None
        self._probes: set[Probe] = set()
        self._comparison: tuple[str, ...] | None = None
        self._checkpoint = False
        self.attention = False
        """Whether anything was asked for since the trainer last looked; it clears this before it reads."""
        self.is_copy = False
        """Whether this process was forked off the one that trains: it must not train on."""

    def become_copy(self) -> None:
        """In a forked process: what is asked for is asked of the other one."""
        self._changed = threading.Condition()  # somebody may have held it, who is not here
        self.is_copy = self.attention = True

    def request_checkpoint(self) -> None:
        """Ask for a checkpoint after the current step."""
        with self._changed:
            self._checkpoint = True
            self._notify()

    def request_probe(self, probe: Probe) -> None:
        """Ask for a measurement with the next step."""
        with self._changed:
            self._probes.add(probe)
            self._notify()

    def request_comparison(self, precisions: tuple[str, ...]) -> None:
        """Ask for these precisions to run in turns until their speeds are known; none of them ends that.

        The first is what the others are compared with. Asked for while one runs, it ends too.
        """
        with self._changed:
            self._comparison = precisions
            self._notify()

    def request_precision(self, precision: str) -> None:
        """Ask for the steps from the next boundary on to run in ``precision``; the last request wins."""
        with self._changed:
            self._precision = precision
            self._notify()

    def request_pause(self, paused: bool) -> None:
        """Ask the trainer to stand still after the current step, or to go on."""
        with self._changed:
            self._paused = paused
            self._notify()

    def request_stop(self, reason: str) -> None:
        """Ask for a clean end after the current step; the first reason is kept."""
        with self._changed:
            self._stop_reason = self._stop_reason or reason
            self._notify()

    def _notify(self) -> None:
        """Tell the trainer, whether it steps or stands still; the lock is held."""
        self.attention = True
        self._changed.notify_all()

    @property
    def requested_precision(self) -> str | None:
        """The precision last asked for and not yet taken."""
        return self._precision

    @property
    def paused(self) -> bool:
        """Whether a pause is asked for."""
        return self._paused

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end, or None while it should go on."""
        return self._stop_reason

    def take_precision(self) -> str | None:
        """The precision asked for since the last call; the trainer alone calls this."""
        if self._precision is None:
            return None
        with self._changed:
            precision, self._precision = self._precision, None
            return precision

    def take_comparison(self) -> tuple[str, ...] | None:
        """The comparison asked for since the last call; the trainer alone calls this."""
        if self._comparison is None:
            return None
        with self._changed:
            comparison, self._comparison = self._comparison, None
            return comparison

    def take_probe(self, probe: Probe) -> bool:
        """Whether ``probe`` was asked for since the last call; the trainer alone calls this."""
        if probe not in self._probes:
            return False
        with self._changed:
            self._probes.discard(probe)
            return True

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint was asked for since the last call; the trainer alone calls this."""
        if not self._checkpoint:
            return False
        with self._changed:
            self._checkpoint = False
            return True

    def wait_while_paused(self) -> None:
        """Block the caller until the pause ends or something else is asked for that does not wait for it."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    not self._paused
                    or self._stop_reason is not None
                    or self._precision is not None
                    or self._checkpoint
                )
            )
