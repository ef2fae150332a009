"""Finds the user's runs: the saved ones, newest first, and the one that a folder, journal or name means."""

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

from amptui.base.errors import RunFolderError, UsageError, did_you_mean
from amptui.base.runfiles import is_another_users
from amptui.runs.kept_run import KeptRun, look_at
from amptui.runs.lock import holder, refuse_running_elsewhere
from amptui.runs.rundir import (
    JOURNAL_NAME,
    LOCK_NAME,
    RunDir,
    default_base,
    expanded,
    is_of_a_script,
    open_run_dir,
    reason,
    resume_command,
    run_argument,
)

_TIME_OF_A_NAME = re.compile(r"(-\d{8}-\d{6}(-\d+)?)?")
"""The part of a saved run's name after the model's, as ``create_run_dir`` writes it, if any."""

_MAX_NAMED = 3
"""Matching runs that a message lists at most."""

_GIVE = "give a run's folder, its journal.jsonl or its name"

_DIED = "died unexpectedly (as SIGKILL leaves it: out of memory, a scheduler, or `kill -9`)"

_NOTHING = "start a new run, or choose another with --resume RUN"


def find_run(text: str, *, trust: bool = False) -> Path:
    """The journal of the run that ``text`` names; that of the newest saved run if it is empty.

    One of another user is refused without ``trust``: what is in it is not checked number by number.

    ``text`` is a run's folder, a journal file, the name of a saved run or an unambiguous beginning of it, or
    the name of a model for its newest run. Raises ``UsageError`` if there is no such run, ``RunFolderError``
    for a folder without a journal.
    """
    path = _existing(text)
    journal = journal_of(_newest_of(_named(text)).path if path is None else path)
    with suppress(OSError):  # whoever reads it says why that cannot be
        if not trust and is_another_users(journal):
            raise RunFolderError(f"{journal} is another user's", hint="add --trust to read it")
    return journal


def resumable(text: str, *, say: Callable[[str], object] = str) -> RunDir:
    """The run that ``text`` names as for :func:`find_run`, if it can be resumed.

    Where that is the newest run, of all or of a model, it is the newest one that can: runs of scripts, and
    those without a checkpoint, are passed over. ``say`` takes which run it is, unless ``text`` is its name
    or a path. Raises ``UsageError`` if there is no such run, and ``RunFolderError`` if it is running or has
    nothing to resume from. If it has just been written on another machine, this waits some seconds to see
    whether it is still running there.
    """
    path = _existing(text)
    run_dir, why = _newest_resumable(text) if path is None else (_folder(path), "")
    trains = holder(run_dir.path)
    if trains is not None:
        watch = f"watch it with `amptui attach {run_argument(run_dir.path)}`"
        raise RunFolderError(f"{run_argument(run_dir.path)} is still running, {trains}", hint=watch)
    opened = open_run_dir(run_dir.path)
    lack = _lack(run_dir)
    if lack:
        raise RunFolderError(f"cannot resume {run_dir.path}: it {lack}", hint=_NOTHING)
    refuse_running_elsewhere(run_dir.path)
    if path is None and run_dir.path.name != text:
        say(f"resuming {run_dir.path.name}" + (f": {why}" if why else ""))
    return opened


def live_run(text: str) -> RunDir:
    """The live run that ``text`` names as for :func:`find_run`; the one started last if it is empty.

    Raises ``UsageError``, with a hint, if no live run matches or several do.
    """
    if (path := _existing(text)) is not None:
        folders = [str(_folder(path).path)]
    elif text:
        folders = [f"{default_base()}{os.sep}{name}" for name in _meant(text)]
    else:
        folders = [folder for folder in _saved_folders() if _signed(folder)]
    held = [look_at(RunDir(Path(folder))) for folder in folders if holder(folder) is not None]
    live = [run for run in held if run.is_live]  # one may have just ended
    if not live:
        names = [] if text else kept_names()
        newest = RunDir(Path(folders[0])) if text else _newest_of(names) if names else None
        raise _not_live(None if newest is None else look_at(newest), is_named=bool(text))
    if text and len(live) > 1:
        raise _several([run.name for run in live], f"{text!r} matches {len(live)} live runs")
    run = max(live, key=lambda run: (run.is_here, run.began or 0.0))
    if not run.is_here and run.host:  # without one it has just locked the folder, and not signed yet
        raise UsageError(f"{run.name} is running on {run.host}", hint="log in there to watch it")
    return RunDir(run.folder)


