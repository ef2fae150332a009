"""Replays a recorded run on the screen at any speed, without torch or a GPU."""

from pathlib import Path
from signal import SIGHUP
from typing import TYPE_CHECKING

from amptui.base.errors import UsageError
from amptui.base.prompt import complain, say
from amptui.base.terminal import can_show_a_screen
from amptui.process.stop_signals import show
from amptui.records.control import Control
from amptui.runs.find import journal_of
from amptui.runs.pins import read_pins, write_pins

if TYPE_CHECKING:
    from amptui.tui.opening import Opening
    from amptui.tui.replay.player import Player
    from amptui.tui.replay.screen import ReplayScreen


def replay(run: Path, *, speed: float) -> int:
    """Replay ``run``, a run's folder or its journal, at ``speed`` times real time; return the exit status.

    Raises ``UsageError`` without a terminal, and ``RunFolderError`` for a run that cannot be read or has no
    records.
    """
    if not can_show_a_screen():
        raise UsageError("a replay needs a terminal", hint="`amptui export` writes a run to a file")
    path = journal_of(run)
    control = Control()
    player: Player | None = None

    def build(opening: "Opening") -> "ReplayScreen":
        from amptui.tui.replay.player import Player
        from amptui.tui.replay.screen import ReplayScreen

        nonlocal player
        player = Player(path, speed=speed)
        return ReplayScreen(player, control, opening, pinned=read_pins(), write_pins=write_pins)

    status = None
    try:
        _, status = show(build, ask=control.ask)
        return status
    finally:  # also where the screen failed: what was damaged may be why
        if player is not None and player.passed_over and status != 128 + SIGHUP:  # else nobody can read it
            say("")  # ends the line the cursor was left in by a terminal without an alternate screen
            complain(player.passed_over)
