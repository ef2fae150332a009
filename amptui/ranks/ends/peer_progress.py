"""How far the ranks of a script come, as their threads tell each other, and what those execute that stop."""

import time
from collections.abc import Callable

from amptui.ranks.agreement.board import Board, collectives_by_group
from amptui.ranks.ends.progress import (
    MAX_NAMED,
    AwaitedNews,
    Beat,
    ProgressTable,
    beat_seconds,
    stack_of,
)
from amptui.ranks.world import World
from amptui.recipe.request import HANG_SECONDS
from amptui.records.ranks import RankStack, StacksTaken
from amptui.records.run import Record

STACKS_SECONDS = HANG_SECONDS
"""After so long without progress the stacks of all ranks are taken, once; the script goes on waiting."""

_COLLECTING_SECONDS = 3.0

_MAX_STACKS = 64


class PeerProgress:
    """One rank's part; used by one thread beside the loop, whose ``step`` it reads. No rank is ever ended.

    A rank that has begun fewer collectives of a process group makes the others wait; where nobody counts
    those, one that has made fewer steps.
    """

    def __init__(self, world: World, emit: Callable[[Record], object]) -> None:
        self._world = world
        self._emit = emit
        self._table, self._news = ProgressTable(world.size, 0.0), AwaitedNews()
        self._beats = 0
        self._told_step = 0
        """This rank's step when somebody was last told to make the others wait."""
        self._due = 0.0
        self._collect_at: float | None = None
        self._were_taken = self._posted = False

    def tick(self, board: Board, *, step: int, thread_id: int | None) -> None:
        """Tell and look, if it is time; ``thread_id`` is the thread that trains."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + beat_seconds(self._world.size)
        self.post(board, step)
        if not self._posted and board.look("stacks"):
            self._posted = True
            board.post(f"stack/{self._world.rank}", [step, stack_of(thread_id)])
        if self._world.leads:
            self._look(board, now, step)

    def end(self, step: int) -> None:
        """The loop ended after ``step``, perhaps before the next look: tell that a wait was over before."""
        if step > self._told_step and (record := self._news.judge(None, 0.0)) is not None:
            self._emit(record)

    def post(self, board: Board, step: int) -> None:
        """Tell the others how far this rank is."""
        self._beats += 1
        place = collectives_by_group() or {"": step}
        board.post(f"beat/{self._world.rank}", Beat(self._beats, place, 0, step, "script"))

    def _look(self, board: Board, now: float, step: int) -> None:
        beats = board.read([f"beat/{rank}" for rank in range(self._world.size)])
        self._table.take(now, [Beat(*beat) for beat in beats])
        still_seconds, awaited = self._table.still_seconds(now), self._table.awaited(now)
        if (record := self._news.judge(awaited, still_seconds)) is not None:
            self._told_step = step
            self._emit(record)
        if awaited is not None and still_seconds >= STACKS_SECONDS and not self._were_taken:
            self._were_taken, self._collect_at = True, now + _COLLECTING_SECONDS
            board.post("stacks", True)
        if self._collect_at is not None and now >= self._collect_at:
            self._collect_at = None
            self._emit(self._stacks(board, step))

    def _stacks(self, board: Board, step: int) -> StacksTaken:
        posted = {rank: board.look(f"stack/{rank}") for rank in range(self._world.size)}
        stacks = [
            RankStack(rank=rank, phase="script", step=post[0], stack=post[1])
            for rank, post in posted.items()
            if post is not None
        ]
        silent = [rank for rank, post in posted.items() if post is None]
        return StacksTaken(
            time=time.time(), step=step, stacks=tuple(stacks[:_MAX_STACKS]), silent=tuple(silent[:MAX_NAMED])
        )
