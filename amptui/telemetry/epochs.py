"""The epoch of the newest step, and how many of its steps are done."""

from dataclasses import dataclass

from amptui.telemetry.stretch import Stretch


@dataclass(slots=True, eq=False)
class EpochPlace:
    """Follows the epochs of the steps, and where each began if that is known."""

    number: int = 0
    """Counted from 1; 0 before the first step."""
    _first_step: int = 1

    def add(self, stretch: Stretch, steps_per_epoch: int | None) -> None:
        """Add a stretch of steps; ``steps_per_epoch`` is None if the data has no length."""
        if stretch.epoch == self.number:
            return
        previous, self.number = self.number, stretch.epoch
        if stretch.epoch == 1:
            self._first_step = 1
        elif previous + 1 == stretch.epoch and previous:
            self._first_step = stretch.first_step
        elif steps_per_epoch is not None:
            # The epoch's first steps were never seen: a resumed run, or a journal without its beginning.
            self._first_step = min(stretch.first_step, (stretch.epoch - 1) * steps_per_epoch + 1)
        else:
            self._first_step = stretch.first_step

    def steps_done(self, step: int) -> int:
        """How many of the epoch's steps are done after ``step``."""
        return max(0, step - self._first_step + 1) if self.number else 0
