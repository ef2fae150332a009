"""The screen of a replay and its keys: that of a training run, with a clock instead of a trainer."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from amptui.base import units
from amptui.records.answers import RequestKind
from amptui.records.control import Control
from amptui.tui.keys import ENDED_KEYS, KEYS, Key
from amptui.tui.opening import Opening
from amptui.tui.replay.player import Player
from amptui.tui.run_screen import Parts, RunScreen

_BACK, _AHEAD = ("less_than_sign", "left"), ("greater_than_sign", "right")

MOVING = (
    Key("space", ("space",), "toggle_pause", "pause", "pause or resume the replay; at its end, start over"),
    Key(", .", ("comma", "full_stop"), "change_speed('{press}')", "speed", "play half or twice as fast"),
    Key("< >", (*_BACK, *_AHEAD), "skip('{press}')", "skip", "skip 5% of the run back or ahead (or ← →)"),
    Key("home", ("home", "end"), "seek('{press}')", "", "go to the beginning; end: to the end"),
    Key("x", ("x",), "take_xray", "X-ray", "show the latest X-ray recorded so far", is_page=True),
)
"""The keys that only a replay has, or whose page is of what was recorded."""

_MEANINGS = {
    "focus_numerics": "show the latest float16 histogram",
    "leave": "quit the replay",
    "interrupt": "quit too",
    "suspend_process": "suspend",
}
"""What a key of every screen does here, where nothing can be measured."""

REPLAY_KEYS = (
    *MOVING,
    *(replace(key, meaning=_MEANINGS.get(key.action, key.meaning)) for key in ENDED_KEYS),
)
"""All keys of a replay, for its footer and help; the others would control the training."""

_SPACE_HINTS = {"paused": "play", "ended": "restart"}
"""What the first key does in a state of the player in which it does not pause."""


class ReplayScreen(RunScreen):
    """Shows what ``player`` plays; keys control the player, not the recorded run."""

    FRAME_SECONDS = 0.125  # there is no training
    KEYS = REPLAY_KEYS
    HELP_TITLE = "replay keys"

    def __init__(self, player: Player, control: Control, opening: Opening | None = None) -> None:
        parts = Parts(
            look=player.look,
            control=control,
            ended=threading.Event(),
            opening=opening,
        )
        super().__init__(parts, reader=player)
        self.player = player
        others = (press for key in KEYS for press in key.presses if press not in self._actions)
        self._actions |= dict.fromkeys(others, "refuse")

    def _refresh_state(self) -> None:
        super()._refresh_state()
        # While an overlay is open, the footer shows its keys instead of the position.
        words = "" if self._overlay is not None else position_words(self.player)
        self._state = replace(self._state, now=self.player.now, waiting=words)

    def _accepts(self) -> frozenset[RequestKind]:
        return frozenset()  # whatever the recorded run took

    def _keys(self) -> Sequence[Key]:
        hint = _SPACE_HINTS.get(self.player.state, "pause")
        return tuple(replace(key, hint=hint) if key.action == "toggle_pause" else key for key in REPLAY_KEYS)

    def _is_told_over(self) -> bool:
        return False  # a replay can go back

    def _is_late(self) -> bool:
        return True  # it is not waited for

    def action_take_xray(self) -> None:
        self._show_first_optimizer()
        if self._view.numerics.xray is None:
            self._say("no X-ray was recorded up to this point")
        elif not self._has_open("x-ray"):
            self.action_open("x-ray")

    def action_refuse(self) -> None:
        """A key that would change a training."""
        self._say("this is a replay: the recorded run cannot change")

    def action_toggle_pause(self) -> None:
        self.player.toggle_pause()

    def action_change_speed(self, key: str) -> None:
        self.player.change_speed(0.5 if key == "comma" else 2.0)

    def action_skip(self, key: str) -> None:
        """Skip a twentieth of the run."""
        self.player.skip(-1 if key in _BACK else 1)

    def action_seek(self, key: str) -> None:
        self.player.seek(self.player.total_seconds if key == "end" else 0.0)

    def action_leave(self) -> None:
        self._leave("")

    def action_interrupt(self) -> None:
        self._leave("interrupted")


def position_words(player: Player) -> str:
    """``replay ×4  3:12 of 41:00``, or that it is seeking, paused or at its end."""
    state, seconds = player.state, player.seconds
    where = f"{units.duration(seconds)} of {units.duration(player.total_seconds)}"
    if state == "playing":
        return f"replay ×{player.speed:g} {where}"
    if state == "seeking":
        fraction = player.folded_seconds / seconds if seconds else 1.0
        where += f": {units.percent(min(1.0, fraction))}"
    return f"replay {state} {where}"
