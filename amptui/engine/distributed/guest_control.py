"""What the ranks of somebody else's script agree on: each obeys the same requests after the same step.

Rank 0 posts an order: what all are to do, and after which step, far enough ahead that every rank hears of it
before. After that step each waits until all have come, and rank 0 lets them go: to obey, or to go on as they
were. No collective is made, and steps without a request cost nothing. A rank that makes fewer steps than the
others, for example because its data ends first, keeps nobody waiting but for one such meeting.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from amptui.control import (
    Asked,
    CheckpointRequest,
    ComparisonRequest,
    Control,
    PauseRequest,
    PrecisionRequest,
    Request,
)
from amptui.engine.distributed.board import Board, collectives_made
from amptui.engine.distributed.rank_control import RankControl
from amptui.engine.distributed.world import World
from amptui.records import Record
from amptui.script_signals import is_from_signal_handler

MEETING_SECONDS = 10.0
"""How long a rank waits after the step of an order. It then goes on, and so do all."""

_MAX_TRIES = 5

_MAX_STEPS_AHEAD = 10_000

_SUSPICIOUS_SECONDS = 0.3
"""Ranks that train together mostly come to the same step within that time."""

_LATE = "late"

_APART = "the ranks are not at the same step: did one take fewer batches, or call amptui later?"

_LOST = "the connection between the ranks was lost"

NO_SCRIPT_XRAY = "rank 0 would wait for the others in its forward pass"

R = TypeVar("R", bound=Request)


def poll_seconds(ranks: int) -> float:
    """The time from one look at the board to the next: of all ``ranks`` together, 1,000 a second at most."""
    return max(0.1, ranks / 1000)


class Order(NamedTuple):
    """What all ranks do after ``step``."""

    number: int
    step: int
    precision: str = ""
    pause: bool | None = None
    save: bool = False
    stop: str = ""

    def requests(self) -> Mapping[type[Any], Any]:
        """It as the requests that a rank takes."""
        found: dict[type[Any], Any] = {}
        if self.precision:
            found[PrecisionRequest] = PrecisionRequest(self.precision)
        if self.pause is not None:
            found[PauseRequest] = PauseRequest(self.pause)
        if self.save:
            found[CheckpointRequest] = CheckpointRequest()
        return found


class GuestControl(RankControl):
    """The control of one rank of a script. Its loop is given only what all ranks have agreed on.

    The loop calls :meth:`look` after a step wherever there is attention, and :meth:`wait` while it is paused.
    Until :meth:`connect`, :meth:`be_alone` or :meth:`end`, which any thread may call, requests wait.
    """

    def __init__(self, world: World, emit: Callable[[Record], object]) -> None:
        super().__init__(world, emit)
        self.refuses = {"x-ray": NO_SCRIPT_XRAY}
        self._board: Board | None = None
        self._is_alone = False
        self._over = ""
        self._order: Order | None = None
        self._tries = 0
        self._ahead = 1
        """By how much orders are posted earlier than usual."""
        self._looked = (0, time.perf_counter())
        self._step_seconds = 0.01
        self.cannot_stop: Callable[[str], object] = lambda _why: None
        """Called by the loop's thread with the reason if the ranks could not agree to stop."""

    # From any thread.

    def connect(self, board: Board) -> None:
        """All ranks are there: agree with them."""
        self._board = board
        self.wake()

    def be_alone(self) -> None:
        """There are no other ranks to agree with."""
        self._is_alone = True
        self.wake()

    def end(self, why: str) -> None:
        """Agree on nothing more; requests are refused with ``why``. A pause ends."""
        self._over = self._over or why
        self.wake()

    def hear(self, order: Order) -> None:
        """Rank 0 has posted ``order``, perhaps some time ago."""
        if order.number > self._number:
            self._number, self._order = order.number, order
            self.wake()

    @property
    def order(self) -> Order | None:
        """The one whose step has not come, or where this rank waits."""
        return self._order

    @property
    def over(self) -> str:
        """Why the ranks agree on nothing more; empty if they may."""
        return self._over

    @property
    def stop_reason(self) -> str | None:
        """See :class:`Control`; not before all ranks stop."""
        return self._stop_reason if self._stop_agreed else None

    # Called by the loop.

    def take(self, kind: type[R]) -> Asked[R] | None:
        return self._agreed.pop(kind, None) if kind in _TOGETHER else Control.take(self, kind)

    def want_turn(self, precision: str, *, now: str) -> None:
        super().want_turn(precision, now=now)
        if self._over:  # there are no more turns
            self._turn_wanted = ""
            self._waiting.setdefault(ComparisonRequest, Asked(ComparisonRequest(), ()))
        if self._turn_wanted:
            self.attention = True

    def look(self, step: int) -> None:
        """See :class:`Control`; after the step of an order, wait for the other ranks."""
        before, then = self._looked
        if step > before:
            now = time.perf_counter()
            self._step_seconds, self._looked = (now - then) / (step - before), (step, now)
        super().look(step)
        self._agree(paused=False)

    def wait(self) -> None:
        """Block until there may be something to do; the run is paused."""
        with self._changed:
            self._changed.wait_for(lambda: self.attention)
            self.attention = False
        self._agree(paused=True)
        if self._over:
            self._agreed[PauseRequest] = Asked(PauseRequest(False), ())

    def finish(self) -> None:
        """Nothing is on its way."""

    def _agree(self, *, paused: bool) -> None:
        try:
            self._pursue(paused=paused)
        except RuntimeError as error:  # the store's
            if is_from_signal_handler(error):
                raise
            self.end(_LOST)
        if self._over:
            self._order = None
            self._refuse_all(self._over)

    def _pursue(self, *, paused: bool) -> None:
        """Post an order if there is something to ask for, or obey one whose step has come."""
        if self._order is None and self._world.leads and not self._over:
            self._order = self._propose(paused=paused)
        order, board = self._order, self._board
        if order is None or self._over:
            return
        if board is None:
            self._order = None
            self._carry_out(order)  # alone
        elif self._step < order.step:
            self.attention = True
        else:
            verdict = self._meet(order, board)
            if self._order is order:  # else the next one was posted already
                self._order = None
            if not verdict:
                self._ahead = max(1, self._ahead // 2)
                self._carry_out(order)
            elif verdict == _LATE and self._tries < _MAX_TRIES:
                self._ahead *= 2
                self.attention = True
            elif verdict == _APART:
                self.end(verdict)
            else:
                self._refuse_sent("the ranks could not agree" if verdict == _LATE else verdict)

    def _propose(self, *, paused: bool) -> Order | None:
        """Rank 0's next order, which it posts; None if it asks for nothing, or nobody would hear."""
        if self._board is None and not self._is_alone:
            return None
        if not (self._sent or self._turn_sent):  # else once more
            self._tries = 0
            self._sent = {kind: asked for kind in _TOGETHER if (asked := Control.take(self, kind))}
            if PrecisionRequest not in self._sent:
                self._turn_sent = self._turn_wanted
            self._turn_wanted = ""
        precision, pause = self._sent.get(PrecisionRequest), self._sent.get(PauseRequest)
        stop = "" if self._stop_agreed else self._stop_reason or ""
        if not (self._sent or self._turn_sent or stop):
            return None
        self._tries += 1
        self._number += 1
        order = Order(
            self._number,
            self._step + (0 if paused or self._board is None else self._steps_ahead()),
            precision.request.precision if precision else self._turn_sent,
            None if pause is None else pause.request.paused,
            CheckpointRequest in self._sent,
            stop,
        )
        if self._board is not None:
            self._board.remove(f"go/{order.number - 2}")
            self._board.remove(f"met/{order.number - 2}")
            self._board.post("order", order)
        return order

    def _steps_ahead(self) -> int:
        seconds = 4 * poll_seconds(self._world.size)  # a busy rank looks up late
        steps = math.ceil(seconds / max(self._step_seconds, 1e-6)) * self._ahead
        return min(steps, _MAX_STEPS_AHEAD)

    def _meet(self, order: Order, board: Board) -> str:
        """Wait for the other ranks; return why none of them obeys, or nothing if all do."""
        place, rank = collectives_made(), self._world.rank
        board.post(f"at/{rank}", [order.number, self._step, place])
        board.count(f"met/{order.number}", 1)
        began, go = time.monotonic(), f"go/{order.number}"
        while True:
            waited = time.monotonic() - began
            verdict = self._compare(order, place, board, waited) if self._world.leads else board.look(go)
            if verdict is None and waited > MEETING_SECONDS:
                verdict = self._missing(order, board)
            if verdict is None and self._over:
                verdict = self._over
            if verdict is not None:
                return str(board.decide(go, verdict))
            time.sleep(min(0.0005 + waited / 20, 0.05))

    def _compare(self, order: Order, place: int, board: Board, waited: float) -> str | None:
        """Rank 0: whether all ranks have come to the same place; None while some have not."""
        ranks = range(self._world.size)
        if board.count(f"met/{order.number}") >= len(ranks):
            places = board.read([f"at/{rank}" for rank in ranks])
            if any(step != order.step for _, step, _ in places):
                return _LATE
            return "" if len({place for _, _, place in places}) == 1 else _APART
        if waited > _SUSPICIOUS_SECONDS:
            for number, made, step in board.read([f"near/{rank}" for rank in ranks[1:]]):
                if number == order.number and made > place:
                    # It waits for this rank in a collective of the next step.
                    return _LATE if step >= order.step else _APART
        return None

    def _missing(self, order: Order, board: Board) -> str:
        places = board.read([f"at/{rank}" for rank in range(self._world.size)])
        missing = [rank for rank, (number, _, _) in enumerate(places) if number != order.number]
        who = f"rank {missing[0]}" if missing else "a rank"
        return f"{who} did not come to step {order.step:,} within {MEETING_SECONDS:g} s"

    def _carry_out(self, order: Order) -> None:
        """Give the loop what all ranks do now."""
        for kind, request in order.requests().items():
            asked = self._sent.get(kind) if self._world.leads else Asked(request, ())
            if asked is not None:  # else a turn of a comparison
                self.refuse(self._agreed.get(kind), "overruled")
                self._agreed[kind] = asked
        self._turn_agreed = self._turn_sent or self._turn_agreed
        self._sent, self._turn_sent = {}, ""
        if order.stop:
            self._stop_reason, self._stop_agreed = self._stop_reason or order.stop, True
        self._look_again()

    def _look_again(self) -> None:
        """Look after the next step too, if requests came meanwhile."""
        if self._turn_wanted or any(kind in self._waiting for kind in _TOGETHER):
            self.attention = True

    def _refuse_sent(self, why: str) -> None:
        for asked in self._sent.values():
            self.refuse(asked, "failed", why)
        self._sent, self._turn_sent = {}, ""
        if self._stop_reason is not None and not self._stop_agreed:
            self._stop_reason = None
            self.cannot_stop(why)
        self._look_again()

    def _refuse_all(self, why: str) -> None:
        self._refuse_sent(why)
        for kind in (*_TOGETHER, ComparisonRequest):
            newest = Control.newest(self, kind)
            if newest is not None and newest != ComparisonRequest():  # a comparison may always end
                self.refuse(Control.take(self, kind), "unavailable", why)


_TOGETHER: tuple[type[Any], ...] = (PrecisionRequest, PauseRequest, CheckpointRequest)
"""What all ranks do together."""
