"""What `amptui run` hands to the script's process, and how that process takes it."""

import os
from collections.abc import Mapping

RUN_DIR_VARIABLE = "AMPTUI_RUN_DIR"
"""The environment variable by which `amptui run` tells a script where to keep its run."""

OBSERVE_VARIABLE = "AMPTUI_OBSERVE"
"""Set by `amptui run --observe`: ``+`` and the PYTHONPATH that the script shall find, or ``-`` for none."""

LAUNCHER_VARIABLE = "AMPTUI_LAUNCHER"
"""Set if `amptui run --observe` starts a launcher, such as torchrun, whose ranks shall be observed."""

_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")  # noqa: PTH100, PTH118, PTH120

_kept = ""


def environment(
    before: Mapping[str, str], run_dir: str, *, observe: bool, launches: bool = False
) -> dict[str, str]:
    """The environment of a script whose run is kept in ``run_dir``, made of the one ``before``.

    With ``observe`` the process runs ``startup/sitecustomize.py`` before the script. One that ``launches``
    ranks has each of them do so instead.
    """
    after = {**before, RUN_DIR_VARIABLE: run_dir}
    if observe:
        path = before.get("PYTHONPATH")
        after[OBSERVE_VARIABLE] = "-" if path is None else f"+{path}"
        if launches:
            after[LAUNCHER_VARIABLE] = "1"
        after["PYTHONPATH"] = os.pathsep.join(filter(None, (_STARTUP, path)))
    return after


def keep_run_dir() -> bool:
    """Keep the run's folder for :func:`take_run_dir` without a variable that child processes inherit."""
    global _kept  # noqa: PLW0603 - a process is started once
    _kept = os.environ.pop(RUN_DIR_VARIABLE, "")
    return is_run_dir_kept()


def is_run_dir_kept() -> bool:
    """Whether a folder is kept that nobody has taken."""
    return bool(_kept)


def take_run_dir() -> str:
    """The folder that `amptui run` chose for this process's run, to whoever asks first; else ``""``."""
    global _kept
    taken, _kept = os.environ.pop(RUN_DIR_VARIABLE, "") or _kept, ""
    return taken
