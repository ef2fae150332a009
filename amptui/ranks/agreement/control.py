"""What the ranks of a run agree on: each obeys the same requests at the same step boundary.

Requests reach rank 0, or any rank as a stop. A thread beside each training talks to the others, see
:mod:`amptui.ranks.agreement.orders`; a step without an order compares two numbers.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from amptui.ranks.agreement.orders import NOTHING, Agreement, Order, Participant
from amptui.ranks.agreement.rows import PostedRows
from amptui.ranks.launchers import LAUNCHER_GONE
from amptui.ranks.numbers.meter import RankNumbers, RankReport
from amptui.ranks.world import World
from amptui.records.control import (
    KINDS,
    CheckpointRequest,
    Control,
    PauseRequest,
    PendingRequest,
    PrecisionRequest,
    Request,
    StepAgreement,
    StopRequest,
    XRayRequest,
    tell_nobody,
)
from amptui.records.run import PRECISIONS, Note, Record

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Board
    from amptui.ranks.group import RankGroup

_PAUSE_CHECK_SECONDS = 0.5
"""How often a paused rank looks whether all others are there."""

_PHASE_BITS = 40
"""Steps between two validations, and batches of one, are counted in so many bits, and these phases above."""

_CLOSING_SECONDS = 10.0

_CHECKPOINT_NOW = 2
"""As an order asks for one."""

R = TypeVar("R", bound=Request)


class AgreedControl(Control, Participant):
    """The control of one rank. Its loop is given only what all ranks have agreed on."""

    can_retry = False  # the others may be inside its all-reduce

    together: tuple[type[Any], ...] = (PrecisionRequest, PauseRequest, CheckpointRequest)
    """What all ranks do together. Rank 0 does the rest alone: traces, the choice of blocks."""

    def __init__(self, world: World, emit: Callable[[Record], object] = tell_nobody) -> None:
        super().__init__(emit)
        self._world = world
        self._agreed_requests: dict[type[Any], PendingRequest[Any]] = {}
        self._sent_requests: dict[type[Any], PendingRequest[Any]] = {}
        """What rank 0's order on its way asks for, as the next two."""
        self._sent_wishes = NOTHING
        self._asked_to_stop: tuple[int, str] | None = None
        """Rank 0's: which rank was, and why."""
        self._wishes = NOTHING
        """What rank 0's training wants without having been asked; its precision is a comparison's turn."""
        self._agreed_turn = ""
        self._agreed_probes = 0
        self._stop_agreed = self._finished = False
        self.refuses: Mapping[str, str] = {}
        """What is refused at once, each with the reason."""

    @property
    def ranks(self) -> StepAgreement:
        return self

    @property
    def stopping(self) -> bool:
        """Whether all ranks have agreed to end now."""
        return self._stop_agreed

    def ask(self, request: Request, number: int | None = None) -> int:
        """See :class:`Control`; what is among ``refuses`` is refused."""
        number = super().ask(request, number)
        if why := self.refuses.get(KINDS[type(request)]):
            self.refuse(super().take(type(request)), "unavailable", why)
        return number

    # Called by the trainer.

    def newest(self, kind: type[R]) -> R | None:
        if kind not in self.together:
            return super().newest(kind)
        agreed = self._agreed_requests.get(kind)
        return None if agreed is None else agreed.request

    def take(self, kind: type[R]) -> PendingRequest[R] | None:
        if kind not in self.together:
            return super().take(kind)
        agreed = self._agreed_requests.pop(kind, None)
        return super().take(kind) if agreed is None and self._finished else agreed

    def want_turn(self, precision: str, *, now: str) -> None:
        """Rank 0's comparison wants the next steps in ``precision``; ``now`` is that of the steps so far."""
        with self._changed:
            turn = precision if precision != (self._sent_wishes.precision or now) else ""
            self._wishes = self._wishes._replace(precision=turn)

    def take_turn(self) -> str:
        """The precision that a comparison's next block runs in, once agreed; "" if there is none."""
        turn, self._agreed_turn = self._agreed_turn, ""
        return "" if PrecisionRequest in self._agreed_requests else turn

    def want_probes(self, probes: int) -> None:
        """Have all ranks measure ``probes`` in the same step; what was just asked for is under way."""
        with self._changed:
            wanted = self._wishes.probes | probes & ~self._sent_wishes.probes
            self._wishes = self._wishes._replace(probes=wanted)

    def take_probes(self) -> int:
        """What all ranks measure in the next step; 0 in nearly all steps."""
        probes, self._agreed_probes = self._agreed_probes, 0
        return probes

    def _release(self, order: Order) -> None:
        """Give the trainer what all ranks know by now."""
        if self._world.leads:
            for kind, request in self._sent_requests.items():
                self._agreed_requests[kind], overruled = _merged(request, self._agreed_requests.get(kind))
                self.refuse(overruled, "overruled")
            self._agreed_turn = self._sent_wishes.precision or self._agreed_turn
            self._forget_sent()
        else:
            self._take_requests(order)
        self._agreed_probes |= order.probes
        if order.stop and not self._stop_agreed:
            self._stop_agreed = True
            self._stop(order.stop_rank, order.stop)
        self.attention = True

    def _stop(self, rank: int, reason: str) -> None:  # noqa: ARG002 - of a script only rank 0 is asked
        """All ranks have agreed to stop, as that ``rank`` was asked to."""
        self._stop_reason = self._stop_reason or reason

    def _forget_sent(self) -> None:
        self._sent_requests, self._sent_wishes = {}, NOTHING

    def _take_requests(self, order: Order) -> None:
        """Take what rank 0 asks for as requests that nobody waits for."""
        agreed = self._agreed_requests
        if order.precision:
            self._agreed_turn = order.precision if order.precision not in PRECISIONS else ""
            agreed.pop(PrecisionRequest, None)
            if order.precision in PRECISIONS:
                agreed[PrecisionRequest] = PendingRequest(PrecisionRequest(order.precision), ())
        if order.pause is not None:
            agreed[PauseRequest] = PendingRequest(PauseRequest(order.pause), ())
        if order.xray:
            agreed[XRayRequest] = PendingRequest(XRayRequest(), ())
        if order.checkpoint == _CHECKPOINT_NOW:
            agreed[CheckpointRequest] = PendingRequest(CheckpointRequest(), ())

    # Called by the thread that talks to the others.

    def is_something_wanted(self) -> bool:
        if any(kind in self._waiting for kind in self.together) or self._sent_requests:
            return True
        if self._wishes != NOTHING or self._sent_wishes != NOTHING:
            return True
        return self._asked_to_stop is not None and not self._stop_agreed

    def compose(self) -> Order:
        overruled: list[PendingRequest[Any] | None] = []
        with self._changed:
            requests = self._sent_requests
            for kind in () if self._finished else self.together:
                if request := Control.take(self, kind):
                    requests[kind], other = _merged(request, requests.get(kind))
                    overruled.append(other)
            self._sent_wishes = wishes = self._sent_wishes.joined(self._wishes)
            self._wishes = NOTHING
            if PrecisionRequest in requests or PrecisionRequest in self._agreed_requests:
                self._sent_wishes = wishes = wishes._replace(precision="")  # the user ends the comparison
        for loser in overruled:
            self.refuse(loser, "overruled")
        pause, precision = requests.get(PauseRequest), requests.get(PrecisionRequest)
        stop_rank, stop = (0, "") if self._stop_agreed else self._asked_to_stop or (0, "")
        return wishes._replace(
            precision=precision.request.precision if precision else wishes.precision,
            pause=None if pause is None else pause.request.paused,
            checkpoint=_CHECKPOINT_NOW if CheckpointRequest in requests else wishes.checkpoint,
            stop=stop,
            stop_rank=stop_rank,
            xray=XRayRequest in requests,
        )


