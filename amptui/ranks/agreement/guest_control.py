"""What the ranks of somebody else's script agree on: each obeys the same requests after the same step.

They order as ranks of ``amptui train`` do, see :mod:`amptui.ranks.agreement.orders`. But a script may
count steps otherwise on one rank than on another. So each waits after the step of an order until all have
come, and rank 0 lets them go: to obey, or to go on as they were. A rank that makes fewer steps than the
others, for example because its data ends first, keeps nobody waiting but for one such meeting.
"""

import time
from collections.abc import Callable
from typing import Any

from amptui.ranks.agreement.board import Board, collectives_by_group, is_ahead, is_same_place
from amptui.ranks.agreement.control import AgreedControl
from amptui.ranks.agreement.orders import (
    NEVER,
    PATIENCE_SECONDS,
    Agreement,
    Order,
    poll_seconds,
)
from amptui.ranks.world import World
from amptui.records.control import (
    ComparisonRequest,
    Control,
    PauseRequest,
    PendingRequest,
)
from amptui.records.run import Record

MEETING_SECONDS = 10.0
"""How long a rank waits after the step of an order. It then goes on, and so do all."""

_SUSPICIOUS_SECONDS = 0.3
"""Ranks that train together mostly come to the same step within that time."""

_APART = "the ranks are not at the same step: did one take fewer batches, or call amptui later?"

_SILENT = f"a rank did not answer within {PATIENCE_SECONDS:g} s"

_LOST = "the connection between the ranks was lost"

NO_SCRIPT_XRAY = "rank 0 would wait for the others in its forward pass"


