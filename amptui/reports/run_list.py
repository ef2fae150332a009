"""The runs of this machine for the list on the screen: their entries, their rows, and their removal."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from amptui.base import units
from amptui.base.errors import RemoteError
from amptui.base.runfiles import Removal
from amptui.base.text import one_line
from amptui.diagnosis.words import long_words
from amptui.records.ranks import RankLost
from amptui.runs.find import listed_runs
from amptui.runs.kept_run import NOTHING, KeptRun, NewestSteps, look_at, newest_steps, silent_seconds
from amptui.runs.remote import Remote, remote_argument, remote_runs
from amptui.runs.removal import plan_removal, remove
from amptui.runs.rundir import RunDir
from amptui.telemetry.rank_watch import judge_ranks
from amptui.tui.run_list.reader import RunEntry, RunRow, RunSource

_REMOTE_SECONDS = 10.0
"""How often another machine is asked for its runs: each time is a connection of ssh's."""


def runs_here() -> RunSource:
    """All saved runs of this user on this machine."""
    return RunSource(entries=_entries, plan_removal=lambda folder: plan_removal(Path(folder)), remove=remove)


def runs_on(remote: Remote) -> RunSource:
    """All runs of the user on another machine, asked for again every ``_REMOTE_SECONDS``.

    The first time ssh may ask for a password on the terminal. Raises ``RemoteError``.
    """
    source = _RemoteRuns(remote)

    def refused(_run: str | Removal) -> Removal:
        raise RemoteError(
            f"the run is on {remote.host}", hint=f"remove it there: ssh {remote.host}, then amptui"
        )

    return RunSource(entries=source.entries, plan_removal=refused, remove=refused, host=remote.host)


class _RemoteRuns:
    """The newest answer of another machine; used by one thread after another."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._trouble = ""
        self._runs: Sequence[KeptRun] = ()
        self._renew(batch=False)

    def entries(self) -> Sequence[RunEntry]:
        """The newest ones; of a machine that does not answer, the last ones with the reason."""
        if time.monotonic() >= self._due:
            try:
                self._renew(batch=True)
            except RemoteError as error:
                self._trouble = self._trouble or f"not renewed since {time.strftime('%H:%M:%S')}: {error}"
        entries = []
        for run in self._runs:
            # Its files are on the other machine.
            row = _row(run, replace(NOTHING, last_time=run.written), None, time.time())
            if self._trouble:
                row = replace(row, detail=one_line(self._trouble))
            entry = RunEntry(
                run=str(run.folder),
                name=remote_argument(run.folder),
                is_live=run.is_live,
                written=run.written or 0.0,
                read=partial(lambda row: row, row),
            )
            entries.append(entry)
        return sorted(entries, key=lambda entry: (not entry.is_live, -entry.written))

    def _renew(self, *, batch: bool) -> None:
        self._due = math.inf
        try:
            self._runs = remote_runs(self._remote, batch=batch)
            self._trouble = ""
        finally:
            self._due = time.monotonic() + _REMOTE_SECONDS


def _entries() -> Sequence[RunEntry]:
    """Raises ``RunFolderError`` if the folder of all runs cannot be read."""
    return [
        RunEntry(
            run=folder,
            name=Path(folder).name,
            is_live=is_live,
            written=written,
            read=partial(read_row, folder),
        )
        for folder, is_live, written in listed_runs()
    ]


def read_row(folder: str) -> RunRow:
    """The row of the run in ``folder``, read from both ends of its journal. Never raises."""
    run_dir, now = RunDir(Path(folder)), time.time()
    run = look_at(run_dir)
    newest = newest_steps(run_dir.journal_path)
    return _row(run, newest, silent_seconds(run, newest, now), now)


def _row(run: KeptRun, newest: NewestSteps, silent: float | None, now: float) -> RunRow:
    seconds, until = None, now if run.is_live else newest.last_time
    if run.started is not None and until is not None:
        seconds = max(0.0, until - run.started)
    return RunRow(
        state="stalled" if silent is not None else run.state,
        model=run.model,
        precision=run.precision,
        step=run.step,
        total_steps=run.total_steps,
        losses=newest.losses,
        seconds=seconds,
        written=run.written,
        detail=_detail(run, newest, silent),
    )


def _detail(run: KeptRun, newest: NewestSteps, silent: float | None) -> str:
    if run.error is not None:
        return one_line(run.error)
    if run.state == "died":  # why, by its own last words; empty if it was killed without any
        if isinstance(newest.trouble, RankLost):
            return one_line(long_words(judge_ranks(newest.trouble)))
        return "" if newest.trouble is None else one_line(newest.trouble.text.partition("\n")[0])
    if silent is not None:
        return f"nothing new for {units.duration(silent)}"
    if run.is_live:
        place = "" if run.is_here else f" on {run.host}"
        return one_line(f"{run.device or 'starting'}{place}, pid {run.pid}" if run.pid else f"live{place}")
    return one_line(run.device_name or "")
