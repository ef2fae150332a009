"""What the ranks of a run agree on: each obeys the same requests at the same step boundary.

Requests reach rank 0, or any rank as a stop. A thread beside each training talks to the others, see
:mod:`amptui.ranks.agreement.orders`; a step without an order compares two numbers.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from amptui.ranks.agreement.orders import Agreement, Order, OrderBoard
from amptui.ranks.agreement.other_ranks import OtherRanks
from amptui.ranks.agreement.posted_rows import PostedRows, RowReport
from amptui.ranks.agreement.rows import RankNumbers
from amptui.ranks.agreement.wishes import Wishes
from amptui.ranks.ends.launcher_watch import LAUNCHER_GONE
from amptui.ranks.world import World
from amptui.records.control import (
    KINDS,
    Asked,
    CheckpointRequest,
    Control,
    PauseRequest,
    PrecisionRequest,
    Request,
    StepAgreement,
    StopRequest,
    XRayRequest,
    tell_nobody,
)
from amptui.records.run import PRECISIONS, Note, Record

_PAUSE_CHECK_SECONDS = 0.5
"""How often a paused rank looks whether all others are there."""

_PHASE_BITS = 40
"""Steps between two validations, and batches of one, are counted in so many bits, and these phases above."""

_CLOSING_SECONDS = 10.0

_CHECKPOINT_NOW = 2
"""As an order asks for one."""

R = TypeVar("R", bound=Request)


class RankControl(Control):
    """The control of one rank. Its trainer is given only what all ranks have agreed on.

    The loop calls :meth:`at_boundary` before each step, and the validation before each batch, on all ranks
    equally often. ``measure`` returns the rank's numbers since the last call; ``report`` takes those of all.
    """

    can_retry = False  # the others may be inside its all-reduce

    counts_alike = True

    together: tuple[type[Any], ...] = (PrecisionRequest, PauseRequest, XRayRequest, CheckpointRequest)
    """What all ranks do together. Rank 0 does the rest alone: traces, the choice of blocks."""

    def __init__(self, world: World, emit: Callable[[Record], object] = tell_nobody) -> None:
        super().__init__(emit)
        self._world = world
        self._agreement: Agreement | None = None
        self._rows: PostedRows | None = None
        self._others = OtherRanks()
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._arrived = 0
        """The newest boundary: a phase, and a number in it."""
        self._validating = False
        self._agreed: dict[type[Any], Asked[Any]] = {}
        self._sent: dict[type[Any], Asked[Any]] = {}
        """What rank 0's order on its way asks for, as the next."""
        self._wishes_sent = Wishes()
        self._wishes = Wishes()
        self._turn_agreed = ""
        self._stop_agreed = self._stop_told = self._finished = False
        self._asked_to_stop: tuple[int, str] | None = None
        """Rank 0's: which rank was, and why."""
        self._probes_agreed = 0
        self._checkpoint_agreed = False
        self._checkpoints_taken = self._checkpoints_done_agreed = 0
        self.checkpoints_done = 0
        """How many checkpoints rank 0 has done with, written or not; set by its writer's thread."""
        self.refuses: Mapping[str, str] = {}
        """What is refused at once, each with the reason."""
        self.measure: Callable[[], RankNumbers] = RankNumbers
        self.report = RowReport()
        self.hash_weights: Callable[[], object] = lambda: None
        """Called on all ranks after the same step, when rank 0 wants it."""
        self.launcher_lost: Callable[[int], object] = lambda _rank: None
        """Called by the trainer as all ranks agree to stop because that rank has lost its launcher."""

    def join(self, board: OrderBoard, others: OtherRanks | None = None) -> None:
        """Begin to agree."""
        rank, size = self._world.rank, self._world.size
        self._others = others or self._others
        self._rows = PostedRows(board, rank, size, self.report)
        self._agreement = Agreement(board, rank, size, self)
        self._thread = threading.Thread(
            target=self._talk, args=(self._agreement, board), name="amptui-agreement", daemon=True
        )
        self._thread.start()

    def leave(self) -> None:
        """End the thread that talks to the others, once they have parted or this rank has failed."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join(_CLOSING_SECONDS)

    def is_asked_to_stop(self) -> bool:
        """Whether somebody asked this rank, which the others may not know yet."""
        return self._stop_reason is not None

    @property
    def stopping(self) -> bool:
        """Whether all ranks have agreed to end now."""
        return self._stop_agreed

    def ask(self, request: Request, number: int | None = None) -> int:
        """See :class:`Control`; what is among ``refuses`` is refused."""
        made = super().ask(request, number)
        if why := self.refuses.get(KINDS[type(request)]):
            self.refuse(super().take(type(request)), "unavailable", why)
        return made

    @property
    def ranks(self) -> StepAgreement:
        return self

    # Called by the trainer.

    def newest(self, kind: type[R]) -> R | None:
        if kind not in self.together:
            return super().newest(kind)
        asked = self._agreed.get(kind)
        return None if asked is None else asked.request

    def take(self, kind: type[R]) -> Asked[R] | None:
        if kind not in self.together:
            return super().take(kind)
        agreed = self._agreed.pop(kind, None)
        return super().take(kind) if agreed is None and self._finished else agreed

    def want_turn(self, precision: str, *, now: str) -> None:
        """Rank 0's comparison wants the next steps in ``precision``; ``now`` is that of the steps so far."""
        with self._changed:
            self._wishes.turn = precision if precision != (self._wishes_sent.turn or now) else ""

    def take_turn(self) -> str:
        """The precision that a comparison's next block runs in, once agreed; "" if there is none."""
        turn, self._turn_agreed = self._turn_agreed, ""
        return "" if PrecisionRequest in self._agreed else turn

    def want_probes(self, probes: int) -> None:
        """Have all ranks measure ``probes`` in the same step; what was just asked for is under way."""
        with self._changed:
            self._wishes.probes |= probes & ~self._wishes_sent.probes

    def take_probes(self) -> int:
        """What all ranks measure in the next step; 0 in nearly all steps."""
        probes, self._probes_agreed = self._probes_agreed, 0
        return probes

    def want_hash(self) -> None:
        """Have all ranks hash their weights after the same step."""
        with self._changed:
            self._wishes.hashes = True

    def want_checkpoint(self) -> None:
        """Rank 0 wants a checkpoint, which nobody asked for."""
        with self._changed:
            self._wishes.checkpoint = True

    def take_wanted_checkpoint(self) -> bool:
        """Whether all ranks know by now that rank 0 wants a checkpoint; told once."""
        agreed, self._checkpoint_agreed = self._checkpoint_agreed, False
        return agreed

    @property
    def may_take_checkpoint(self) -> bool:
        """Whether all ranks know that rank 0 has done with every checkpoint that they took."""
        return self._checkpoints_taken == self._checkpoints_done_agreed

    def count_checkpoint(self) -> int:
        """The number of the checkpoint that all ranks take after this step, from 1."""
        self._checkpoints_taken += 1
        return self._checkpoints_taken

    def at_boundary(self, *, validating: bool = False) -> None:
        """Count a boundary; obey what all ranks obey there, and measure if it is time."""
        agreement, rows = self._agreement, self._rows
        assert agreement is not None, "joined before the first step"
        assert rows is not None, "as the agreement"
        if self.is_copy:  # a forked process has no thread that talks
            return
        if validating != self._validating:
            # Batches of a validation are faster than steps: what was promised for a step comes before them.
            self._validating = validating
            self._arrived = ((self._arrived >> _PHASE_BITS) + 1) << _PHASE_BITS
        else:
            self._arrived += 1
        if self._arrived >= agreement.hold:
            with self._others.waiting():
                agreement.settle(self._arrived, self._release, self._others.check_others)
        if self._arrived >= rows.due:
            rows.put(self._step, self.measure())

    def wait(self) -> None:
        """Block until there may be something to do; the run is paused, on all ranks after the same step."""
        assert self._agreement is not None, "joined before the first step"
        agreement = self._agreement
        is_idle = not (agreement.is_under_way or (self.is_asked_to_stop() and not self.stopping))
        with self._others.waiting(idle=is_idle), self._changed:
            woken = self._changed.wait_for(
                lambda: self.attention or agreement.pending, timeout=_PAUSE_CHECK_SECONDS
            )
            self.attention = False
        agreement.settle_in_pause(self._release)
        if not woken:
            self._others.check_others()

    def finish(self) -> None:
        """After the last step: obey nothing more, and tell the last numbers."""
        assert self._agreement is not None, "joined before the first step"
        assert self._rows is not None, "as the agreement"
        self._agreement.finish()
        self._rows.finish(self._step, self.measure())
        overruled: list[Asked[Any] | None] = []
        with self._changed:
            for kind, asked in self._sent.items():
                waiting = self._waiting.get(kind)
                self._waiting[kind], other = (asked, None) if waiting is None else _merged(waiting, asked)
                overruled.append(other)
            self._sent = {}
            self._finished = True  # an order that is composed from now on takes no request with it
        for request in overruled:
            self.refuse(request, "overruled")

    def parted(self) -> None:
        """After all ranks have waited for each other: their last numbers are there."""
        assert self._rows is not None, "joined before the first step"
        self._rows.take_last()

    def _release(self, order: Order) -> None:
        """Give the trainer what all ranks know by now."""
        if self._world.leads:
            for kind, asked in self._sent.items():
                self._agreed[kind], overruled = _merged(asked, self._agreed.get(kind))
                self.refuse(overruled, "overruled")
            self._turn_agreed = self._wishes_sent.turn or self._turn_agreed
            self._forget_sent()
        else:
            self._take_requests(order)
        self._checkpoints_done_agreed = order.checkpoints_done
        self._checkpoint_agreed |= order.checkpoint == 1
        self._probes_agreed |= order.probes
        if order.stop and not self._stop_agreed:
            self._stop(order.stop_rank, order.stop)
        if order.hashes:
            self.hash_weights()
        self.attention = True

    def _forget_sent(self) -> None:
        self._sent = {}
        self._wishes_sent.clear()

    def _take_requests(self, order: Order) -> None:
        """Take what rank 0 asks for as requests that nobody waits for."""
        if order.precision:
            self._turn_agreed = order.precision if order.precision not in PRECISIONS else ""
            self._agreed.pop(PrecisionRequest, None)
            if order.precision in PRECISIONS:
                self._agreed[PrecisionRequest] = Asked(PrecisionRequest(order.precision), ())
        if order.pause is not None:
            self._agreed[PauseRequest] = Asked(PauseRequest(order.pause), ())
        if order.xray:
            self._agreed[XRayRequest] = Asked(XRayRequest(), ())
        if order.checkpoint == _CHECKPOINT_NOW:
            self._agreed[CheckpointRequest] = Asked(CheckpointRequest(), ())

    def _stop(self, rank: int, reason: str) -> None:
        self._stop_agreed = True
        if reason == LAUNCHER_GONE:
            self.launcher_lost(rank)
        if self._stop_reason is not None:
            return
        if self._world.leads and reason != LAUNCHER_GONE:
            text = f"rank {rank} received {reason}: all ranks stop"
            self._emit(Note(time=time.time(), severity="info", text=text))
        super().ask(StopRequest(reason if reason == LAUNCHER_GONE else f"{reason} on rank {rank}"))

    # Called by the thread.

    def arrived(self) -> int:
        """The newest boundary that the trainer has come to."""
        return self._arrived

    def notice(self) -> None:
        """Wake a paused trainer."""
        with self._changed:
            self._changed.notify_all()

    def _talk(self, agreement: Agreement, board: OrderBoard) -> None:
        seconds, moves = 0.0, False
        while not self._leaving.wait(seconds):
            try:
                if moves:
                    self._move(agreement, board)
                    moves = False
                seconds = self._say(agreement, board)
            except Exception as error:  # noqa: BLE001 - the training raises it: it can agree on nothing more
                other = self._others.explain_lost(error)
                if isinstance(other, Exception):
                    agreement.fail(other)
                    return
                board, moves = other, True

    def _say(self, agreement: Agreement, board: OrderBoard) -> float:
        """Tell and hear what there is now; return after how many seconds to do so again."""
        assert self._rows is not None, "made before"
        self._tell_stop(board)
        if self._world.leads:
            self._rows.announce(agreement.point_ahead)
            return agreement.tick()
        called, (number, point) = board.read(["call", "sample"])
        self._rows.follow(number, point)
        return agreement.tick(called)

    def _move(self, agreement: Agreement, board: OrderBoard) -> None:
        """Go on at another board; what was told at the last one is told again."""
        self._rows = PostedRows(board, self._world.rank, self._world.size, self.report)
        self._stop_told = False
        agreement.move(board)

    def voided(self) -> None:
        """A rank did not answer in time: ask again."""

    def _tell_stop(self, board: OrderBoard) -> None:
        """The first rank that is asked to stop tells it; rank 0 makes an order of it."""
        reason = self._stop_reason
        if reason is not None and not self._stop_told:
            self._stop_told = True
            board.decide("stop", [self._world.rank, _reason(reason)])
        if self._world.leads and self._asked_to_stop is None and (stop := board.look("stop")):
            self._asked_to_stop = stop[0], stop[1]

    def is_something_wanted(self) -> bool:
        """Whether rank 0 has something to order."""
        if any(kind in self._waiting for kind in self.together) or self._sent:
            return True
        if self.checkpoints_done != self._checkpoints_done_agreed or self._wishes or self._wishes_sent:
            return True
        return self._asked_to_stop is not None and not self._stop_agreed

    def compose(self) -> dict[str, Any]:
        """An order of all that is wanted by now. If it becomes void, the next asks for the same and more."""
        overruled: list[Asked[Any] | None] = []
        with self._changed:
            for kind in () if self._finished else self.together:
                if asked := Control.take(self, kind):
                    self._sent[kind], other = _merged(asked, self._sent.get(kind))
                    overruled.append(other)
            self._wishes_sent.take(self._wishes)
            if PrecisionRequest in self._sent or PrecisionRequest in self._agreed:
                self._wishes_sent.turn = ""  # what the user asked for ends the comparison
            fields = self._fields()
        for request in overruled:
            self.refuse(request, "overruled")
        return fields

    def _fields(self) -> dict[str, Any]:
        """Of an order for what was sent."""
        pause, precision = self._sent.get(PauseRequest), self._sent.get(PrecisionRequest)
        wishes, now = self._wishes_sent, CheckpointRequest in self._sent
        stop = None if self._stop_agreed else self._asked_to_stop
        return {
            "precision": precision.request.precision if precision else wishes.turn,
            "pause": None if pause is None else pause.request.paused,
            "checkpoint": _CHECKPOINT_NOW if now else int(wishes.checkpoint),
            "checkpoints_done": self.checkpoints_done,
            "stop": "" if stop is None else stop[1],
            "stop_rank": 0 if stop is None else stop[0],
            "xray": XRayRequest in self._sent,
            "probes": wishes.probes,
            "hashes": wishes.hashes,
        }


def _merged(asked: Asked[Any], before: Asked[Any] | None) -> tuple[Asked[Any], Asked[Any] | None]:
    """``asked`` with an equal request ``before`` that was not taken yet; and one that it overrules."""
    if before is None or before.request != asked.request:
        return asked, before
    return Asked(asked.request, (*before.made, *asked.made)), None


def _reason(reason: str) -> str:
    return reason if reason == LAUNCHER_GONE or reason in signal.Signals.__members__ else "a request"