def journal_of(run: Path) -> Path:
    """The journal of ``run``, which is its folder, the journal itself or a link to it.

    Raises ``RunFolderError`` for a folder without a journal, or one that cannot be read.
    """
    # Unlike Path's, these functions do not raise for a folder that cannot be read or a link to itself.
    if not os.path.isdir(run):  # noqa: PTH112
        return Path(os.path.realpath(run)) if os.path.islink(run) else run  # noqa: PTH114
    journal = RunDir(run).journal_path
    try:
        is_there = stat.S_ISREG(journal.stat().st_mode)
    except FileNotFoundError:
        is_there = False
    except OSError as error:
        raise RunFolderError(f"cannot read {journal}: {reason(error)}") from error
    if not is_there:
        raise RunFolderError(f"{run} has no {journal.name}", hint="give the folder or the journal of a run")
    return journal


def name_of(journal: Path) -> str:
    """The name of a run: its folder's, or the journal's if that was renamed."""
    if journal.name != RunDir(journal.parent).journal_path.name:
        return journal.stem
    return journal.resolve().parent.name or journal.stem


# Paths are text here: with 20,000 runs, Path and RunDir would take as long as the file system.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run of a list, before any of its files is opened."""

    run: str
    """Its folder: what commands call it, and what tells it from all others."""
    name: str
    is_live: bool
    """Whether a process trains it now."""
    written: float
    """Unix seconds; while they and ``is_live`` stay the same, so does a run that has ended."""
    read: Callable[[], KeptRun]
    """Never raises."""


