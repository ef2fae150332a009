"""Exports a journal to all requested formats in one pass."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from amptui.base.errors import AmptuiError, RunFolderError, UsageError
from amptui.base.runfiles import temporary_beside
from amptui.records.steps import in_batches
from amptui.reports.export.page import RecordedRun, page
from amptui.reports.export.table import write_steps
from amptui.runs.find import journal_of, name_of
from amptui.runs.journal import JournalReader
from amptui.runs.rundir import reason, why_owned

_HINT = "choose another path, or free some space"

EVENT_FILE_NAME = "events.out.tfevents.amptui"
"""Fixed, so that a second export replaces the first. TensorBoard requires ``tfevents``."""


def export(
    run: Path, *, csv: Path | None = None, tensorboard: Path | None = None, html: Path | None = None
) -> RecordedRun:
    """Export ``run``, a run's folder or its journal, to each path that was given; return what was read.

    ``csv`` and ``html`` are files; ``tensorboard`` is a folder in which the run gets one of its own. Existing
    files are replaced atomically. Raises ``RunFolderError`` for a run that cannot be read or has no records,
    ``UsageError`` for a file of any run, and ``AmptuiError`` if a file cannot be written or the package
    ``tensorboard`` is missing.
    """
    path = journal_of(run)
    recording = RecordedRun(name_of(path), str(path.parent))
    event_file = None if tensorboard is None else tensorboard / recording.name / EVENT_FILE_NAME
    places = (("--csv", csv), ("--tensorboard", event_file), ("--html", html))
    refuse_own_files([(option, out) for option, out in places if out is not None], [path])
    if event_file is not None:
        from amptui.reports.export.tensorboard import write_events
    reader = JournalReader(path)
    for batch in in_batches(reader):
        recording.add(batch)
    recording.passed_over = reader.passed_over
    if recording.is_empty:
        raise RunFolderError(f"{path} holds no records", hint=recording.passed_over)
    if html is not None:
        write_file(html, page(recording))
    # Once more for each: a table's head has all columns.
    if csv is not None:
        with _replacing(csv) as beside:
            write_steps(beside, JournalReader(path), recording.late_columns, recording.first_label)
    if event_file is not None:
        with _replacing(event_file) as beside:
            write_events(beside, iter(JournalReader(path)))
    return recording


# ------------------------------------------------------------------------------- atomic files


def refuse_own_files(places: Iterable[tuple[str, Path]], read: Sequence[Path]) -> None:
    """Raise ``UsageError`` for a file of a run among ``places``, each with the option that names it.

    ``read`` are the journals of the runs that are read.
    """
    for option, out in places:
        if trouble := why_owned(out, read=read):
            raise UsageError(f"cannot write {option} {out}: {trouble}", hint="choose another path")


def write_file(out: Path, text: str) -> None:
    """Write ``text`` to ``out``, replacing it atomically. Raises ``AmptuiError`` if that is not possible."""
    with _replacing(out) as beside:
        beside.write_text(text, encoding="utf-8", errors="replace")


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A temporary file in the folder of ``out``: replaces ``out`` at the end, is removed after an error.

    Creates missing folders. Raises ``AmptuiError`` for an ``OSError``, and if ``out`` is not a file. A
    symbolic link is none: in a shared folder it may be another user's.
    """
    try:
        if out.is_symlink() or (out.exists() and not out.is_file()):
            what = "a symbolic link" if out.is_symlink() else "not a file"
            raise AmptuiError(f"cannot write {out}: it is {what}", hint=_HINT)
        out.parent.mkdir(parents=True, exist_ok=True)
        # Not named after the target: TensorBoard reads every file with "tfevents" in its name.
        temporary = temporary_beside(out)
        # Exclusively: in a shared folder such as /tmp, somebody's link could be there.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield temporary
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise AmptuiError(f"cannot write {out}: {reason(error)}", hint=_HINT) from error
