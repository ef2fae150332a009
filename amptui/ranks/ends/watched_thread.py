"""A rank's trainer thread that another thread may end: the trainer itself may be blocked for good."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amptui.engine.worker import TrainingThread
from amptui.ranks.world import World
from amptui.records.ranks import RankLost, RankPhase
from amptui.records.run import Record, RunFinished

if TYPE_CHECKING:
    from amptui.ranks.ends.hang_watch import Hang, HangWatch
    from amptui.ranks.ends.peer_ends import PeerEndedError


class WatchedThread(TrainingThread):
    """Ends once: as its trainer ends, or when :class:`HangWatch` finds that the run cannot go on."""

    _world: World
    _tell: Callable[[Record], object]
    """Takes what this rank tells of the run: rank 0 alone does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._watch: HangWatch | None = None
        self._ending = threading.Lock()
        self._ended_by: int | None = None
        """The thread that ends the run."""
        self._given_up = threading.Event()
        self.last_records: list[Record] = []
        """What is to be added to the journal once rank 0's process is gone, which did not answer."""

    def join(self, timeout_seconds: float) -> bool:
        """See :class:`TrainingThread`; a trainer that is given up has ended."""
        limit = time.monotonic() + timeout_seconds
        if not self.ended.wait(timeout_seconds):
            return False
        return self._given_up.is_set() or super().join(max(0.0, limit - time.monotonic()))

    def close(self) -> None:
        """See :class:`TrainingThread`; watches no more."""
        if self._watch is not None:
            self._watch.close()
        super().close()

    def _begin_watch(self) -> None:
        """Watch the other ranks, and let them watch this one."""
        assert self._group is not None, "the ranks have met"
        self._group.progress.activity = self._activity
        self._watch = self._group.watch(self._thread, self._emit, self._end_from_watch)

    def _activity(self) -> tuple[RankPhase, int]:
        trainer = self._trainer
        return ("preparing", self._steps_before) if trainer is None else (trainer.activity, trainer.step)

    def _claim_end(self) -> bool:
        """Whether the calling thread may tell how the run ended; the first one may."""
        with self._ending:
            self._ended_by = self._ended_by or threading.get_ident()
            return self._ended_by == threading.get_ident()

    def _finish(self, record: RunFinished) -> None:
        if self._claim_end():
            if self._watch is not None:
                self._watch.close()
            super()._finish(record)

    def _end_from_watch(self, cause: "PeerEndedError | Hang", records: Sequence[Record]) -> None:
        """End the run while the trainer is blocked, and leave it."""
        if not self._claim_end():
            return
        try:
            with suppress(Exception):  # whatever a blocked trainer has left half done
                self.emit_finished_steps()
            self._tell_end_of(cause, records)
        finally:
            self._given_up.set()
            self.ended.set()

    def _ended_before(self, error: BaseException) -> "PeerEndedError | None":
        """The rank whose end made this one fail; None if none is known to have ended."""
        from amptui.ranks.ends.peer_ends import PeerEndedError

        assert self._group is not None, "the ranks have met"
        return error if isinstance(error, PeerEndedError) else self._group.find_ended()

    def _tell_peer_end(self, ended: "PeerEndedError", error: BaseException) -> None:
        """End because of another rank, which made this one fail with ``error``."""
        from amptui.ranks.ends.hang_watch import teller_without

        assert self._group is not None, "the ranks have met"
        is_dead = ended.rank == 0 and ended.how == "killed"
        if is_dead and teller_without([0], self._group.places) == self._world.rank:
            self._tell = self.last_records.append
        launcher = self._group.launcher if self._watch is None else self._watch.launcher
        launcher.tell_end("waited", "waited for the others")
        self._tell_lost(ended)
        if ended.rank >= 0:
            launcher.tell_cause(ended.what)
        explained = type(ended)(ended.rank, ended.how, ended.detail, ended.what, self._way_on())
        self._tell_failure(explained.with_traceback(error.__traceback__))

    def _tell_end_of(self, cause: "PeerEndedError | Hang", records: Sequence[Record]) -> None:
        from amptui.ranks.ends.peer_ends import PeerEndedError

        if records and not self._world.leads:  # rank 0 does not answer
            self._tell = self.last_records.append
        for record in records:
            self._emit(record)
        ended = cause if isinstance(cause, PeerEndedError) else cause.error()
        self._tell_peer_end(ended, ended)

    def _tell_lost(self, ended: "PeerEndedError") -> None:
        if ended.rank < 0 or ended.how == "stopped" or self._group is None:
            return
        self._emit(
            RankLost(
                time=time.time(),
                step=self._trainer.step if self._trainer else 0,
                rank=ended.rank,
                host=self._group.places[ended.rank].host if self._group.places else "",
                cause="failed" if ended.how == "waited" else ended.how,
                detail=ended.detail,
            )
        )
