"""The thread in each rank that sees how far all ranks come, also while a collective blocks the trainer.

Each rank posts its progress once a second, over a connection to the launcher's store of its own; among
thousands less often. Rank 0 looks at everybody's as often, the others less often the more ranks there are.
Who finds that nothing has moved for ``--hang-timeout`` posts that, and the first post counts for all; each
rank then posts the stack of its trainer, and one of them tells of all.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from amptui.base import units
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
from amptui.ranks.failure import PeerEndedError
from amptui.ranks.store.launcher_store import ENDED, FIRST_END, LauncherStore
from amptui.ranks.store.place import Place
from amptui.ranks.world import World
from amptui.records.ranks import PHASE_WORDS
from amptui.records.run import Record

GRACE_SECONDS = 6.0
"""How long the trainer has to notice by itself that another rank has ended: a collective of gloo's fails at
once. It is less than what a process is waited for that others have left."""

_STACKS_SECONDS = 4.0
"""How long, beside the time of a beat, the rank that tells of a hang waits for stacks."""

_TELLING_SECONDS = 10.0
"""How long the others wait for it to have told."""

_POLL_SECONDS, _CLOSING_SECONDS = 0.1, 2.0

_LOOKS_PER_SECOND = 32
"""At everybody's progress by all ranks together: at 512 ranks each look reads 512 values."""

_HANG, _TOLD = "hang", "hang/told"


def teller_without(ranks: Collection[int], places: Sequence[Place]) -> int:
    """The rank that tells of the end of ``ranks``: 0, or if that is among them one near its journal."""
    others = [rank for rank in range(len(places)) if rank not in ranks]
    if 0 in others or not others:
        return 0
    return next((rank for rank in others if places[rank].machine == places[0].machine), others[0])


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


class PeerEnds:
    """What is known of the ends of the other ranks, over one connection to the ``launcher``'s store."""

    def __init__(self, launcher: LauncherStore, world: World) -> None:
        self._launcher = launcher
        self._world = world
        self.places: tuple[Place, ...] = ()
        """Where each rank runs, once they have met."""

    def first(self) -> PeerEndedError | None:
        """The rank that told of an error, or whose process is gone without a word; None if none has."""
        store = self._launcher.store
        first: Any = None
        for rank, place in enumerate(self.places):
            if place.is_gone and not self._has_told(rank):
                first = rank, "killed", f"pid {place.pid} is gone"
                break
        with suppress(RuntimeError):
            if first is not None:  # ranks on other machines cannot see it
                first = json.loads(store.compare_set(FIRST_END, "", json.dumps(first)))
            elif store.check([FIRST_END]):
                first = json.loads(store.get(FIRST_END))
        if first is None or first[0] == self._world.rank:
            return None
        rank, how, text = first
        if how == "cut off":  # it is not to blame, and nobody knows who is
            return PeerEndedError(-1, "waited", "", f"rank {rank} lost the others: {text}")
        who = f"rank {rank} was killed" if how == "killed" else f"rank {rank}"
        return PeerEndedError(rank, how, text, f"{who}: {text}")

    def _has_told(self, rank: int) -> bool:
        """Whether that rank has told of its end."""
        with suppress(RuntimeError):
            return self._launcher.store.check([f"{ENDED}/{rank}"])
        return False


