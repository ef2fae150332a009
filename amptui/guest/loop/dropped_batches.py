"""Tells of bad batches that somebody else's loop leaves out: gradients that it clears before any step."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from amptui.guest.loop.pass_account import DroppedPasses
from amptui.guest.loop.row_sender import RowSender
from amptui.records.own_loop import GradientsDropped

_STEPS_OF_A_RULE = 3
"""A loop that drops gradients before so many steps in a row does so as a rule, as from its first step on."""


class DroppedBatches:
    """Those of one optimizer; tells them from passes whose gradients the loop clears as a rule."""

    def __init__(self, optimizer: str, sender: RowSender, emit: Callable[[GradientsDropped], object]) -> None:
        self._optimizer = optimizer
        self._sender = sender
        self._emit = emit
        self.sites: set[int] = set()
        """Where the passes of the newest step with any ran."""
        self._last_step = -1
        self._streak_step = 0
        """The first of the newest steps in a row after each of which gradients were dropped."""

    def take(self, dropped: DroppedPasses, step: int) -> None:
        """Gradients were cleared after ``step``: tell it if they would usually have made a step."""
        if not self._is_bad_batch(dropped, step):
            return
        passes = dropped.passes
        loss = None if passes.absence else passes.loss
        self._sender.send_others([] if loss is None else [loss], partial(self._report, step, passes.count))

    def _report(self, step: int, count: int, row: Sequence[float] | None, _: float | None) -> None:
        loss = None if row is None or not len(row) else float(row[0])
        now = time.time()
        self._emit(GradientsDropped(time=now, step=step, loss=loss, passes=count, optimizer=self._optimizer))

    def _is_bad_batch(self, dropped: DroppedPasses, step: int) -> bool:
        """Whether they ran where those of steps run, and gradients are not dropped before every step."""
        if step > self._last_step + 1:
            self._streak_step = step
        self._last_step = step
        is_rule = self._streak_step == 0 or step - self._streak_step >= _STEPS_OF_A_RULE
        return not (dropped.is_others or is_rule) and bool(dropped.passes.sites & self.sites)
