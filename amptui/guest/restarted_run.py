"""The run of a script whose ranks torchrun has started again: it goes on in its folder, steps and all."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from amptui.diagnosis.rank_words import rank_lost
from amptui.engine.description import describe_resumption
from amptui.records.ranks import RankLost
from amptui.records.run import Record, RunFailed, RunFinished, RunResumed, RunStarted
from amptui.records.steps import Steps
from amptui.runs.reader import JournalReader
from amptui.runs.rundir import RunDir

_UNKNOWN_CAUSE = "a rank ended"
"""torchrun tells the ranks that it starts again nothing of those before."""


class RestartedRun:
    """What rank 0's new process adds to the journal of the one before.

    A framework knows which of the script's steps it makes; any other loop counts from 1 again, whatever it
    has read from a checkpoint of its own. ``restart`` counts the starts of the ranks after the first,
    ``take`` gets the records with the run's steps, and ``cut_after`` cuts the journal.
    """

    def __init__(
        self,
        run_dir: RunDir,
        restart: int,
        take: Callable[[Record], object],
        cut_after: Callable[[int], int | None],
    ) -> None:
        self._restart = restart
        self._take = take
        self._cut_after = cut_after
        self._last_steps, self._cause = _read_journal(run_dir)
        self._last_step = self._last_steps.get("", 0)
        self._counts_on = False

    def emit(self, record: Record) -> None:
        """Take a record with the steps of this process."""
        if self._counts_on:
            record = _later(record, self._last_steps.get(_optimizer_of(record), 0))
        self._take(record)

    def begin(self, started: RunStarted, step: int) -> None:
        """Emit the first record, at the end of the first step, which the loop counts as ``step``.

        Raises RunFolderError if the journal cannot be cut.
        """
        resumes_after = step - 1 if step > 1 else self._last_step
        lost_steps = self._cut_after(resumes_after)
        if lost_steps is None:
            self._take(started)  # the ranks before made no step
            return
        why, again = self._cause or _UNKNOWN_CAUSE, self._restart
        resumed = describe_resumption(started, None, lost_steps=lost_steps, restarts=again, cause=why)
        self._take(replace(resumed, step=resumes_after))
        self._counts_on = step == 1


def _read_journal(run_dir: RunDir) -> tuple[dict[str, int], str]:
    """The last step of each optimizer of the ranks before, and which rank was lost; reads all of it."""
    last_steps: dict[str, int] = {}
    cause = ""
    for record in JournalReader(run_dir.journal_path):
        if isinstance(record, Steps):
            last_steps[record.optimizer] = record.last_step
        elif isinstance(record, RunStarted | RunResumed):
            cause = ""
        elif isinstance(record, RankLost):
            cause = cause or rank_lost(record)
    return last_steps, cause


def _optimizer_of(record: Record) -> str:
    return "" if isinstance(record, RunStarted) else getattr(record, "optimizer", "")


def last_before_restart(failed: RunFailed, host: str) -> RankLost:
    """Rank 0's failure, if torchrun starts the ranks again: the run is not over."""
    return RankLost(
        time=failed.time, step=failed.step, rank=0, host=host, cause="failed", detail=failed.error
    )


def _later(record: Record, steps: int) -> Record:
    """``record`` with its step, if it has one, so many ``steps`` later."""
    if isinstance(record, Steps):
        return replace(record, first_step=record.first_step + steps)
    name = "steps" if isinstance(record, RunFinished) else "step"
    step: Any = getattr(record, name, None)
    return record if step is None else replace(record, **{name: step + steps})
