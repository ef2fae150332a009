"""Puts a replay together: player, screen, signals; and says what could not be read."""

import os
import sys
from pathlib import Path
from signal import SIGHUP, SIGINT

from amptui.control import Control
from amptui.errors import UsageError
from amptui.prompt import complain, say
from amptui.replay.player import Player
from amptui.runs.find import journal_of
from amptui.signals import StopSignals
from amptui.tui.opening import Opening


def replay(run: Path, *, speed: float) -> int:
    """Play ``run``, a run's folder or its journal, at ``speed`` times its own pace; return the exit status.

    Raises ``UsageError`` without a terminal, and ``RunFolderError`` for a run that cannot be read or holds
    no records.
    """
    if not _has_screen():
        raise UsageError("a replay needs a terminal", mend="`amptui export` writes a run to a file")
    player = Player(journal_of(run), speed=speed)
    control = Control()
    with Opening() as opening:
        from amptui.replay.screen import ReplayApp

        app = ReplayApp(player, control, opening)
        with StopSignals(control.request_stop, hung_up=app.hang_up) as signals:
            app.run()
            player.stop()
    if app.left == "hung up":
        return 128 + SIGHUP  # nobody is there to read
    if player.passed_over:
        say("")  # ends the line the cursor was left in by a terminal without an alternate screen
        complain(player.passed_over)
    if player.failure is not None:
        raise player.failure
    if app.left == "interrupted":
        signals.received = signals.received or SIGINT
    return 128 + signals.received if signals.received else app.return_code or 0


def _has_screen() -> bool:
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and sys.stdin.isatty() and sys.stdout.isatty()
