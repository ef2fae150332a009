"""Orders that all ranks obey at the same point of the training, or none does, without a collective.

Every rank counts the points at which it can obey: step boundaries, for example. All pass the same points in
the same order, at different times. A thread beside each training talks through a board, and the training
itself only compares two numbers at each point:

1. Rank 0 calls for pledges. Each rank answers with a point that it will not pass before it knows more.
2. Once all have, rank 0 posts the order. It is for the latest of these points, so that none has passed it.
3. Each rank obeys at the first point that is not earlier, or in a pause before that.

Nobody makes a second pledge before it has obeyed the first order. By induction all are at the same point when
they obey, however late a thread hears of anything. A training that comes to its pledged point first waits
there for threads alone, never for another training. If that takes too long, any rank declares the order void;
what stands on the board first counts, so that all ranks or none have it.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from amptui.records.answers import RequestKind

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Board
    from amptui.ranks.agreement.control import RankControl

NEVER = 1 << 62
"""A point that no training comes to."""

PATIENCE_SECONDS = 10.0
"""How long a training waits at its pledged point for the threads of the others."""

_AHEAD = 3
"""A pledge is so many polls ahead: a busy thread looks late."""

_MAX_POINTS_AHEAD = 10_000

_MAX_LEAP = 1 << 30
"""Points in a second; beyond them are points of another kind, whose speed has to be learned anew."""

_PACE_SECONDS = 1.0
"""The speed of the training is that of so long."""

_CHECK_SECONDS = 0.5

_VOID: Literal[False] = False


def poll_seconds(ranks: int) -> float:
    """The time from one look at the board to the next: of all ``ranks`` together, 2,000 a second at most."""
    return max(0.05, ranks / 2000)


class Order(NamedTuple):
    """What all ranks do at the first point from ``point`` on; a default asks for nothing."""

    number: int = 0
    point: int = 0
    requests: Mapping[RequestKind, Mapping[str, Any]] = {}
    """What somebody asked rank 0 for: the fields of each request, by its name in records."""
    stop: Sequence[Any] = ()
    """Which rank was asked to stop, and why: all do."""
    turn: str = ""
    """The precision of a comparison's next block."""
    checkpoint: bool = False
    """Whether one is wanted, unless the epoch is about to end."""
    checkpoints_done: int = 0
    """How many of the checkpoints rank 0 has done with that all ranks took."""
    probes: int = 0
    """What all measure in the next step, as bits."""

    def joined(self, newer: "Order") -> "Order":
        """Also what is in ``newer``, of what rank 0's training may want by itself."""
        return self._replace(
            turn=newer.turn or self.turn,
            checkpoint=self.checkpoint or newer.checkpoint,
            checkpoints_done=newer.checkpoints_done,
            probes=self.probes | newer.probes,
        )


NOTHING = Order()


class Pace:
    """How fast a training passes its points: over the last whole second, or 0 before there was one."""

    def __init__(self) -> None:
        self._time, self._point = -math.inf, 0
        self._points_a_second = 0.0

    def note(self, now: float, arrived: int) -> None:
        """The training has come to ``arrived``."""
        passed, seconds = arrived - self._point, now - self._time
        leaps = passed > _MAX_LEAP or seconds == math.inf
        if leaps or seconds >= _PACE_SECONDS:
            self._time, self._point = now, arrived
            self._points_a_second = 0.0 if leaps else passed / seconds

    def point_ahead(self, arrived: int, ranks: int) -> int:
        """A point that the training comes to after the other ``ranks`` have heard of it."""
        ahead = math.ceil(self._points_a_second * _AHEAD * poll_seconds(ranks))
        return arrived + min(max(ahead, 1), _MAX_POINTS_AHEAD)


