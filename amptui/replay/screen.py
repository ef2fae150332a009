"""The screen of a replay: the one of a training, with a clock in place of a trainer."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from amptui import units
from amptui.control import Control
from amptui.replay.keys import MOVING, REPLAY_KEYS
from amptui.replay.player import Player, Position
from amptui.telemetry.view import SessionView
from amptui.tui import screen as screens
from amptui.tui.app import WatchApp
from amptui.tui.canvas import Canvas
from amptui.tui.ink import BOLD, Ink
from amptui.tui.keys import ACTIONS
from amptui.tui.opening import Opening
from amptui.tui.overlays.overlay import CLOSE, Answer, open_box
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.screen import Left

FRAMES_PER_SECOND = 8.0
"""Smoother than beside a training, which has a better use for the machine's cores."""

_MOVES = {press: key.action for key in MOVING for press in key.presses}

_ALLOWED = frozenset(press for key in REPLAY_KEYS for press in key.presses)

_HINTS = tuple((key.label, key.hint) for key in REPLAY_KEYS if key.hint)


class ReplayApp(WatchApp):
    """Shows what ``player`` plays; keys move the player, and nothing can be asked of the run itself."""

    CSS_PATH = str(Path(screens.__file__).with_name("dashboard.tcss"))

    def __init__(self, player: Player, control: Control, opening: Opening | None = None) -> None:
        super().__init__(
            look=player.look,
            control=control,
            ended=threading.Event(),
            start=player.start,
            patience_seconds=0.0,
            frames_per_second=FRAMES_PER_SECOND,
            opening=opening,
        )
        self._player = player
        self._state = replace(self._state, hints=_HINTS)

    async def action_press(self, key: str) -> None:
        """Keys that move the replay do so unless something else is open; those of a training are refused."""
        if self._overlay is None and key in _MOVES:
            self._message_until = 0.0  # whatever was refused before was read
            await self.run_action(_MOVES[key])
            self._redraw()
        elif self._overlay is None and key in ACTIONS and key not in _ALLOWED:
            self._say("a replay: nothing can be asked of a run that is over")
            self._redraw()
        else:
            await super().action_press(key)

    def _refresh_state(self) -> None:
        super()._refresh_state()
        # An overlay has its own keys to tell where the footer tells how far the replay is.
        words = "" if self._overlay is not None else position_words(self._player.position)
        self._state = replace(self._state, now=self._player.now, waiting=words)

    def _is_told_over(self) -> bool:
        return False  # a replay can go back

    def _way_out(self) -> Left | None:
        return "" if self._player.failure is not None else super()._way_out()

    def action_toggle_pause(self) -> None:
        """Stand still, or go on."""
        self._player.toggle_pause()

    def action_faster(self) -> None:
        """Twice as fast."""
        self._player.change_speed(2)

    def action_slower(self) -> None:
        """Half as fast."""
        self._player.change_speed(1 / 2)

    def action_skip_on(self) -> None:
        """On by a twentieth of the run."""
        self._player.skip(1)

    def action_skip_back(self) -> None:
        """Back by a twentieth of the run."""
        self._player.skip(-1)

    def action_skip_to_end(self) -> None:
        """To the end."""
        self._player.seek(self._player.position.total_seconds)

    def action_begin_again(self) -> None:
        """To the beginning."""
        self._player.seek(0.0)

    def action_take_xray(self) -> None:
        """Show the newest X-ray that was taken up to here."""
        if self._view.numerics.xray is None:
            self._say("a replay: no X-ray was taken up to here")
        elif self._overlay is None:
            self._open_xray()

    def action_show_help(self) -> None:
        """Open the help."""
        self._overlay = ReplayHelp()

    def action_ask_quit(self) -> None:
        """Leave; nothing is lost."""
        self._leave("")

    def action_interrupt(self) -> None:
        """Leave."""
        self._leave("interrupted")


class ReplayHelp:
    """All keys of a replay and what they do."""

    name: ClassVar[str] = "help"
    covers_all: ClassVar[bool] = False

    def draw(self, canvas: Canvas, view: SessionView, screen: ScreenState) -> None:  # noqa: ARG002 - the protocol's
        """See :class:`Overlay`."""
        inner = open_box(canvas, "keys of a replay", width=76, height=len(REPLAY_KEYS) + 4)
        for y, key in enumerate(REPLAY_KEYS):
            inner.text(1, y, key.label, Ink.KEY | BOLD, width=7, align="right")
            inner.text(10, y, key.meaning, width=max(0, inner.width - 10))
        folder = f"run folder {view.run_dir}"
        inner.text(1, len(REPLAY_KEYS) + 1, folder, Ink.DIM, width=max(0, inner.width - 1))

    def press(self, key: str, view: SessionView) -> Answer:  # noqa: ARG002 - the protocol's arguments
        """Any key closes it."""
        return CLOSE


def position_words(position: Position) -> str:
    """``replay ×4  3:12 of 41:00``, or what it does instead of playing."""
    total = units.duration(position.total_seconds)
    where = f"{units.duration(position.seconds)} of {total}"
    if position.state == "seeking":
        done = position.folded_seconds / position.seconds if position.seconds else 1.0
        return f"replay seeking {where}: {units.percent(min(1.0, done))}"
    if position.state == "ended":
        return f"replay ended {where}"
    if position.state == "paused":
        return f"replay paused {where}"
    return f"replay ×{position.speed:g} {where}"
