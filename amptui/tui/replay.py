"""A recorded run on the screen, played at any speed by a clock that can pause and seek."""

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from amptui.base import units
from amptui.base.errors import RunFolderError
from amptui.records.answers import RequestKind
from amptui.records.control import Control
from amptui.records.run import Record
from amptui.records.steps import Steps
from amptui.runs.journal import JournalReader, records_at_end
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.keys import ENDED_KEYS, KEYS, Key
from amptui.tui.opening import Opening
from amptui.tui.reading_thread import ReadingThread
from amptui.tui.run_screen import Parts, RunScreen

SLOWEST, FASTEST = 1 / 16, 4096.0
"""The slowest and fastest speed that keys can set."""

LONGEST_WAIT_SECONDS = 5.0
"""Longer gaps between records are shortened to this: a run resumed the next day replays without waiting."""

SKIP_SHARE = 0.05
"""The fraction of the run that one key press skips."""

_RECORDS_AT_ONCE = 256
"""Records folded before clock and keys are checked again: a few milliseconds of work."""

_STEPS_AT_ONCE = 2**14
"""Steps in them, unless a single block has more."""

_LONGEST_TICK_SECONDS = 1.0
"""After a longer suspension of the process, the replay does not jump ahead."""


_TAIL_BYTES = 1 << 18
"""Read from the end of the file: a few hundred records, including the newest time."""


class Player(ReadingThread):
    """Plays one journal. Keys set the clock from any thread; one thread folds.

    Seeking back reads the journal again from the start in the background; seeking ahead folds what is in
    between. Raises ``RunFolderError`` for a journal that cannot be read or has no records.
    """

    def __init__(self, path: Path, *, speed: float) -> None:
        super().__init__("amptui-replay")
        self._path = path
        first = next((record.time for record in JournalReader(path)), None)
        if first is None:
            raise RunFolderError(f"{path} holds no records")
        last = max((record.time for record in records_at_end(path, _TAIL_BYTES)), default=first)
        self._first_time, self._total_seconds = first, max(0.0, last - first)
        self._lock = threading.Lock()
        # Set by keys and by the thread that folds, under the lock.
        self.speed = speed
        """Recorded seconds per second."""
        self._paused = self._seeking = self._at_end = self._rewinding = False
        self.seconds = 0.0
        """Recorded time from the first record to here."""
        self.folded_seconds = 0.0
        """While seeking: the progress."""
        # The folding thread's own.
        self._moved_at: float | None = None
        self._start_over()
        self._visible_session = self._session
        self._folding = threading.Lock()

    def look(self, front: str | None = None) -> SessionView:
        """The session now.

        ``front`` is the optimizer whose steps it shows, as in :meth:`Session.view`.
        The question of a recorded pause is removed: nobody can answer it.
        """
        with self._folding:
            view = self._visible_session.view(front)
        return replace(view, pause_reason="") if view.pause_reason else view

    @property
    def state(self) -> Literal["playing", "paused", "seeking", "ended"]:
        if self._seeking:
            return "seeking"
        if self._at_end:
            return "ended"
        return "paused" if self._paused else "playing"

    @property
    def total_seconds(self) -> float:
        """Recorded time from the first record to the last."""
        return max(self._total_seconds, self.folded_seconds)

    @property
    def now(self) -> float:
        """The recorded moment, in Unix seconds."""
        return self._first_time + self.seconds

    @property
    def passed_over(self) -> str:
        """What could not be read of the journal so far, in one line."""
        return self._reader.passed_over

    # ------------------------------------------------------------------------- what keys ask for

    def toggle_pause(self) -> None:
        """Pause or resume; at the end, start over."""
        if self.state == "ended":
            self.seek(0.0)
        else:
            self._paused = not self._paused
        self._wake.set()

    def change_speed(self, factor: float) -> None:
        """Multiply the speed by ``factor``."""
        self.speed = max(SLOWEST, min(FASTEST, self.speed * factor))
        self._wake.set()

    def skip(self, shares: float) -> None:
        """Skip so many twentieths of the run ahead, or back if negative."""
        self.seek(self.seconds + shares * SKIP_SHARE * self.total_seconds)

    def seek(self, seconds: float) -> None:
        """Seek to a time in seconds since the first record."""
        with self._lock:
            self.seconds = max(0.0, min(seconds, self.total_seconds))
            self._seeking, self._at_end = True, False
            self._rewind_if_past()
        self._wake.set()

    # ------------------------------------------------------------------------------- the thread

    def _work(self) -> float:
        return self.advance(time.monotonic())

    def _start_over(self) -> None:
        reader = JournalReader(self._path)
        self._records = self._timed(reader)
        self._next = next(self._records, None)
        self._session = Session(str(self._path.parent))
        self._reader = reader  # not before: if it cannot be read again, what was passed over stays known

    def advance(self, now: float) -> float:
        """Move the clock to ``now`` and fold what is due, a batch at most.

        ``now`` is on the monotonic clock. Returns the seconds until there is more to do: 0 if there is more
        now, inf if there is nothing until a key is pressed. Called by one thread.
        """
        with self._lock:
            rewinding, self._rewinding = self._rewinding, False
            elapsed = 0.0 if self._moved_at is None else min(now - self._moved_at, _LONGEST_TICK_SECONDS)
            self._moved_at = now
            # The clock runs, unless folding is behind it.
            if not (self._paused or self._at_end or rewinding or self._is_behind()):
                self.seconds += elapsed * self.speed
            clock = self.seconds
        if rewinding:
            self._start_over()
        due, steps = list[tuple[float, Record]](), 0
        while self._next is not None and self._next[0] <= clock:
            due.append(self._next)
            record = self._next[1]
            steps += record.count if isinstance(record, Steps) else 0
            self._next = next(self._records, None)
            if steps >= _STEPS_AT_ONCE or len(due) >= _RECORDS_AT_ONCE:
                break
        with self._folding:
            self._session.fold(record for _, record in due)
        with self._lock:
            # A key may have set the clock back while this batch was folded.
            if due and not self._rewinding:
                self.folded_seconds = due[-1][0]
                self._rewind_if_past()
            if self._rewinding or self._is_behind():
                return 0.0
            self._visible_session = self._session
            self._seeking = False
            if self._next is None:
                self._at_end, self.seconds = True, self.folded_seconds
            if self._next is None or self._paused:
                return math.inf
            due_seconds = min(self._next[0], max(self.seconds, self.folded_seconds + LONGEST_WAIT_SECONDS))
            if due_seconds > self.seconds:
                return (due_seconds - self.seconds) / self.speed
            self.seconds = self._next[0]
            return 0.0

    def _rewind_if_past(self) -> None:
        """Have the journal read again if more of it is folded than the clock allows."""
        if self.folded_seconds > self.seconds:
            self._rewinding, self.folded_seconds = True, 0.0

    def _is_behind(self) -> bool:
        return self._next is not None and self._next[0] <= self.seconds

    def _timed(self, reader: Iterable[Record]) -> Iterator[tuple[float, Record]]:
        """Records with their seconds since the first, which never go back."""
        seconds = 0.0
        for record in reader:
            seconds = max(seconds, record.time - self._first_time)
            yield seconds, record


# -------------------------------------------------------------------------------------- the screen

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
