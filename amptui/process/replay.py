"""Replays a recorded run on the screen at any speed, without torch or a GPU."""

from pathlib import Path
from signal import SIGHUP, SIGINT
from typing import TYPE_CHECKING

from amptui.base.errors import UsageError
from amptui.base.prompt import complain, say
from amptui.base.terminal import HeldTerminal, can_show_a_screen
from amptui.process.stop_signals import StopSignals
from amptui.records.control import Control
from amptui.runs.find import journal_of
from amptui.runs.pins import read_pins, write_pins

if TYPE_CHECKING:
    from amptui.tui.replay.player import Player


def replay(run: Path, *, speed: float) -> int:
    """Replay ``run``, a run's folder or its journal, at ``speed`` times real time; return the exit status.

    Raises ``UsageError`` without a terminal, and ``RunFolderError`` for a run that cannot be read or has no
    records.
    """
    if not can_show_a_screen():
        raise UsageError("a replay needs a terminal", hint="`amptui export` writes a run to a file")
    path = journal_of(run)
    # Forks, and so comes before numpy, which starts threads.
    with HeldTerminal() as terminal:
        from amptui.tui.replay.player import Player

        return _play(Player(path, speed=speed), terminal)


def _play(player: "Player", terminal: HeldTerminal) -> int:
    from amptui.tui.opening import Opening

    control = Control()
    with Opening(terminal) as opening:
        from amptui.tui.replay.screen import ReplayApp

        app = ReplayApp(player, control, opening, read_pins=read_pins, write_pins=write_pins)
        with StopSignals(control.ask, hung_up=app.hang_up, terminal=terminal) as signals:
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
    if signals.received:
        return 128 + signals.received
    return 0 if app.left is not None else 1
