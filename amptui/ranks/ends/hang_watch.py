"""The thread in each rank that sees how far all ranks come, also while a collective blocks the trainer.

Each rank posts its progress once a second, over a connection of its own to a store that should outlive the
ranks; among thousands less often. Rank 0 looks at everybody's as often, the others less often the more ranks
there are. Who finds that nothing has moved for ``--hang-timeout`` posts that, and the first post counts for
all; each rank then posts the stack of its trainer, and rank 0 tells of all if it answers.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from amptui.base import units
from amptui.ranks.agreement.board import Board
from amptui.ranks.ends.progress import (
    Awaited,
    AwaitedNews,
    Heartbeat,
    ProgressTable,
    RankProgress,
    beat_seconds,
    stack_of,
    stacks_taken,
)
from amptui.ranks.failure import PeerEndedError, RankEnds
from amptui.ranks.world import World
from amptui.records.ranks import PHASE_WORDS
from amptui.records.run import Record

GRACE_SECONDS = 6.0
"""How long the trainer has to notice by itself that another rank has ended: a collective of gloo's fails at
once. It is less than what a process is waited for that others have left."""

_STACKS_SECONDS = 4.0
"""How long, beside the time of a beat, rank 0 waits for stacks."""

_TELLING_SECONDS = 10.0
"""How long the others wait for it to have told."""

_POLL_SECONDS, _CLOSING_SECONDS = 0.1, 2.0

_LOOKS_PER_SECOND = 32
"""At everybody's progress by all ranks together: at 512 ranks each look reads 512 values."""

_HANG, _TOLD = "hang", "hang/told"


def hang_error(hang: Awaited) -> PeerEndedError:
    """Why the ranks end that wait for those of ``hang``."""
    words, seconds = PHASE_WORDS[hang.phase], units.count(round(hang.seconds))
    if not hang.ranks:
        text = f"no rank came further for {seconds} s, and none is behind: {words}, step {hang.step:,}"
        return PeerEndedError(-1, "waited", "", text)
    detail = f"it made the others wait for {seconds} s, {words}, step {hang.step:,}"
    if hang.phase == "silent":
        detail = f"{words} for {seconds} s"
    others = f" and {len(hang.ranks) - 1:,} others" if len(hang.ranks) > 1 else ""
    return PeerEndedError(hang.ranks[0], "hung", detail, f"rank {hang.ranks[0]}{others} hung: {detail}")


class HangWatch:
    """Watches the progress of all ranks for one of them.

    ``thread_id`` is that of the thread that trains, whose stack is posted. ``emit`` gets rank 0's records.
    ``end`` is called once, in the watching thread, when another rank has ended, or hung: with that rank, and,
    at rank 0, with the records of a hang. Without ``gives_up`` no rank is ever ended
    for others: a hang is only told, once, and goes on.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        board: Board,
        world: World,
        ends: RankEnds,
        progress: RankProgress,
        *,
        hang_seconds: float,
        thread_id: Callable[[], int | None],
        emit: Callable[[Record], object],
        end: Callable[[PeerEndedError, Sequence[Record]], object],
        gives_up: bool = True,
    ) -> None:
        self._board, self._ends = board, ends
        self._world, self._progress = world, progress
        self._table, self._news = ProgressTable(world.size, hang_seconds), AwaitedNews()
        self._thread_id, self._emit, self._end = thread_id, emit, end
        self._gives_up = gives_up
        self._beats = self._told_step = 0
        """The step is this rank's when somebody was last told to make the others wait."""
        self._has_told_stack = False
        self._beat_interval = beat_seconds(world.size)
        self._look_interval = max(self._beat_interval, 0 if world.leads else world.size / _LOOKS_PER_SECOND)
        self._look_due = 0.0
        self._lost_since: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="amptui-hang-watch", daemon=True)
        self.post_beat()

    def start(self) -> None:
        """Begin to watch, once all ranks have one of these."""
        self._thread.start()

    def close(self) -> None:
        """Watch no more; a last beat tells the others whether this rank is done with them."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_SECONDS)
        _, step = self._progress.activity()
        if step > self._told_step and (record := self._news.judge(None, 0.0)) is not None:
            self._emit(record)

    def _work(self) -> None:
        with suppress(RuntimeError):  # the store is gone with the launcher: the trainer notices by itself
            while not self._stopping.wait(self._beat_interval):
                if self._tick():
                    return
            self.post_beat()

    def _tick(self) -> bool:
        """Tell and look; whether the run has ended."""
        self.post_beat()
        if self._progress.left:
            return False
        if not self._has_told_stack and (hang := self._board.look(_HANG)):
            self._has_told_stack = True
            ranks, *rest = hang
            self._obey(Awaited(tuple(ranks), *rest))
            return self._gives_up
        ended, now = self._ends.first(), time.monotonic()
        if ended is None or ended.how == "stopped":
            self._lost_since = None
        else:
            self._lost_since = self._lost_since or now
            if not self._gives_up or now - self._lost_since >= GRACE_SECONDS:  # the trainer has not noticed
                self._end(ended, ())
                return True
        if now >= self._look_due:
            self._look_due = now + self._look_interval - self._beat_interval / 2
            self._look()
        return False

    def post_beat(self) -> None:
        """Tell the others how far this rank is."""
        self._beats += 1
        self._board.post(f"beat/{self._world.rank}", self._progress.beat(self._beats))

    def _look(self) -> None:
        beats = self._board.read([f"beat/{rank}" for rank in range(self._world.size)])
        now = time.monotonic()
        self._table.take(now, [Heartbeat(*beat) for beat in beats], interval_seconds=self._look_interval)
        if self._world.leads:
            still_seconds = self._table.still_seconds(now)
            if (record := self._news.judge(self._table.awaited(now), still_seconds)) is not None:
                self._told_step = self._progress.activity()[1]
                self._emit(record)
        hung = self._table.hung(now)
        if hung is not None and self._lost_since is None:
            self._board.decide(_HANG, hung)

    # ------------------------------------------------------------------------------ a hang

    def _obey(self, hang: Awaited) -> None:
        """Tell what this rank executes; once all have, end it."""
        phase, step = self._progress.activity()
        self._board.post(f"stack/{self._world.rank}", [phase, step, stack_of(self._thread_id())])
        silent = hang.ranks if hang.phase == "silent" else ()
        places = self._ends.places
        records: list[Record] = []
        if self._world.leads:
            answering = [rank for rank in range(self._world.size) if rank not in silent]
            self._wait_for([f"stack/{rank}" for rank in answering], _STACKS_SECONDS)
            stacks = {rank: self._board.look(f"stack/{rank}") for rank in answering}
            posts = {rank: stack for rank, stack in stacks.items() if stack is not None}
            records.append(stacks_taken(hang.step, self._world.size, posts))
        elif self._gives_up and 0 not in silent:
            self._wait_for([_TOLD], _TELLING_SECONDS)
        if not self._gives_up:
            for record in records:
                self._emit(record)
            return
        for rank in silent:  # its launcher would wait for it: a process that is stopped receives no SIGTERM
            places[rank].kill()
        if records:
            self._board.post(_TOLD, True)
        self._end(hang_error(hang), records)

    def _wait_for(self, names: list[str], seconds: float) -> None:
        """Until all were posted, or for so long beside the time of a beat."""
        limit = time.monotonic() + self._beat_interval + seconds
        while any(self._board.look(name) is None for name in names) and time.monotonic() < limit:
            time.sleep(_POLL_SECONDS)
