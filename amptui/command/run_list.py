"""Opens the list of runs, and one run after another from it: what amptui does without a command."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from signal import SIGHUP, SIGINT
from typing import TYPE_CHECKING, Any

from amptui.process.foreground import in_foreground

if TYPE_CHECKING:
    from amptui.runs.remote import Remote
    from amptui.tui.run_list.entry import RunSource
    from amptui.tui.run_list.screen import RunListApp

_SIGNALLED = 128
"""An exit status above it means a signal, or a terminal that is gone: the list does not open again."""


def browse_runs(run: Callable[[Sequence[str]], int], remote: "Remote | None" = None) -> int:
    """Show the list of runs, here or of another machine, until the user leaves it; return the exit status.

    ``run`` runs the command line of each choice, in a process of its own; what error ends it stands below the
    list then. Call this where a screen can be shown, in a process with one thread.
    """
    place: dict[str, Any] = {}
    message = ""
    while True:
        listed = in_foreground(partial(_choose, remote, place, message))
        if listed.status or not listed.said:
            return listed.status
        said = json.loads(listed.said)
        place, command = said["place"], said["command"]
        opened = in_foreground(partial(_open, run, command))
        if opened.status > _SIGNALLED:
            return opened.status
        message = opened.said


def _open(run: Callable[[Sequence[str]], int], command: Sequence[str]) -> tuple[int, str]:
    return run(command), ""


def _choose(remote: "Remote | None", place: dict[str, Any], message: str) -> tuple[int, str]:
    """Show the list; the exit status, and as JSON where the user was and the command of the choice."""
    from amptui.base.terminal import HeldTerminal
    from amptui.process.stop_signals import StopSignals

    source = _source(remote)  # before the screen: ssh may ask for a password
    # Forks, and so comes before numpy, which starts threads.
    with HeldTerminal() as terminal:
        from amptui.tui.opening import Opening
        from amptui.tui.run_list.frame import ListState, draw

        first = ListState(entries=None, host=source.host)
        with Opening(terminal, lambda canvas: draw(canvas, first)) as opening:
            from amptui.tui.run_list.screen import Place, RunListApp

            app = RunListApp(source, opening, place=Place(**place), message=message)
            with StopSignals(
                lambda _: app.hang_up("interrupted"), hung_up=app.hang_up, terminal=terminal
            ) as signals:
                app.run()
    return _result(app, remote, signals.received)


def _source(remote: "Remote | None") -> "RunSource":
    from amptui.reports.run_list import runs_here, runs_on

    return runs_here() if remote is None else runs_on(remote)


def _result(app: "RunListApp", remote: "Remote | None", received: int | None) -> tuple[int, str]:
    from dataclasses import asdict

    if app.left == "hung up":
        return 128 + SIGHUP, ""
    if app.failure is not None:
        raise app.failure
    if app.left == "interrupted" or received:
        return 128 + (received or SIGINT), ""
    if app.left is None:
        return 1, ""
    if app.chosen is None:
        return 0, ""
    command = [app.chosen.action, *app.chosen.runs]
    if remote is not None:
        command = [app.chosen.action, *remote.arguments(app.chosen.runs[0])]
    return 0, json.dumps({"place": asdict(app.place), "command": command})