def listed_runs() -> list[RunEntry]:
    """All saved runs: live ones first, the last started one at the top, then the others by age.

    One that could not sign its lock, as the disk was full, does not count as live. The order of live ones
    stays as they are written. Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    entries = list[tuple[float, RunEntry]]()
    for written, folder in _dated_folders():
        signed, name = _signed(folder), os.path.basename(folder)  # noqa: PTH119
        # Only a lock that names a process is opened: that would take longer than all else.
        is_live = signed > 0 and holder(folder) is not None
        read = partial(_read, folder)
        entry = RunEntry(run=folder, name=name, is_live=is_live, written=written, read=read)
        entries.append((signed if is_live else 0.0, entry))
    return [entry for _, entry in sorted(entries, key=itemgetter(0), reverse=True)]


def _read(folder: str) -> KeptRun:
    return look_at(RunDir(Path(folder)))


def kept_names(matches: Callable[[str], object] | None = None) -> list[str]:
    """The names of all saved runs, or those for which ``matches`` is true; the one written last first.

    Raises ``RunFolderError`` if the folder of all runs cannot be read.
    """
    return [os.path.basename(folder) for _, folder in _dated_folders(matches)]  # noqa: PTH119


def _dated_folders(matches: Callable[[str], object] | None = None) -> list[tuple[float, str]]:
    """When each saved run was last written, and its folder; the newest first.

    One that has no journal, or whose folder cannot be read, counts as written when its folder last changed:
    it may be starting.
    """
    folders = _saved_folders(matches)
    dated = [(when, folder) for folder in folders if (when := _last_change(folder)) is not None]
    return sorted(dated, reverse=True)


def _saved_folders(matches: Callable[[str], object] | None = None) -> list[str]:
    base = default_base()
    try:
        with os.scandir(base) as entries:
            return [entry.path for entry in entries if matches is None or matches(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunFolderError(f"cannot read {base}: {reason(error)}") from error


def _last_change(folder: str) -> float | None:
    """When the run in ``folder`` was last written, in Unix seconds; None if there is none."""
    try:
        return os.lstat(f"{folder}{os.sep}{JOURNAL_NAME}").st_mtime
    except (FileNotFoundError, NotADirectoryError):
        if not RunDir(Path(folder)).holds_a_run:
            return None
    except OSError:
        pass  # whether it is a run cannot be known, so the list says that it cannot be read
    with suppress(OSError):  # deleted meanwhile
        return os.lstat(folder).st_mtime
    return None


def _signed(folder: str) -> float:
    """When a process signed the lock, in Unix seconds; 0 if none did, or released it since."""
    try:
        status = os.lstat(f"{folder}{os.sep}{LOCK_NAME}")
    except OSError:
        return 0.0
    return status.st_mtime if status.st_size else 0.0


def _existing(text: str) -> Path | None:
    """``text`` as a path, if it exists."""
    path = expanded(Path(text))
    # Unlike Path.exists, this returns False for a path that is too long or invalid.
    return path if text and os.path.exists(path) else None  # noqa: PTH110


def _folder(path: Path) -> RunDir:
    return RunDir(path if path.is_dir() else path.parent)


def _newest_resumable(text: str) -> tuple[RunDir, str]:
    """The saved run that ``text`` names; the newest that can be resumed of all, or of a model.

    With it, why it is not the newest, if it is not. A training that is running is no reason to resume an
    older one: it is returned, and refused by the caller.
    """
    runs = [RunDir(default_base() / name) for name in _named(text)]
    why = "" if len(runs) == 1 else _lack(runs[0])
    if not why:
        return runs[0], ""
    newest = f"the newest, {runs[0].path.name}, {why}"
    for run_dir in runs[1:]:
        if not _lack(run_dir):
            return run_dir, newest
    raise RunFolderError(f"none of {len(runs):,} runs can be resumed: {newest}", hint=_NOTHING)


def _lack(run_dir: RunDir) -> str:
    """Why a run that is not running cannot be resumed; empty if it can."""
    if is_of_a_script(run_dir):
        return "is of a script, which amptui does not resume"
    if holder(run_dir.path) is not None:
        return ""
    if not run_dir.holds_checkpoints:
        return "has no checkpoints"
    return "" if run_dir.run_json_path.exists() else f"has no {run_dir.run_json_path.name}"


def _newest_of(names: list[str]) -> RunDir:
    """The first that has a journal; the first if all lack one."""
    runs = [RunDir(default_base() / name) for name in names]
    return next((run_dir for run_dir in runs if os.path.lexists(run_dir.journal_path)), runs[0])


def _named(text: str) -> list[str]:
    """The saved runs of which ``text`` names the newest, newest first; all if it is empty, at least one.

    Raises ``UsageError``.
    """
    if not text:
        names = kept_names()
        if not names:
            raise UsageError(f"no runs in {default_base()} yet", hint=_GIVE)
        return names
    names = _meant(text)
    if len(names) > 1 and not _is_called(names[0], text):
        raise _several(names, f"{text!r} matches {len(names)} runs")
    return names


def _meant(text: str) -> list[str]:
    """The names of the saved runs that match ``text``, newest first, at least one. Raises ``UsageError``.

    The one with that name, else those of that model, else those whose names begin with it.
    """
    if len(Path(text).parts) != 1:
        raise UsageError(f"no run {text!r}", hint="check the path")
    run_dir = RunDir(default_base() / text)
    if text not in (".", "..") and os.path.isdir(run_dir.path) and run_dir.holds_a_run:  # noqa: PTH112
        return [run_dir.path.name]
    names = kept_names(lambda name: _is_called(name, text)) or kept_names(lambda name: name.startswith(text))
    if not names:
        models = sorted({_TIME_OF_A_NAME.sub("", name) for name in kept_names()})
        raise UsageError(f"no run {text!r}", hint=did_you_mean(text, models, _GIVE))
    return names


def _is_called(name: str, text: str) -> bool:
    return name.startswith(text) and _TIME_OF_A_NAME.fullmatch(name, len(text)) is not None


def _several(names: list[str], what: str) -> UsageError:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return UsageError(f"{what}: {', '.join(names[:_MAX_NAMED])}{more}", hint="give more of the name")


def _not_live(run: KeptRun | None, *, is_named: bool) -> UsageError:
    if run is None:
        return UsageError("no run is live", hint="`amptui train MODEL` starts one")
    words = {"stopped": "was stopped", "died": _DIED, "unreadable": "cannot be read"}
    ended = f"{run.name}{' ' if is_named else ', '}{words.get(run.state, run.state)}"
    argument = run_argument(run.folder)
    hint = f"view it with `amptui replay {argument}`"
    if run.state not in ("finished", "unreadable") and RunDir(run.folder).checkpoints_path.is_dir():
        hint += f", or resume it with `{resume_command(run.folder)}`"
    return UsageError(ended if is_named else f"no run is live; the newest, {ended}", hint=hint)