class GuestControl(AgreedControl):
    """The control of one rank of a script. Its loop is given only what all ranks have agreed on.

    The loop calls :meth:`look` after a step wherever there is attention, and :meth:`wait` while it is paused.
    Until :meth:`connect`, :meth:`be_alone` or :meth:`end`, which any thread may call, requests wait.
    """

    counts_alike = False

    def __init__(self, world: World, emit: Callable[[Record], object]) -> None:
        super().__init__(world, emit)
        self.refuses = {"x-ray": NO_SCRIPT_XRAY}
        self._agreement: Agreement | None = None
        self._store: Board | None = None
        self._is_alone = False
        self.over = ""
        """Why the ranks agree on nothing more; empty if they may."""
        self._others_silent = False
        """Whether a rank did not answer rank 0, which refuses what it has asked for."""
        self._count_steps: Callable[[], int] = lambda: self._step
        self.cannot_stop: Callable[[str], object] = lambda _why: None
        """Called by the loop's thread with the reason if the ranks could not agree to stop."""

    # From any thread.

    def connect(self, board: Board, steps: Callable[[], int]) -> None:
        """All ranks are there: agree with them. ``steps`` is how many this one's loop has made."""
        self._store, self._count_steps = board, steps
        self._agreement = Agreement(board, self._world.rank, self._world.size, self)
        self.wake()

    def be_alone(self) -> None:
        """There are no other ranks to agree with."""
        self._is_alone = True
        self.wake()

    def end(self, why: str) -> None:
        """Agree on nothing more; requests are refused with ``why``. A pause ends."""
        self.over = self.over or why
        if self._agreement is not None:
            self._agreement.finish()
        self.wake()

    def talk(self, call: int = 0) -> float:
        """Talk to the other ranks; return after how many seconds to do so again. Not for the loop's thread.

        ``call`` stands on the board. Raises what the board raises.
        """
        if self._agreement is None:
            return poll_seconds(self._world.size)
        seconds = self._agreement.tick(call)
        order = self._agreement.pending
        if order is not None and self._store is not None:
            collectives = collectives_by_group()  # before the steps, which grow meanwhile
            self._store.post(f"near/{self._world.rank}", [order.number, collectives, self.arrived()])
        return seconds

    def arrived(self) -> int:
        return self._count_steps()

    def notice(self) -> None:
        self.wake()

    def voided(self) -> None:
        """A rank does not answer: do not ask it again."""
        self._others_silent = self._world.leads
        self.wake()

    @property
    def stop_reason(self) -> str | None:
        """See :class:`Control`; not before all ranks stop."""
        return self._stop_reason if self._stop_agreed else None

    # Called by the loop.

    def want_turn(self, precision: str, *, now: str) -> None:
        super().want_turn(precision, now=now)
        if self.over:  # there are no more turns
            self._wishes = self._wishes._replace(precision="")
            self._waiting.setdefault(ComparisonRequest, PendingRequest(ComparisonRequest(), ()))
        if self._wishes.precision:
            self.attention = True

    def look(self, step: int) -> None:
        """See :class:`Control`; after the step of an order, wait for the other ranks."""
        super().look(step)
        agreement = self._agreement
        if agreement is not None:
            if step >= agreement.hold:
                agreement.settle(step, self._meet)
            if agreement.hold < NEVER:
                self.attention = True
        self._look_after_itself()

    def wait(self) -> None:
        """Block until there may be something to do; the run is paused."""
        with self._changed:
            self._changed.wait_for(lambda: self.attention)
            self.attention = False
        if self._agreement is not None:
            self._agreement.settle_in_pause(self._meet)
        self._look_after_itself()
        if self.over:
            self._agreed_requests[PauseRequest] = PendingRequest(PauseRequest(False), ())

    def _look_after_itself(self) -> None:
        """Without other ranks, or no longer with them."""
        if self.over:
            self._refuse_all(self.over)
        elif self._others_silent:
            self._others_silent = False
            self.compose()
            self._refuse_sent(_SILENT)
        elif self._is_alone and self._agreement is None and self.is_something_wanted():
            self._release(self.compose()._replace(point=self._step))

    def _meet(self, order: Order) -> None:
        """After the step of ``order``: obey if all ranks do, else have rank 0's requests refused."""
        assert self._store is not None, "there is an agreement"
        try:
            why = self._wait_for_all(order, self._store)
        except RuntimeError:  # the store's
            self.end(_LOST)
            return
        if not why:
            self._release(order)
        elif why == _APART:
            self.end(why)
        else:
            self._refuse_sent(why)

    def _wait_for_all(self, order: Order, board: Board) -> str:
        """Wait for the other ranks; return why none of them obeys, or nothing if all do."""
        place, rank = [self._step, collectives_by_group()], self._world.rank
        board.post(f"at/{rank}", [order.number, *place])
        board.count(f"met/{order.number}", 1)
        began, go = time.monotonic(), f"go/{order.number}"
        while True:
            waited = time.monotonic() - began
            verdict = self._compare(order, place, board, waited) if self._world.leads else board.look(go)
            if verdict is None and waited > MEETING_SECONDS:
                places = board.read([f"at/{rank}" for rank in range(self._world.size)])
                missing = [rank for rank, (number, *_) in enumerate(places) if number != order.number]
                who = f"rank {missing[0]}" if missing else "a rank"
                verdict = f"{who} did not come to step {order.point:,} within {MEETING_SECONDS:g} s"
            if verdict is None and self.over:
                verdict = self.over
            if verdict is not None:
                return str(board.decide(go, verdict))
            time.sleep(min(0.0005 + waited / 20, 0.05))

    def _compare(self, order: Order, place: list[Any], board: Board, waited: float) -> str | None:
        """Rank 0's: whether all ranks have come to the same place; None while some have not."""
        ranks = range(self._world.size)
        if board.count(f"met/{order.number}") >= len(ranks):
            places = [place for _, *place in board.read([f"at/{rank}" for rank in ranks])]
            board.remove(f"met/{order.number - 1}")
            board.remove(f"go/{order.number - 1}")
            return "" if is_same_place(places) else _APART
        if waited > _SUSPICIOUS_SECONDS:
            for number, collectives, _ in board.read([f"near/{rank}" for rank in ranks[1:]]):
                if number == order.number and is_ahead(collectives, place[1]):
                    return _APART  # it waits for this rank in a collective of the next step
        return None

    def is_something_wanted(self) -> bool:
        self._asked_to_stop = None if self._stop_reason is None else (0, self._stop_reason)
        return not self.over and not self._others_silent and super().is_something_wanted()

    def _refuse_sent(self, why: str) -> None:
        for request in self._sent_requests.values():
            self.refuse(request, "failed", why)
        self._forget_sent()
        if self._stop_reason is not None and not self._stop_agreed:
            self._stop_reason = None
            self.cannot_stop(why)

    def _refuse_all(self, why: str) -> None:
        self._refuse_sent(why)
        for kind in (*self.together, ComparisonRequest):
            newest = Control.newest(self, kind)
            if newest is not None and newest != ComparisonRequest():  # a comparison may always end
                self.refuse(Control.take(self, kind), "unavailable", why)
