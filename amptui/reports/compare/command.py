"""The command: finds the runs, reads them, and prints or writes their comparison."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from amptui.base import strictjson
from amptui.base.errors import RunFolderError, UsageError
from amptui.base.prompt import put, say
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.tables import as_json, plain_lines
from amptui.reports.compare.trace import RunFigures, figures_of
from amptui.reports.export.exporting import refuse_own_files, write_file
from amptui.runs.find import find_run, name_of
from amptui.runs.journal import JournalReader
from amptui.runs.lock import holder
from amptui.runs.rundir import RunDir

MAX_RUNS = 26
"""As many as there are letters to name groups with."""


def compare(
    runs: Sequence[str],
    *,
    json: bool = False,
    html: Path | None = None,
    target_loss: float | None = None,
    trust: bool = False,
) -> int:
    """Compare ``runs`` as they are now, each a folder, a journal or a name; return the exit status.

    As tables and a verdict, with ``json`` as one JSON object, with ``html`` as a page with curves. Raises
    ``UsageError`` for fewer than two runs, for one that does not exist, and for a page in place of a file of
    a run, and ``RunFolderError`` for a run that cannot be read.
    """
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs", hint="`amptui runs` lists those that there are")
    if len(runs) > MAX_RUNS:
        raise UsageError(f"at most {MAX_RUNS} runs can be compared, not {len(runs)}", hint="name fewer")
    journals = [find_run(text, trust=trust) for text in runs]
    if html is not None:
        refuse_own_files([("--html", html)], journals)
    comparison = read_all(journals, target=target_loss)
    if html is not None:
        from amptui.reports.compare.compare_page import page

        write_file(html, page(comparison))
    if json:
        put(strictjson.line(as_json(comparison)))
    elif html is not None:
        say(f"compared {len(journals)} runs: {html}")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        say(*plain_lines(comparison, width))
    return 0


def read_all(journals: Sequence[Path], *, target: float | None) -> Compared:
    """The comparison of the runs as they are now, each with a name of its own. Raises ``RunFolderError``."""
    names = [name_of(journal) for journal in journals]
    unique = [
        name if names.count(name) == 1 else f"{journal.parent.name}/{name}"
        for journal, name in zip(journals, names, strict=True)
    ]
    return compared([*map(_read, journals, unique)], target=target)


def _read(journal: Path, name: str) -> RunFigures:
    """One run. Raises ``RunFolderError`` for a journal without any record, unless its run has just begun."""
    reader = JournalReader(journal)
    # A journal under a name of its own is a copy: the folder's lock is not its.
    is_live = journal == RunDir(journal.parent).journal_path and holder(journal.parent) is not None
    figures = figures_of(reader, str(journal.parent), name, is_live=is_live)
    if figures.view.run is None and not figures.view.step and not is_live:
        raise RunFolderError(f"{journal} holds no records", hint=reader.passed_over)
    return figures if is_live else replace(figures, passed_over=reader.passed_over)
