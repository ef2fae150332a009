"""Opens the list of runs, and one run after another from it: what amptui does without a command."""

import gc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from amptui.base.errors import AmptuiError
from amptui.base.prompt import complain
from amptui.process.stop_signals import show

if TYPE_CHECKING:
    from amptui.runs.remote import Remote
    from amptui.tui.run_list.entry import RunSource
    from amptui.tui.run_list.screen import Place, RunListApp

_SIGNALLED = 128
"""An exit status above it means a signal, or a terminal that is gone: the list does not open again."""


def browse_runs(run: Callable[[Sequence[str]], int], remote: "Remote | None" = None) -> int:
    """Show the list of runs, here or of another machine, until the user leaves it; return the exit status.

    ``run`` runs the command line of each choice; what error ends it stands below the list then. Call this
    where a screen can be shown.
    """
    place: Place | None = None
    message = ""
    while True:
        app, status = _show_list(_source(remote), place, message)
        if app.failure is not None and status <= _SIGNALLED:
            raise app.failure
        if status or app.chosen is None:
            return status
        place, message = app.place, ""
        command = [app.chosen.action, *app.chosen.runs]
        if remote is not None:
            command = [app.chosen.action, *remote.arguments(app.chosen.runs[0])]
        try:
            status = run(command)
        except AmptuiError as error:
            complain(str(error))
            status, message = error.exit_status, str(error)
        if status > _SIGNALLED:
            return status
        gc.collect()  # the last screen, before the next one freezes what it finds


def _show_list(source: "RunSource", place: "Place | None", message: str) -> tuple["RunListApp", int]:
    """Show it until a run is chosen or the user leaves; the list, and the exit status of a user who left."""
    from amptui.tui.opening import Opening
    from amptui.tui.run_list.frame import ListState, draw

    first = ListState(entries=None, host=source.host)
    with Opening(lambda canvas: draw(canvas, first)) as opening:
        from amptui.tui.run_list.screen import Place, RunListApp

        app = RunListApp(source, opening, place=place or Place(), message=message)
        return app, show(app, opening)


def _source(remote: "Remote | None") -> "RunSource":
    from amptui.reports.run_list import runs_here, runs_on

    return runs_here() if remote is None else runs_on(remote)  # ssh may ask for a password
