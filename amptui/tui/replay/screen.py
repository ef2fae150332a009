"""The screen of a replay and its keys: that of a training run, with a clock instead of a trainer."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from amptui.base import units
from amptui.records.answers import RequestKind
from amptui.records.control import Control
from amptui.records.findings import ModulesTraced
from amptui.tui.app import WatchApp
from amptui.tui.canvas_app import Left
from amptui.tui.keys import ACTIONS, VIEW_KEYS, Key, pages_of
from amptui.tui.opening import Opening
from amptui.tui.overlays.event_browser import EventBrowser
from amptui.tui.overlays.menus import Help
from amptui.tui.replay.player import Player, Position
from amptui.tui.screen import Parts, Pins

FRAMES_PER_SECOND = 8.0
"""Smoother than during training, which needs the CPU cores itself."""

MOVING = (
    Key("space", ("space",), "toggle_pause", "pause", "pause or resume the replay; at its end, start over"),
    Key(".", ("full_stop",), "faster", "faster", "play twice as fast"),
    Key(",", ("comma",), "slower", "slower", "play half as fast"),
    Key(">", ("greater_than_sign", "right"), "skip_on", "ahead", "skip 5% of the run ahead (or →)"),
    Key("<", ("less_than_sign", "left"), "skip_back", "back", "skip 5% of the run back (or ←)"),
    Key("end", ("end",), "skip_to_end", "", "go to the end"),
    Key("home", ("home",), "begin_again", "", "go to the beginning"),
    Key("x", ("x",), "take_xray", "X-ray", "show the latest X-ray recorded so far", is_page=True),
    Key(
        "n", ("n",), "trace_modules", "", "show the latest trace of the modules recorded so far", is_page=True
    ),
)
"""The keys that only a replay has, or that do something else in it."""

_QUIT = Key("q", ("q", "ctrl+q", "ctrl+c"), "ask_quit", "quit", "quit the replay")

_MEANINGS = {"focus_numerics": "show the latest float16 histogram"}
"""What a key of every screen does here, where nothing can be measured."""

REPLAY_KEYS = (
    *MOVING,
    *(replace(key, meaning=_MEANINGS.get(key.action, key.meaning)) for key in VIEW_KEYS),
    _QUIT,
)
"""All keys of a replay, for its footer and help; the others would control the training."""

_ACTIONS = {press: key.action for key in MOVING for press in key.presses}

_MOVES: Mapping[str, Callable[[Player], None]] = {
    "toggle_pause": Player.toggle_pause,
    "faster": lambda player: player.change_speed(2),
    "slower": lambda player: player.change_speed(1 / 2),
    "skip_on": lambda player: player.skip(1),
    "skip_back": lambda player: player.skip(-1),
    "skip_to_end": lambda player: player.seek(player.position.total_seconds),
    "begin_again": lambda player: player.seek(0.0),
}
"""The actions that only the player sees."""

_SPACE_HINTS = {"paused": "play", "ended": "restart"}
"""What the first key does in a state of the player in which it does not pause."""

_ALLOWED = frozenset(press for key in REPLAY_KEYS for press in key.presses)


class ReplayApp(WatchApp):
    """Shows what ``player`` plays; keys control the player, not the recorded run."""

    _pages = pages_of(REPLAY_KEYS)

    def __init__(
        self,
        player: Player,
        control: Control,
        opening: Opening | None = None,
        *,
        read_pins: Callable[[], Pins] = tuple,
        write_pins: Callable[[Pins], str] = lambda _pins: "",
    ) -> None:
        parts = Parts(
            look=player.look,
            control=control,
            ended=threading.Event(),
            start=player.start,
            patience_seconds=0.0,
            frames_per_second=FRAMES_PER_SECOND,
            opening=opening,
            read_pins=read_pins,
            write_pins=write_pins,
        )
        super().__init__(parts)
        self._player = player

    async def action_press(self, key: str) -> None:
        """Keys of the replay work unless an overlay or a cursor takes them; those of a run are refused."""
        if self._takes_cursor_key(key):
            await super().action_press(key)
        elif self._overlay is None and key in _ACTIONS:
            self._message_until = 0.0  # the last message was read
            if move := _MOVES.get(_ACTIONS[key]):
                move(self._player)
            else:
                await self.run_action(_ACTIONS[key])
            self._redraw()
        elif self._overlay is None and key in ACTIONS and key not in _ALLOWED:
            self._say("this is a replay: the recorded run cannot change")
            self._redraw()
        else:
            await super().action_press(key)

    def _refresh_state(self) -> None:
        super()._refresh_state()
        # While an overlay is open, the footer shows its keys instead of the position.
        words = "" if self._overlay is not None else position_words(self._player.position)
        self._state = replace(self._state, now=self._player.now, waiting=words)

    def _accepts(self) -> frozenset[RequestKind]:
        return frozenset()  # whatever the recorded run took

    def _keys(self) -> Sequence[Key]:
        hint = _SPACE_HINTS.get(self._player.position.state, "pause")
        return tuple(replace(key, hint=hint) if key.action == "toggle_pause" else key for key in REPLAY_KEYS)

    def _is_told_over(self) -> bool:
        return False  # a replay can go back

    def _way_out(self) -> Left | None:
        return "" if self._player.failure is not None else super()._way_out()

    def _is_late(self) -> bool:
        return True  # it is not waited for

    def action_take_xray(self) -> None:
        self._show_first_optimizer()
        if self._view.numerics.xray is None:
            self._say("no X-ray was recorded up to this point")
        elif not self._has_open("x-ray"):
            self.action_open("x-ray")

    def action_trace_modules(self) -> None:
        traces = (event.number for event in self._view.events if isinstance(event.about, ModulesTraced))
        number = next(traces, None)
        if number is None:
            self._say("no trace was recorded up to this point")
        else:
            self._overlay = EventBrowser(number)

    def action_show_help(self) -> None:
        self._overlay = Help("replay keys", self._keys())

    def action_ask_quit(self) -> None:
        self._leave("")

    def action_interrupt(self) -> None:
        self._leave("interrupted")


def position_words(position: Position) -> str:
    """``replay ×4  3:12 of 41:00``, or that it is seeking, paused or at its end."""
    total = units.duration(position.total_seconds)
    where = f"{units.duration(position.seconds)} of {total}"
    if position.state == "seeking":
        fraction = position.folded_seconds / position.seconds if position.seconds else 1.0
        return f"replay seeking {where}: {units.percent(min(1.0, fraction))}"
    if position.state == "ended":
        return f"replay ended {where}"
    if position.state == "paused":
        return f"replay paused {where}"
    return f"replay ×{position.speed:g} {where}"