class HangWatch:
    """Watches the progress of all ranks for one of them; :meth:`start` begins once all have met.

    ``trainer`` is the thread whose stack is posted. ``emit`` gets rank 0's records. ``end`` is called once,
    in the watching thread, when the run cannot go on: with the rank that ended or hung, and, for the rank
    that tells of a hang, with the records of that.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        launcher: LauncherStore,
        world: World,
        places: Sequence[Place],
        progress: RankProgress,
        *,
        hang_seconds: float,
        trainer: threading.Thread,
        emit: Callable[[Record], object],
        end: Callable[[PeerEndedError, Sequence[Record]], object],
    ) -> None:
        # A connection of its own: the trainer may wait on the other for minutes.
        self.launcher = launcher.clone()
        self._store = self.launcher.store
        self._ends = PeerEnds(self.launcher, world)
        self._ends.places = tuple(places)
        self._world, self._places, self._progress = world, places, progress
        self._table, self._news = ProgressTable(world.size, hang_seconds), AwaitedNews()
        self._trainer, self._emit, self._end = trainer, emit, end
        self._beats = 0
        self._beat_interval = beat_seconds(world.size)
        self._look_interval = max(self._beat_interval, 0 if world.leads else world.size / _LOOKS_PER_SECOND)
        self._look_due = 0.0
        self._lost_since: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="amptui-hang-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch, once all ranks have posted a beat."""
        self._thread.start()

    def close(self) -> None:
        """Watch no more; a last beat tells the others whether this rank is done with them."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_SECONDS)
        if (record := self._news.judge(None, 0.0)) is not None:
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
        if self._store.check([_HANG]):
            ranks, *rest = json.loads(self._store.get(_HANG))
            self._obey(Awaited(tuple(ranks), *rest))
            return True
        ended, now = self._ends.first(), time.monotonic()
        if ended is None or ended.how == "stopped":
            self._lost_since = None
        else:
            self._lost_since = self._lost_since or now
            if now - self._lost_since >= GRACE_SECONDS:  # the trainer has not noticed
                self._end(ended, ())
                return True
        if now >= self._look_due:
            self._look_due = now + self._look_interval - self._beat_interval / 2
            self._look()
        return False

    def post_beat(self) -> None:
        """Tell the others how far this rank is."""
        self._beats += 1
        self._store.set(f"beat/{self._world.rank}", json.dumps(self._progress.beat(self._beats)))

    def _look(self) -> None:
        beats = self._store.multi_get([f"beat/{rank}" for rank in range(self._world.size)])
        now = time.monotonic()
        newest_beats = [Heartbeat(*json.loads(beat)) for beat in beats]
        self._table.take(now, newest_beats, interval_seconds=self._look_interval)
        if self._world.leads:
            still_seconds = self._table.still_seconds(now)
            if (record := self._news.judge(self._table.awaited(now), still_seconds)) is not None:
                self._emit(record)
        hung = self._table.hung(now)
        if hung is not None and self._lost_since is None:
            self._store.compare_set(_HANG, "", json.dumps(hung))

    # ------------------------------------------------------------------------------ a hang

    def _obey(self, hang: Awaited) -> None:
        """End this rank once all have told what they execute."""
        phase, step = self._progress.activity()
        stack = [phase, step, stack_of(self._trainer.ident)]
        self._store.set(f"stack/{self._world.rank}", json.dumps(stack))
        silent = hang.ranks if hang.phase == "silent" else ()
        records: list[Record] = []
        if teller_without(silent, self._places) == self._world.rank:
            answering = [rank for rank in range(self._world.size) if rank not in silent]
            keys = [f"stack/{rank}" for rank in answering]
            self._wait_for(keys, _STACKS_SECONDS)
            there = [rank for rank, key in zip(answering, keys, strict=True) if self._store.check([key])]
            posts = {rank: json.loads(self._store.get(f"stack/{rank}")) for rank in there}
            records.append(stacks_taken(hang.step, self._world.size, posts))
        else:
            self._wait_for([_TOLD], _TELLING_SECONDS)
        for rank in silent:  # its launcher would wait for it: a process that is stopped receives no SIGTERM
            self._places[rank].kill()
        if records:
            self._store.set(_TOLD, "yes")
        self._end(hang_error(hang), records)

    def _wait_for(self, keys: list[str], seconds: float) -> None:
        """Until all are there, or for so long beside the time of a beat."""
        limit = time.monotonic() + self._beat_interval + seconds
        while not self._store.check(keys) and time.monotonic() < limit:
            time.sleep(_POLL_SECONDS)
