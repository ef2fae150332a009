"""What `amptui run` hands to the script's process, and how that process takes it."""

import os
from collections.abc import Mapping
from contextlib import suppress

from amptui.base.notify_url import take_url
from amptui.base.stacks import print_stacks_if_killed

RUN_DIR_VARIABLE = "AMPTUI_RUN_DIR"
"""The environment variable by which `amptui run` tells a script where to keep its run."""

OBSERVE_VARIABLE = "AMPTUI_OBSERVE"
"""Set by `amptui run --observe`: ``+`` and the PYTHONPATH that the script shall find, or ``-`` for none."""

LAUNCHER_VARIABLE = "AMPTUI_LAUNCHER"
"""Set if `amptui run --observe` starts a launcher, such as torchrun, whose ranks shall be observed."""

UNSAVED_FILE = "unsaved"
"""In the folder of a run that has ended, or was not opened by a fault: empty, if records are missing."""

_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")  # noqa: PTH100, PTH118, PTH120

_run_dir = _notify_url = ""


def environment(
    before: Mapping[str, str], run_dir: str, *, observe: bool, launches: bool = False
) -> dict[str, str]:
    """The environment of a script whose run is kept in ``run_dir``, made of the one ``before``.

    A fatal signal leaves a stack. With ``observe`` the process runs ``startup/sitecustomize.py`` before the
    script. One that ``launches`` ranks has each of them do so instead.
    """
    after = {**before, RUN_DIR_VARIABLE: run_dir}
    if observe:
        path = before.get("PYTHONPATH")
        after[OBSERVE_VARIABLE] = "-" if path is None else f"+{path}"
        if launches:
            after[LAUNCHER_VARIABLE] = "1"
        after["PYTHONPATH"] = os.pathsep.join(filter(None, (_STARTUP, path)))
    else:
        after.setdefault("PYTHONFAULTHANDLER", "1")  # an observed script finds no variable of ours
    return after


def keep_run_dir() -> str:
    """Keep the run's folder, and where its news goes, without variables that child processes inherit.

    Returns the folder; empty if there is none.
    """
    global _run_dir, _notify_url
    _run_dir, _notify_url = os.environ.pop(RUN_DIR_VARIABLE, ""), take_url()
    if _run_dir:
        print_stacks_if_killed()
    return _run_dir


def kept_run_dir() -> str:
    """The folder that is kept and that nobody has taken; empty if there is none."""
    return _run_dir


def mark_unsaved(run_dir: str | os.PathLike[str]) -> None:
    """Tell `amptui run` by a file in the run's folder; it fits on a full disk."""
    with suppress(OSError):
        open(os.path.join(run_dir, UNSAVED_FILE), "x").close()  # noqa: PTH118, PTH123


def take_run() -> tuple[str, str]:
    """The folder that `amptui run` chose for this process's run, and where its news goes; only once."""
    global _run_dir, _notify_url
    run_dir, url = os.environ.pop(RUN_DIR_VARIABLE, "") or _run_dir, take_url() or _notify_url
    _run_dir, _notify_url = "", ""
    return run_dir, url
