"""The runs of this machine as the list has them: live ones first, a row from both ends of a journal."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from amptui.records.ranks import RankLost
from amptui.records.run import Note, Record, RunFailed, RunFinished
from amptui.reports.run_list import read_row, runs_here
from amptui.runs.kept_run import STALLED_SECONDS
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir, default_base
from tests.builders import write_journal
from tests.golden import Goldens
from tests.runs.test_kept_runs import sample
from tests.telemetry.record_samples import run, steps


def kept(folder: Path, records: Sequence[Record] = (), *, written: float | None = None) -> Path:
    write_journal(folder, records)
    if written is not None:
        os.utime(RunDir(folder).journal_path, (written, written))
    return folder


def trained(until: float) -> list[Record]:
    """Six steps of a second each, the last of which ended ``until``."""
    numbers = range(1, 7)
    times, losses = [until - 6 + n for n in numbers], [6.0 / n for n in numbers]
    return [run(time=until - 6), *steps(1, 6, time=times, step_seconds=1.0, loss=losses)]


def test_live_runs_come_first_and_keep_their_places() -> None:
    base = default_base()
    first, second = kept(base / "first", written=5.0), kept(base / "second", written=4.0)
    kept(base / "old", written=10.0)
    kept(base / "newest", written=20.0)
    with RunLock.take(first), RunLock.take(second):
        os.utime(RunDir(first).lock_path, (100.0, 100.0))
        os.utime(RunDir(second).lock_path, (200.0, 200.0))
        for written in (30.0, 40.0):
            os.utime(RunDir(first).journal_path, (written, written))
            entries = runs_here()
            assert [Path(entry.run).name for entry in entries] == ["second", "first", "newest", "old"]
            assert [entry.is_live for entry in entries] == [True, True, False, False]
    assert [Path(entry.run).name for entry in runs_here()] == ["first", "newest", "old", "second"]


LAST_WORDS: dict[str, list[Record]] = {
    "nothing": [],
    "its end": [RunFinished(time=8.0, steps=6, seconds=6.0, reason="done")],
    "an error": [RunFailed(time=8.0, step=6, error="out of\nmemory", traceback="")],
    "an error's note": [Note(time=9.0, severity="error", text="CUDA error: ECC\nTraceback\n")],
    "a lost rank": [RankLost(time=9.0, step=6, rank=1, host="b", cause="killed", detail="signal 9")],
    "a warning": [Note(time=9.0, severity="warning", text="no X-ray"), sample(time=10.0)],
}


def test_a_row_says_how_a_run_stands_and_why_it_died(goldens: Goldens, tmp_path: Path) -> None:
    """A step that arrived late does not make it live on, one that was made after its last words does."""
    lines = [f"no journal: {read_row(str(tmp_path / 'none'))}"]
    for name, records in LAST_WORDS.items():
        for later in ([], steps(7, 7, time=8.5), steps(7, 7, time=11.0)):
            folder = kept(tmp_path / f"{len(lines)}", [*trained(8.0), *records, *later], written=20.0)
            lines += [f"{name}, step 7 at {later[0].time if later else None}: {read_row(str(folder))}"]
    goldens.check("reports/run list rows", "\n".join(lines))


def test_a_live_row_says_so_and_when_it_has_stalled(tmp_path: Path) -> None:
    now = time.time()
    live, stalled = (
        kept(tmp_path / "a", trained(now)),
        kept(tmp_path / "b", trained(now - STALLED_SECONDS - 60)),
    )
    with RunLock.take(live), RunLock.take(stalled):
        row = read_row(str(live))
        assert row.state == "running"
        assert row.seconds is not None
        assert row.seconds >= 6.0
        assert str(os.getpid()) in row.detail
        assert read_row(str(stalled)).state == "stalled"
