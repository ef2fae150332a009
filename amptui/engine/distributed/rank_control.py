"""What the ranks of a run agree on: each obeys the same requests after the same step.

Requests reach rank 0, or any rank as a signal. At every few step boundaries each rank sends one row of
numbers to all others, without waiting: rank 0's row says what is asked for, every row says whether its rank
was asked to stop. At the next such boundary all rows have arrived, and all ranks obey them there.
"""

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from amptui.control import (
    KINDS,
    Asked,
    CheckpointRequest,
    Control,
    PauseRequest,
    PrecisionRequest,
    Request,
    StopRequest,
    XRayRequest,
    tell_nobody,
)
from amptui.engine.distributed.rank_rows import Exchange, RankNumbers, RankRow, RankRows
from amptui.engine.distributed.world import World
from amptui.errors import DeviceError
from amptui.records import EAGER_SUFFIX, PRECISIONS, Note, Record

EXCHANGE_SECONDS = 0.1
"""The time from one exchange to the next. An exchange takes a rank some 0.25 ms on a CPU: 0.25% of it."""

MAX_BOUNDARIES = 64
"""The most step boundaries from one exchange to the next, for steps of less than a millisecond."""

PAUSED_SECONDS = 0.05
"""The time between exchanges while the run is paused."""

LAUNCHER_GONE = "launcher gone"
"""Why a rank stops whose launcher has ended: all do, and the run has failed."""

_LAUNCHER_CODE = -2.0

R = TypeVar("R", bound=Request)

NORMS, WINDOW, WEIGHTS = 1, 2, 4
"""What all ranks measure in the same step where each has a part of it, as bits of one number: gradient norms,
the float16 window, and how many weights are lost."""


_NAMES = (*PRECISIONS, *[name + EAGER_SUFFIX for name in PRECISIONS])
"""The precisions as rows number them; only a comparison runs a compiled model eagerly."""


class TrialFailedError(DeviceError):
    """The first step in a precision failed on one rank; all have agreed to undo it."""


