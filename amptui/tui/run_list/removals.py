"""Plans and does removals in threads: on a slow file system either may take long, and keys keep working."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from amptui.base.errors import AmptuiError
from amptui.tui.run_list.entry import RemovalPlan, RunEntry, RunSource

Outcome = RemovalPlan | AmptuiError
"""A plan, what was removed, or why it cannot be."""


class Removals:
    """The removals of one screen; used in the thread of its loop, which gets every outcome.

    A screen that closes abandons them: a removal that is cut off leaves a run that can be removed.
    """

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._planned = ""
        self._running: dict[str, RunEntry] = {}

    @property
    def running(self) -> Sequence[str]:
        """The runs that are being deleted, as ``RunEntry.run``."""
        return tuple(self._running)

    def plan(self, entry: RunEntry, take: Callable[[Outcome], object]) -> None:
        """Have ``take`` called with what removing the run would delete, unless that is forgotten before.

        Does nothing if it is being looked up.
        """
        if self._planned == entry.run:
            return
        self._planned = entry.run

        def take_if_wanted(outcome: Outcome) -> None:
            if self._planned == entry.run:
                self._planned = ""
                take(outcome)

        _in_thread(lambda: self._source.plan_removal(entry.run), take_if_wanted)

    def forget_plan(self) -> None:
        """The user went on to something else."""
        self._planned = ""

    def remove(self, entry: RunEntry, plan: RemovalPlan, take: Callable[[Outcome], object]) -> None:
        """Delete what ``plan`` names, then have ``take`` called with what was deleted."""
        self._running[entry.run] = entry

        def take_and_end(outcome: Outcome) -> None:
            del self._running[entry.run]
            take(outcome)

        _in_thread(lambda: self._source.remove(plan), take_and_end)

    def kept_in(self, entries: Sequence[RunEntry]) -> Sequence[RunEntry]:
        """``entries``, in which the runs that are being deleted stand as and where they did before.

        A removal holds a run's lock, changes its folder and deletes its journal: it would jump about.
        """
        if not self._running:
            return entries
        others = [entry for entry in entries if entry.run not in self._running]
        live = [entry for entry in others if entry.is_live]
        ended = [*(entry for entry in others if not entry.is_live), *self._running.values()]
        return [*live, *sorted(ended, key=lambda entry: -entry.written)]


def _in_thread(work: Callable[[], RemovalPlan], take: Callable[[Outcome], object]) -> None:
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            outcome: Outcome = work()
        except AmptuiError as error:
            outcome = error
        with suppress(RuntimeError):  # the screen has closed
            loop.call_soon_threadsafe(take, outcome)

    # A daemon: a file system that never answers must not keep the process.
    threading.Thread(target=run, name="amptui-removal", daemon=True).start()
