"""A script's run in a process of rank 1 or above: it does what all ranks agree on, and rank 0 tells of it."""

from amptui.base.script_signals import aside
from amptui.guest.handover import take_run_dir
from amptui.guest.loop.watched_loop import WatchedLoop
from amptui.guest.peer import UNWATCHED
from amptui.guest.run import open_loop, tell_fault
from amptui.guest.script import ScriptRun, last_record
from amptui.guest.watched_scripts import Observed, Watched
from amptui.ranks.world import World
from amptui.records.control import tell_nobody
from amptui.records.run import RunFailed


class OtherRank(ScriptRun):
    """A rank that has no journal, no screen and no folder of its own."""

    def __init__(self, script: Observed | Watched, world: World | None) -> None:
        super().__init__(world)
        take_run_dir()  # rank 0's, which no child process shall inherit
        self.loop, peer = open_loop(self, script, tell_nobody, begins=self._begin, failed=self._fail)
        assert peer is not None, "rank 0 is another"
        self._peer = peer
        peer.start(self.loop)

    @property
    def stop_reason(self) -> str | None:
        return self.loop.control.stop_reason if isinstance(self.loop, WatchedLoop) else None

    def close(self, error: BaseException | None, *, at_exit: bool) -> None:
        last = last_record(error, step=self.loop.step, seconds=0.0, stopped=False, at_exit=at_exit)
        why = last.error if isinstance(last, RunFailed) else ""
        waits = error is None  # else its GPU may wait for a collective of ranks that have ended
        if at_exit:
            self._peer.close("has ended", why)
            self.loop.close(waits=waits)
            return
        try:
            aside(lambda: self._peer.close("has ended", why))
            self.loop.close(waits=waits)
        except BaseException:  # the script's alarm or Ctrl+C found us at work
            self.loop.lanes.leave()
            raise

    def _begin(self, _precision: str) -> None:
        self._peer.begun()

    def _fail(self, error: Exception) -> None:
        tell_fault("stopped watching this script, which goes on", error)
        self._peer.close(UNWATCHED)
