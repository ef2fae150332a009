"""What the ranks of a run agree on: each obeys the same requests after the same step.

Requests reach rank 0, or any rank as a stop. A thread beside each training talks to the others, see
:mod:`amptui.ranks.agreement.orders`; a step without an order compares two numbers.

Somebody's script may count its steps otherwise on one rank than on another. So each of its ranks waits after
the step of an order until all have come, and rank 0 lets them go: to obey, or to go on as they were. A rank
that makes fewer steps than the others, as its data ends first, keeps nobody waiting but for one such meeting.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amptui.ranks.agreement.orders import NEVER, NOTHING, PATIENCE_SECONDS, Agreement, Order
from amptui.ranks.meter import PostedRows, RankNumbers, RankReport
from amptui.ranks.world import LAUNCHER_GONE, World
from amptui.records.answers import RequestKind, RequestMade
from amptui.records.control import NO_XRAY, Control, Queue, StepAgreement, tell_nobody
from amptui.records.run import Note, Record

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Board
    from amptui.ranks.progress import RankProgress

_TOGETHER = ("precision", "pause", "checkpoint")
"""What all ranks do together. Rank 0 does the rest alone: traces, the choice of blocks."""

_PAUSE_CHECK_SECONDS = 0.5
"""How often a paused rank looks whether all others are there."""

_PHASE_BITS = 40
"""Steps between two validations, and batches of one, are counted in so many bits, and these phases above."""

_CLOSING_SECONDS = 10.0

_SILENT = f"a rank did not answer within {PATIENCE_SECONDS:g} s"

LOST = "the connection between the ranks was lost"


class RankControl(Control):
    """The control of one rank, whose loop is given only what all ranks have agreed on.

    A loop of ours calls :meth:`at_boundary` before each step, and the validation before each batch, on all
    ranks equally often. One whose ranks do not ``counts_alike`` calls :meth:`look` after a step wherever
    there is attention. Until :meth:`connect` or :meth:`end` requests wait.

    ``measure`` returns the rank's numbers since the last call; ``report`` takes those of all.
    """

    can_retry = False  # the others may be inside its all-reduce

    def __init__(
        self, world: World, emit: Callable[[Record], object] = tell_nobody, *, counts_alike: bool = True
    ) -> None:
        super().__init__(emit)
        self.counts_alike = counts_alike
        self._world = world
        self._board: Board
        self._progress: RankProgress
        self._check: Callable[[], object]
        self._lost: Callable[[Exception], object]
        self._agreement: Agreement | None = None
        self.rows: PostedRows | None = None
        """Where this rank's numbers go; these since :meth:`connect`."""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self.talk, name="amptui-agreement", daemon=True)
        self._requested: Queue = {}
        """What rank 0 was asked for, in no order yet."""
        self._sent: Queue = {}
        """What its order on its way asks for."""
        self._wishes = self._sent_wishes = self._agreed = NOTHING
        """What rank 0's training wants by itself; what of that is on its way; what all ranks know of."""
        self._requested_to_stop: tuple[int, str] | None = None
        """Which rank was, and why, as rank 0 orders it."""
        self._stop_agreed = self._finished = False
        self._checkpoints_taken = 0
        self.checkpoints_done = 0
        """How many checkpoints rank 0 has done with, written or not; set by its writer's thread."""
        self._boundary = 0
        """The newest that the trainer has come to: a phase, and a number in it."""
        self._validating = False
        self.over = ""
        """Why the ranks agree on nothing more, and the training goes on; empty if they may."""
        self._others_silent = False
        self.measure: Callable[[], RankNumbers] = RankNumbers
        self.gather: Callable[[Any], Sequence[Any]] = lambda value: [value]
        """The value of each rank at the end of the training; waits for all."""
        self.report = RankReport(emit) if world.leads else None
        """Rank 0's: what takes the rows of all."""
        self.cannot_stop: Callable[[str], object] = lambda _why: None
        """Called by the loop's thread with the reason if the ranks could not agree to stop."""

    # From any thread.

    def connect(
        self,
        board: "Board",
        progress: "RankProgress",
        lost: Callable[[Exception], object],
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """All ranks are there: begin to agree with them, in a thread that calls ``lost`` if it cannot.

        ``check`` is called now and then while this rank waits for the others, and may raise.
        """
        self._board, self._progress, self._lost, self._check = board, progress, lost, check
        rank, size = self._world.rank, self._world.size
        self.rows = PostedRows(board, rank, size, self.report)
        self._agreement = Agreement(board, rank, size, self)
        self._thread.start()
        self.wake()

    def end(self, why: str) -> None:
        """Agree on nothing more; requests are refused with ``why``. A pause ends, the training goes on."""
        self.over = self.over or why
        if self._agreement is not None:
            self._agreement.finish()
        self.wake()

    def fail(self, error: Exception) -> None:
        """Agree on nothing more: the training raises ``error`` at its next point."""
        if self._agreement is not None:
            self._agreement.fail(error)

    def leave(self) -> None:
        """End the thread that talks to the others, once they have parted or this rank has failed."""
        self._leaving.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSING_SECONDS)

    @property
    def ranks(self) -> StepAgreement:
        return self

    @property
    def stopping(self) -> bool:
        """Whether all ranks have agreed to end now."""
        return self._stop_agreed

    def is_asked_to_stop(self) -> bool:
        """Whether somebody asked this rank, which the others may not know yet."""
        return self._stop_reason is not None

    def ask(self, request: RequestMade) -> int:
        """See :class:`Control`; an X-ray is refused."""
        number = super().ask(request)
        if request.kind == "x-ray":
            self.refuse(self._waiting.pop("x-ray", None), "unavailable", NO_XRAY)
        return number

    # Called by the trainer.

    def _queue(self, kind: RequestKind) -> Queue:
        return self._requested if kind in _TOGETHER and not self._finished else self._waiting

    def want(self, **wishes: Any) -> None:
        """Rank 0 wants this of an order, by the names of its fields."""
        with self._changed:
            self._wishes = self._wishes._replace(**wishes)

    def want_turn(self, precision: str, *, now: str) -> None:
        """Rank 0's comparison wants the next steps in ``precision``; ``now`` is that of the steps so far."""
        with self._changed:
            is_next = precision == (self._sent_wishes.turn or now)
            self.want(turn="" if is_next or self.over else precision)
        if self.over:  # there are no more turns
            self._waiting.setdefault("comparison", RequestMade("comparison"))

    def take_turn(self) -> str:
        """The precision that a comparison's next block runs in, once agreed; "" if there is none."""
        turn: str = self._take_agreed("turn")
        return "" if "precision" in self._waiting else turn

    def want_probes(self, probes: int) -> None:
        """Have all ranks measure ``probes`` in the same step; what was just asked for is under way."""
        with self._changed:
            self.want(probes=self._wishes.probes | probes & ~self._sent_wishes.probes)

    def take_probes(self) -> int:
        """What all ranks measure in the next step; 0 in nearly all steps."""
        probes: int = self._take_agreed("probes")
        return probes

    def take_wanted_checkpoint(self) -> bool:
        """Whether all ranks know by now that rank 0 wants a checkpoint; told once."""
        is_wanted: bool = self._take_agreed("checkpoint")
        return is_wanted

    def _take_agreed(self, name: str) -> Any:
        agreed = getattr(self._agreed, name)
        if agreed:
            self._agreed = self._agreed._replace(**{name: getattr(NOTHING, name)})
        return agreed

    @property
    def may_take_checkpoint(self) -> bool:
        """Whether all ranks know that rank 0 has done with every checkpoint that they took."""
        return self._checkpoints_taken == self._agreed.checkpoints_done

    def count_checkpoint(self) -> int:
        """The number of the checkpoint that all ranks take after this step, from 1."""
        self._checkpoints_taken += 1
        return self._checkpoints_taken

    def at_boundary(self, *, validating: bool = False) -> None:
        """Count a boundary; obey what all ranks obey there, and measure if it is time."""
        agreement, rows = self._agreement, self.rows
        assert agreement is not None, "the ranks met before the first step"
        assert rows is not None, "as above"
        if validating != self._validating:
            # Batches of a validation are faster than steps: what was promised for a step comes before them.
            self._validating = validating
            self._boundary = ((self._boundary >> _PHASE_BITS) + 1) << _PHASE_BITS
        else:
            self._boundary += 1
        if self._boundary >= agreement.hold:
            with self._progress.waiting():
                agreement.settle(self._boundary, self._obey, self._check)
        if self._boundary >= rows.due:
            rows.put(self.measure())

    def look(self, step: int) -> None:
        """See :class:`Control`; where that is after the step of an order, obey it."""
        super().look(step)
        agreement = self._agreement
        if self.counts_alike:
            return
        if agreement is not None:
            if step >= agreement.hold:
                with self._progress.waiting():
                    agreement.settle(step, self._obey, self._check)
            if agreement.hold < NEVER:
                self.attention = True
        self._refuse_alone()

    def wait(self) -> None:
        """Block until there may be something to do; the run is paused, on all ranks after the same step."""
        agreement = self._agreement
        if agreement is None:
            super().wait()
        else:
            is_idle = not (agreement.is_under_way or (self.is_asked_to_stop() and not self.stopping))
            with self._progress.waiting(idle=is_idle), self._changed:
                woken = self._changed.wait_for(
                    lambda: self.attention or agreement.pending, timeout=_PAUSE_CHECK_SECONDS
                )
                self.attention = False
            agreement.settle_in_pause(self._obey)
            if not woken:
                self._check()
        self._refuse_alone()
        if self.over:
            self._waiting["pause"] = RequestMade("pause", paused=False)

    def finish(self) -> None:
        """After the last step, to which all come: obey nothing more, and tell the last numbers."""
        assert self._agreement is not None, "the ranks met before the first step"
        assert self.rows is not None, "as above"
        self._agreement.finish()
        self.rows.finish(self.measure(), self.gather)
        self._finished = True  # an order that is composed from now on takes no request with it
        self._move(self._requested, self._sent)
        self._move(self._sent, self._waiting)

    def _move(self, queue: Queue, to: Queue) -> None:
        with self._changed:
            requests = [*queue.values()]
            queue.clear()
        self._put(to, *requests)

    # What the trainer does with an order.

    def _obey(self, order: Order) -> None:
        """Give the trainer what all ranks know by now; those but rank 0 as what nobody waits for."""
        if not self.counts_alike and self._meet(order):
            return
        if not self._world.leads:
            self._sent = {kind: RequestMade(kind, **facts) for kind, facts in order.requests.items()}
        self._move(self._sent, self._waiting)
        self._sent_wishes, self._agreed = NOTHING, self._agreed.joined(order)
        if order.stop and not self._stop_agreed:
            self._stop_agreed = True
            self._stop(*order.stop)
        self.attention = True

    def _stop(self, rank: int, reason: str) -> None:
        """All ranks have agreed to stop, as that ``rank`` was asked to."""
        if self._stop_reason is not None:
            return
        if self._world.leads:
            text = f"rank {rank} was asked to stop ({reason}): all ranks stop"
            self._emit(Note(time=time.time(), severity="info", text=text))
        super().ask(RequestMade("stop", reason=f"{reason} on rank {rank}"))

    def _meet(self, order: Order) -> str:
        """Wait for the other ranks after the step of ``order``; return why none obeys, or "" if all do."""
        from amptui.ranks.agreement.board import APART, meet

        try:
            where = self._board, self._world, order.number
            why = meet(*where, point=order.point, step=self._step, over=lambda: self.over)
        except RuntimeError:  # the store's
            why = LOST
        if why in (APART, LOST):
            self.end(why)
        elif why:
            self._refuse_sent(why)
        return why

    def _refuse_alone(self) -> None:
        """A script's rank 0 refuses what the others do not do with it, or no longer."""
        if self.over:
            if not self._closed:
                self._refuse_sent(self.over)
                self.close(self.over)
        elif self._others_silent:
            self._others_silent = False
            self.compose()
            self._refuse_sent(_SILENT)

    def _refuse_sent(self, why: str) -> None:
        for request in self._sent.values():
            self.refuse(request, "failed", why)
        self._sent, self._sent_wishes = {}, NOTHING
        if self._stop_reason is not None and not self._stop_agreed:
            self._stop_reason = self._requested_to_stop = None
            self.cannot_stop(why)

    # Called by the thread that talks to the others.

    def arrived(self) -> int:
        """The newest point that the training has come to, counted before it looks at the agreement's hold."""
        return self._boundary if self.counts_alike else self._progress.activity()[1]

    def notice(self) -> None:
        """Have the training look at the agreement's hold, also in a pause."""
        with self._changed:
            self.attention |= not self.counts_alike  # such a loop looks only then
            self._changed.notify_all()

    def voided(self) -> None:
        """Nobody obeys, as a rank did not answer in time; that of a script is not asked again."""
        self._others_silent = self._world.leads and not self.counts_alike

    def talk(self) -> None:
        """Talk to the others until :meth:`leave`."""
        agreement, rows, seconds = self._agreement, self.rows, 0.0
        assert agreement is not None, "the thread is started with it"
        assert rows is not None, "as above"
        try:
            while not self._leaving.wait(seconds):
                self._share_stop()
                if self._world.leads:
                    rows.announce(agreement.point_ahead)
                    seconds = agreement.tick()
                else:
                    call, (number, point) = self._board.read(["call", "sample"])
                    rows.follow(number, point)
                    seconds = agreement.tick(call)
        except Exception as error:  # noqa: BLE001 - whoever trains decides what becomes of it
            self._lost(error)

    def _share_stop(self) -> None:
        """The first rank that is asked to stop tells it; rank 0 makes an order of it."""
        if self._requested_to_stop is not None:
            return
        if (reason := self._stop_reason) is not None:
            is_known = reason == LAUNCHER_GONE or reason in signal.Signals.__members__
            self._requested_to_stop = self._world.rank, reason if is_known else "a request"
            if not self._world.leads:
                self._board.decide("stop", self._requested_to_stop)
        elif self._world.leads and (stop := self._board.look("stop")):
            self._requested_to_stop = stop[0], stop[1]

    def is_something_wanted(self) -> bool:
        """Whether rank 0 has something to order."""
        if self.over or self._closed or self._others_silent:
            return False
        wishes = self._wishes != NOTHING or self._sent_wishes != NOTHING
        stops = self._requested_to_stop is not None and not self._stop_agreed
        done = self.checkpoints_done != self._agreed.checkpoints_done
        return bool(self._requested or self._sent) or wishes or stops or done

    def compose(self) -> Order:
        """All that is wanted by now. If the order becomes void, the next asks for the same and more."""
        self._move(self._requested, self._sent)
        with self._changed:
            self._sent_wishes, self._wishes = self._sent_wishes.joined(self._wishes), NOTHING
            if "precision" in self._sent or "precision" in self._waiting:
                self._sent_wishes = self._sent_wishes._replace(turn="")  # the user ends the comparison
            facts = {
                kind: {"precision": request.precision, "paused": request.paused}
                for kind, request in self._sent.items()
            }
        return self._sent_wishes._replace(
            requests=facts,
            checkpoints_done=self.checkpoints_done,
            stop=() if self._stop_agreed else self._requested_to_stop or (),
        )