class RankControl(AgreedControl):
    """The control of one rank of ``amptui train``.

    The loop calls :meth:`at_boundary` before each step, and the validation before each batch, on all ranks
    equally often. ``measure`` returns the rank's numbers since the last call; ``report`` takes those of all.
    """

    together = (PrecisionRequest, PauseRequest, XRayRequest, CheckpointRequest)

    def __init__(self, world: World, emit: Callable[[Record], object] = tell_nobody) -> None:
        super().__init__(world, emit)
        self._agreement: Agreement
        self._rows: PostedRows
        self._others: RankGroup
        """These since :meth:`join`, before the first step."""
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None
        self._boundary = 0
        """The newest that the trainer has come to: a phase, and a number in it."""
        self._validating = False
        self._stop_posted = False
        self._checkpoint_agreed = False
        self._checkpoints_taken = self._agreed_checkpoints_done = 0
        self.checkpoints_done = 0
        """How many checkpoints rank 0 has done with, written or not; set by its writer's thread."""
        self.measure: Callable[[], RankNumbers] = RankNumbers
        self.report: RankReport | None = None
        """Rank 0's: what takes the rows of all."""
        self.hash_weights: Callable[[], object] = lambda: None
        """Called on all ranks after the same step, when rank 0 wants it."""
        self.launcher_lost: Callable[[int], object] = lambda _rank: None
        """Called by the trainer as all ranks agree to stop because that rank has lost its launcher."""

    def join(self, board: "Board", others: "RankGroup") -> None:
        """Begin to agree with the ``others``, whose ends the training and the thread have to know."""
        rank, size = self._world.rank, self._world.size
        self._others = others
        self._rows = PostedRows(board, rank, size, self.report)
        self._agreement = Agreement(board, rank, size, self)
        talk = partial(self._talk, board)
        self._thread = threading.Thread(target=talk, name="amptui-agreement", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End the thread that talks to the others, once they have parted or this rank has failed."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join(_CLOSING_SECONDS)

    def is_asked_to_stop(self) -> bool:
        """Whether somebody asked this rank, which the others may not know yet."""
        return self._stop_reason is not None

    # Called by the trainer.

    def want_hash(self) -> None:
        """Have all ranks hash their weights after the same step."""
        with self._changed:
            self._wishes = self._wishes._replace(hashes=True)

    def want_checkpoint(self) -> None:
        """Rank 0 wants a checkpoint, which nobody asked for."""
        with self._changed:
            self._wishes = self._wishes._replace(checkpoint=1)

    def take_wanted_checkpoint(self) -> bool:
        """Whether all ranks know by now that rank 0 wants a checkpoint; told once."""
        agreed, self._checkpoint_agreed = self._checkpoint_agreed, False
        return agreed

    @property
    def may_take_checkpoint(self) -> bool:
        """Whether all ranks know that rank 0 has done with every checkpoint that they took."""
        return self._checkpoints_taken == self._agreed_checkpoints_done

    def count_checkpoint(self) -> int:
        """The number of the checkpoint that all ranks take after this step, from 1."""
        self._checkpoints_taken += 1
        return self._checkpoints_taken

    def at_boundary(self, *, validating: bool = False) -> None:
        """Count a boundary; obey what all ranks obey there, and measure if it is time."""
        if self.is_copy:  # a forked process has no thread that talks
            return
        if validating != self._validating:
            # Batches of a validation are faster than steps: what was promised for a step comes before them.
            self._validating = validating
            self._boundary = ((self._boundary >> _PHASE_BITS) + 1) << _PHASE_BITS
        else:
            self._boundary += 1
        if self._boundary >= self._agreement.hold:
            with self._others.waiting():
                self._agreement.settle(self._boundary, self._release, self._others.check_others)
        if self._boundary >= self._rows.due:
            self._rows.put(self.measure())

    def wait(self) -> None:
        """Block until there may be something to do; the run is paused, on all ranks after the same step."""
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
        self._agreement.finish()
        self._rows.finish(self.measure())
        overruled: list[PendingRequest[Any] | None] = []
        with self._changed:
            for kind, request in self._sent_requests.items():
                waiting = self._waiting.get(kind)
                self._waiting[kind], other = (request, None) if waiting is None else _merged(waiting, request)
                overruled.append(other)
            self._sent_requests = {}
            self._finished = True  # an order that is composed from now on takes no request with it
        for loser in overruled:
            self.refuse(loser, "overruled")

    def parted(self) -> None:
        """After all ranks have waited for each other: their last numbers are there."""
        self._rows.take_last()

    def _release(self, order: Order) -> None:
        self._agreed_checkpoints_done = order.checkpoints_done
        self._checkpoint_agreed |= order.checkpoint == 1
        super()._release(order)
        if order.hashes:
            self.hash_weights()

    def _stop(self, rank: int, reason: str) -> None:
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
        return self._boundary

    def notice(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _talk(self, board: "Board") -> None:
        seconds = 0.0
        try:
            while not self._leaving.wait(seconds):
                self._post_stop(board)
                if self._world.leads:
                    self._rows.announce(self._agreement.point_ahead)
                    seconds = self._agreement.tick()
                else:
                    call, (number, point) = board.read(["call", "sample"])
                    self._rows.follow(number, point)
                    seconds = self._agreement.tick(call)
        except Exception as error:  # noqa: BLE001 - the training raises it: it can agree on nothing more
            self._agreement.fail(self._others.explain_lost(error))

    def _post_stop(self, board: "Board") -> None:
        """The first rank that is asked to stop tells it; rank 0 makes an order of it."""
        reason = self._stop_reason
        if reason is not None and not self._stop_posted:
            self._stop_posted = True
            is_known = reason == LAUNCHER_GONE or reason in signal.Signals.__members__
            board.decide("stop", [self._world.rank, reason if is_known else "a request"])
        if self._world.leads and self._asked_to_stop is None and (stop := board.look("stop")):
            self._asked_to_stop = stop[0], stop[1]

    def is_something_wanted(self) -> bool:
        return self.checkpoints_done != self._agreed_checkpoints_done or super().is_something_wanted()

    def compose(self) -> Order:
        return super().compose()._replace(checkpoints_done=self.checkpoints_done)


def _merged(
    request: PendingRequest[Any], before: PendingRequest[Any] | None
) -> tuple[PendingRequest[Any], PendingRequest[Any] | None]:
    """``request`` with an equal one ``before`` that was not taken yet; and one that it overrules."""
    if before is None or before.request != request.request:
        return request, before
    return PendingRequest(request.request, (*before.records, *request.records)), None