class Agreement:
    """One rank's part. Its training calls :meth:`settle`, and a thread beside it :meth:`tick`."""

    def __init__(
        self,
        board: "Board",
        rank: int,
        ranks: int,
        control: "RankControl",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._rank = rank
        self._ranks = ranks
        self._control = control
        self._clock = clock
        self.hold = NEVER
        """The point that the training must not pass without :meth:`settle`."""
        self._changed = threading.Condition()
        self._call_number = 0
        """The newest call for pledges; rank 0 counts them."""
        self._pledge_number = 0
        """The newest that was answered. It is open while ``_settled_number`` is less."""
        self._settled_number = 0
        """The newest that is known to be an order, or void."""
        self.pending: Order | None = None
        """An order whose point has not come: the training has not obeyed it."""
        self._held_since: float | None = None
        self._finished = self._others_finished = False
        self._error: Exception | None = None
        self._pace = Pace()
        board.decide("call", 0)

    # ------------------------------------------------------------------ the training

    def settle(
        self, point: int, obey: Callable[[Order], object], check: Callable[[], object] = lambda: None
    ) -> None:
        """Call ``obey`` with the order for ``point``, if there is one; needed at ``hold`` and later.

        Waits until that is known, and calls ``check`` now and then, which may raise.
        """
        try:
            while True:
                with self._changed:
                    if self._error is not None:
                        raise self._error
                    if point < self.hold:
                        return
                    if self.pending is not None:
                        break
                    if self._held_since is None:
                        self._held_since = self._clock()
                    was_notified = self._changed.wait(_CHECK_SECONDS)
                if not was_notified:
                    check()
        finally:
            self._held_since = None
        self._obey(obey)

    def settle_in_pause(self, obey: Callable[[Order], object]) -> None:
        """The same in a pause, in which all ranks are or to which they come before the order's point."""
        if self._error is not None:
            raise self._error
        if self.pending is not None:
            self._obey(obey)

    def _obey(self, obey: Callable[[Order], object]) -> None:
        order = self.pending
        if order is None:  # the training was told to end meanwhile
            return
        obey(order)
        with self._changed:  # last: rank 0's thread may call for the next
            if self.pending is order:
                self.pending, self.hold = None, NEVER if self._error is None else 0

    def finish(self) -> None:
        """The training comes to no more points; the thread still answers those that may."""
        with self._changed:
            self._finished, self.hold, self.pending = True, NEVER, None
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """The thread cannot go on: the training raises ``error`` at its next point, if one comes."""
        with self._changed:
            if not self._finished:
                self._error, self.hold = error, 0
                self._changed.notify_all()
        self._control.notice()

    @property
    def is_under_way(self) -> bool:
        """Whether this rank waits for others to agree, or the training has an order to obey."""
        return self._is_open or self.pending is not None

    # ------------------------------------------------------------------ the thread

    def tick(self, call_number: int = 0) -> float:
        """Talk to the others; return after how many seconds to do so again.

        ``call_number`` stands on the board under ``call``; not for rank 0. Raises what the board raises.
        """
        arrived = self._control.arrived()
        self._pace.note(self._clock(), arrived)
        if not self._rank:
            self._call()
        else:
            self._call_number = call_number
        if self._call_number > self._pledge_number and not self.is_under_way:
            self._pledge()
        if self._is_open:
            self._await_order()
        poll = poll_seconds(self._ranks)
        return poll / 20 if self._held_since is not None else poll / 5 if self._is_open else poll

    @property
    def _is_open(self) -> bool:
        return self._pledge_number > self._settled_number

    def _call(self) -> None:
        """Rank 0's: call for pledges if there is something to order and the last order was obeyed."""
        busy = self.is_under_way or self._finished or self._others_finished
        if not busy and self._control.is_something_wanted():
            self._call_number += 1
            self._board.post("call", self._call_number)

    def _pledge(self) -> None:
        """Tell which point the training will not pass, and see to it that it does not."""
        self._pledge_number = self._call_number
        point = None
        if not self._finished:
            # In this order: the training counts a point before it compares it with this.
            self.hold = 0
            self._control.notice()
            point = self.point_ahead
            with self._changed:
                self.hold = NEVER if self._finished else point
                self._changed.notify_all()
        self._board.post(f"pledge/{self._rank}", point)
        self._board.count(f"pledged/{self._pledge_number}", 1)

    @property
    def point_ahead(self) -> int:
        """A point that the training comes to after the others have heard of it."""
        arrived = self._control.arrived()
        return self._pace.point_ahead(arrived, self._ranks)

    def _await_order(self) -> None:
        number, name = self._pledge_number, f"order/{self._pledge_number}"
        if not self._rank and self._board.count(f"pledged/{number}") >= self._ranks:
            points = self._board.read([f"pledge/{rank}" for rank in range(self._ranks)])
            order: Order | Literal[False] = _VOID  # if a rank has finished
            if None in points:
                self._others_finished = True
            else:
                order = self._control.compose()._replace(number=number, point=max(points))
            self._take(number, self._board.decide(name, order))
            self._board.remove(f"order/{number - 1}")  # all have obeyed it
            self._board.remove(f"pledged/{number}")
            return
        decision = self._board.look(name)
        since = self._held_since
        if decision is None and since is not None and self._clock() - since > PATIENCE_SECONDS:
            decision = self._board.decide(name, _VOID)
        if decision is not None:
            self._take(number, decision)

    def _take(self, number: int, decision: Any) -> None:
        with self._changed:
            self._settled_number = number
            if decision is _VOID or self._finished:
                self.hold = NEVER
            else:
                self.pending = Order(*decision)
                self.hold = self.pending.point
            self._changed.notify_all()
        if decision is _VOID and not self._others_finished:
            self._control.voided()
        self._control.notice()
