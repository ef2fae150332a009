"""Which recorded run a person means: by its folder, its journal, or the name it has among the kept runs."""

import re
from pathlib import Path

from amptui.errors import RunFolderError, UsageError
from amptui.runs.rundir import RunDir, default_base, reason

_TIME_OF_A_NAME = r"-\d{8}-\d{6}(-\d+)?"
"""What a kept run's name has after its model's, as ``create_run_dir`` gives it."""


def find_run(text: str) -> Path:
    """The journal of the run that ``text`` names; the newest kept run's when it is empty.

    ``text`` is a run's folder, a journal file, the name of a kept run, or the name of a model, for its newest
    run. Raises ``UsageError`` where there is no such run, ``RunFolderError`` for a folder without a journal.
    """
    if not text:
        return _newest(_kept_runs(), f"no run is kept in {default_base()} yet")
    path = Path(text).expanduser()
    if path.exists():
        return journal_of(path)
    if len(path.parts) == 1:
        kept = [run for run in _kept_runs() if _is_called(run.path.name, text)]
        return _newest(kept, f"no run {text!r}")
    raise UsageError(f"no run {text!r}", mend="check the path")


def journal_of(run: Path) -> Path:
    """The journal of a run that is given as its folder or as the journal itself.

    Raises ``RunFolderError`` for a folder without a journal.
    """
    if not run.is_dir():
        return run
    journal = RunDir(run).journal_path
    if not journal.is_file():
        raise RunFolderError(
            f"{run} holds no {journal.name}", mend="give the folder of a run, or its journal"
        )
    return journal


def name_of(journal: Path) -> str:
    """What a run is called by its files: its folder's name, or that of a journal that was renamed."""
    if journal.name != RunDir(journal.parent).journal_path.name:
        return journal.stem
    return journal.resolve().parent.name or journal.stem


def _kept_runs() -> list[RunDir]:
    base = default_base()
    try:
        folders = [RunDir(path) for path in base.iterdir()] if base.is_dir() else []
    except OSError as error:
        raise RunFolderError(f"cannot read {base}: {reason(error)}") from error
    return [folder for folder in folders if folder.journal_path.is_file()]


def _is_called(name: str, text: str) -> bool:
    return name == text or re.fullmatch(re.escape(text) + _TIME_OF_A_NAME, name) is not None


def _newest(runs: list[RunDir], nothing: str) -> Path:
    """The journal that was written last."""
    journals = [run.journal_path for run in runs]
    if not journals:
        raise UsageError(nothing, mend="give a run's folder, its journal.jsonl or its name")
    return max(journals, key=lambda journal: (journal.stat().st_mtime_ns, journal))