class RankControl(Control):
    """The control of one rank. Its trainer is given only what all ranks have agreed on.

    The loop calls :meth:`at_boundary` before each step, and the validation before each batch, on all ranks
    equally often. ``measure`` returns the rank's numbers since the last call; ``received`` is called with the
    rows of all ranks.
    """

    can_retry = False  # the others may be inside its all-reduce

    def __init__(self, world: World, emit: Callable[[Record], object] = tell_nobody) -> None:
        super().__init__(emit)
        self._world = world
        self._exchange: Exchange | None = None
        self._agreed: dict[type[Any], Asked[Any]] = {}
        self._sent: dict[type[Any], Asked[Any]] = {}
        """What rank 0's row on its way asks for."""
        self._turn_wanted = self._turn_sent = self._turn_agreed = ""
        self._stop_agreed = self._finished = False
        self._probes_wanted = self._probes_sent = self._probes_agreed = 0
        self._checkpoint_wanted = self._checkpoint_agreed = False
        self._checkpoints_taken = self._checkpoints_done_agreed = 0
        self.checkpoints_done = 0
        """How many checkpoints rank 0 has done with, written or not; set by its writer's thread."""
        self._number = 0
        self._boundaries = 1
        """From one exchange to the next."""
        self._counted = 0
        """Boundaries since the last exchange."""
        self._validating = False
        self._exchanged = time.perf_counter()
        self.refuses: Mapping[str, str] = {}
        """What is refused at once, each with the reason."""
        self.measure: Callable[[], RankNumbers] = RankNumbers
        self.received: Callable[[RankRows], object] = lambda _rows: None
        self.launcher_lost: Callable[[int], object] = lambda _rank: None
        """Called by the trainer as all ranks agree to stop because that rank has lost its launcher."""

    def join(self, exchange: Exchange) -> None:
        """Begin to exchange rows."""
        self._exchange = exchange

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

    # Called by the trainer.

    def newest(self, kind: type[R]) -> R | None:
        if kind not in _AGREED:
            return super().newest(kind)
        asked = self._agreed.get(kind)
        return None if asked is None else asked.request

    def take(self, kind: type[R]) -> Asked[R] | None:
        agreed = self._agreed.pop(kind, None) if kind in _AGREED else None
        return super().take(kind) if agreed is None and (kind not in _AGREED or self._finished) else agreed

    def want_turn(self, precision: str, *, now: str) -> None:
        """Rank 0's comparison wants the next steps in ``precision``; ``now`` is that of the steps so far."""
        self._turn_wanted = precision if precision != (self._turn_sent or now) else ""

    def take_turn(self) -> str:
        """The precision that a comparison's next block runs in, once agreed; "" if there is none."""
        turn, self._turn_agreed = self._turn_agreed, ""
        return "" if PrecisionRequest in self._agreed else turn

    def want_probes(self, probes: int) -> None:
        """Have all ranks measure ``probes`` in the same step; what was just asked for is under way."""
        self._probes_wanted |= probes & ~self._probes_sent

    def take_probes(self) -> int:
        """What all ranks measure in the next step; 0 in nearly all steps."""
        probes, self._probes_agreed = self._probes_agreed, 0
        return probes

    def want_checkpoint(self) -> None:
        """Rank 0 wants a checkpoint, which nobody asked for."""
        self._checkpoint_wanted = True

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
        """Count a boundary; exchange rows if it is time, and release what they ask for."""
        if validating != self._validating:
            # Batches of a validation are faster than steps: count from 1 again.
            self._validating = validating
            self._counted, self._boundaries = 0, 1
            self._swap(boundaries=1)
            self._boundaries = 1
            return
        self._counted += 1
        if self._counted >= self._boundaries:
            self._swap()

    def wait(self) -> None:
        """Block until there is an agreed request, exchanging rows: no collective of the training waits."""
        while not self.attention:
            if self._world.leads:
                with self._changed:
                    self._changed.wait_for(lambda: self.attention, timeout=PAUSED_SECONDS)
            self._swap()
        self.attention = False

    def finish(self) -> None:
        """Receive the rows that are still on their way: the exchange may be closed afterwards."""
        if self._exchange is not None and self._number:
            self._receive(self._exchange)
        self._finished = True

    def _swap(self, *, boundaries: int | None = None) -> None:
        """Receive the rows on their way, and send the next; rank 0's asks for so many ``boundaries``."""
        assert self._exchange is not None, "joined before the first step"
        if self._number:
            self._receive(self._exchange)
        self._number += 1
        row = self._row()
        if self._world.leads:
            row = row._replace(boundaries=boundaries or self._boundaries_by_time())
        self._exchange.send(row.values())
        self._counted, self._exchanged = 0, time.perf_counter()

    def _receive(self, exchange: Exchange) -> None:
        rows = RankRows(exchange.receive())
        assert (rows.column("exchange") == self._number).all(), "ranks count their boundaries differently"
        self._release(rows)
        self.received(rows)

    def _row(self) -> RankRow:
        """The next row of this rank."""
        row = RankRow(self._number, self._step, stop=_stop_code(self._stop_reason), numbers=self.measure())
        if not self._world.leads:
            return row
        self._sent = {kind: asked for kind in _AGREED if (asked := super(RankControl, self).take(kind))}
        pause, precision = self._sent.get(PauseRequest), self._sent.get(PrecisionRequest)
        wanted = "" if precision is None else precision.request.precision
        if not wanted and PrecisionRequest not in self._agreed:  # what the user asked for ends the comparison
            wanted = self._turn_sent = self._turn_wanted
        self._turn_wanted = ""
        self._probes_sent, self._probes_wanted = self._probes_wanted, 0
        wanted_checkpoint, self._checkpoint_wanted = self._checkpoint_wanted, False
        return row._replace(
            probes=self._probes_sent,
            checkpoint=2 if CheckpointRequest in self._sent else float(wanted_checkpoint),
            checkpoints_done=self.checkpoints_done,
            precision=_NAMES.index(wanted) + 1 if wanted else 0,
            pause=0 if pause is None else 1 if pause.request.paused else 2,
            xray=float(XRayRequest in self._sent),
        )

    def _boundaries_by_time(self) -> int:
        """How many boundaries make up ``EXCHANGE_SECONDS``, by those since the last exchange."""
        if not self._counted:  # paused
            return self._boundaries
        seconds = max(time.perf_counter() - self._exchanged, 1e-6)
        fitting = round(self._counted * EXCHANGE_SECONDS / seconds)
        return max(1, min(fitting, 2 * self._boundaries, MAX_BOUNDARIES))  # one fast step proves little

    def _release(self, rows: RankRows) -> None:
        """Give the trainer what all ranks know by now."""
        order = rows[0]
        self._boundaries = int(order.boundaries)
        if self._world.leads:
            for kind, asked in self._sent.items():
                self._agreed[kind] = self._with_earlier(kind, asked)
            self._turn_agreed = self._turn_sent or self._turn_agreed
            self._sent, self._turn_sent, self._probes_sent = {}, "", 0
        else:
            self._obey(order)
        done, self._checkpoints_done_agreed = self._checkpoints_done_agreed, int(order.checkpoints_done)
        self._checkpoint_agreed |= order.checkpoint == 1
        stopped = next(((rank, code) for rank, code in enumerate(rows.column("stop").tolist()) if code), None)
        if stopped is not None and not self._stop_agreed:
            self._stop(*stopped)
        self._probes_agreed |= int(order.probes)
        asks = order.precision or order.pause or order.xray or order.probes or order.checkpoint
        if asks or stopped is not None or done != self._checkpoints_done_agreed:
            self.attention = True

    def _with_earlier(self, kind: type[Any], asked: Asked[Any]) -> Asked[Any]:
        """``asked`` with an equal request that came in the same validation; another one is overruled."""
        before = self._agreed.get(kind)
        if before is not None and before.request == asked.request:
            return Asked(asked.request, (*before.made, *asked.made))
        self.refuse(before, "overruled")
        return asked

    def _obey(self, order: RankRow) -> None:
        """Take what rank 0 asks for as a request that nobody waits for."""
        if order.precision:
            name = _NAMES[int(order.precision) - 1]
            self._turn_agreed = name if name not in PRECISIONS else ""
            self._agreed.pop(PrecisionRequest, None)
            if name in PRECISIONS:
                self._agreed[PrecisionRequest] = Asked(PrecisionRequest(name), ())
        if order.pause:
            self._agreed[PauseRequest] = Asked(PauseRequest(order.pause == 1), ())
        if order.xray:
            self._agreed[XRayRequest] = Asked(XRayRequest(), ())
        if order.checkpoint == 2:
            self._agreed[CheckpointRequest] = Asked(CheckpointRequest(), ())

    def _stop(self, rank: int, code: float) -> None:
        self._stop_agreed = True
        if code == _LAUNCHER_CODE:
            self.launcher_lost(rank)
        if self._stop_reason is not None:
            return
        if code == _LAUNCHER_CODE:
            super().ask(StopRequest(LAUNCHER_GONE))
            return
        reason = signal.Signals(int(code)).name if code > 0 else "a request"
        if self._world.leads:
            text = f"rank {rank} received {reason}: all ranks stop"
            self._emit(Note(time=time.time(), severity="info", text=text))
        super().ask(StopRequest(f"{reason} on rank {rank}"))


_AGREED: tuple[type[Any], ...] = (PrecisionRequest, PauseRequest, XRayRequest, CheckpointRequest)
"""What all ranks do together. Rank 0 does the rest alone: traces, the choice of blocks."""


def _stop_code(reason: str | None) -> float:
    if reason is None:
        return 0.0
    if reason == LAUNCHER_GONE:
        return _LAUNCHER_CODE
    return float(signal.Signals[reason]) if reason in signal.Signals.__members__ else -1.0
