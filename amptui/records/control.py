"""The requests to a run, and the queue from which its trainer takes them between two steps."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from amptui.records.answers import Refusal, RequestKind, RequestMade, RequestRefused, RequestTaken
from amptui.records.run import EAGER_SUFFIX, PRECISIONS, Record


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    """Run the next steps in ``precision``. Raises ValueError if there is no such precision."""

    precision: str

    def __post_init__(self) -> None:
        _check_precision(self.precision)


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """Pause after the current step, or resume."""

    paused: bool


@dataclass(frozen=True, slots=True)
class XRayRequest:
    """Compare the next step's batch in FP32 and in AMP, layer by layer."""


NO_XRAY = "an X-ray needs a training in one process"
"""Why several ranks refuse one."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Run the next step with hooks on every module."""


@dataclass(frozen=True, slots=True)
class HistogramRequest:
    """Measure in the next step how its gradients fit into float16."""


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """Alternate between these precisions until their speeds are known; without any, end the comparison.

    The first is the baseline. With ``eager``, each also runs without ``torch.compile``, and the first one
    without it is the baseline. Raises ValueError for a single precision without ``eager``, or a duplicate.
    """

    precisions: tuple[str, ...] = ()
    eager: bool = False

    def __post_init__(self) -> None:
        for precision in self.precisions:
            _check_precision(precision)
        count = len(self.precisions)
        if len(set(self.precisions)) != count or (count == 1 and not self.eager):
            raise ValueError("a comparison needs two or more different precisions")

    @property
    def sides(self) -> tuple[str, ...]:
        """What alternates: ``fp32 eager``, ``fp32``, ``bf16 eager`` and so on, or only the precisions."""
        if not self.eager:
            return self.precisions
        return tuple(name for precision in self.precisions for name in (precision + EAGER_SUFFIX, precision))


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Write a checkpoint after the current step."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Stop the run after the current step."""

    reason: str
    at_once: bool = False
    """Do not wait for the step, and write no checkpoint."""


Request = (
    PrecisionRequest
    | PauseRequest
    | XRayRequest
    | TraceRequest
    | HistogramRequest
    | ComparisonRequest
    | CheckpointRequest
    | StopRequest
)
"""Any request to a run."""

REQUESTS: Mapping[RequestKind, type[Request]] = {
    "precision": PrecisionRequest,
    "pause": PauseRequest,
    "x-ray": XRayRequest,
    "trace": TraceRequest,
    "histogram": HistogramRequest,
    "comparison": ComparisonRequest,
    "checkpoint": CheckpointRequest,
    "stop": StopRequest,
}
"""Each request type by its name in records and in the protocol."""

KINDS: Mapping[type[Request], RequestKind] = {request: kind for kind, request in REQUESTS.items()}

R = TypeVar("R", bound=Request)


def new_number() -> int:
    """A number that no other request has. Python's own random numbers belong to the training."""
    return int.from_bytes(os.urandom(6), "big")


def record_of(request: Request, number: int) -> RequestMade:
    """The record of a request made now."""
    facts: dict[str, Any] = asdict(request)
    return RequestMade(time=time.time(), number=number, kind=KINDS[type(request)], **facts)


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError("no such precision")


class Asker(Protocol):
    """Sends requests to a run, in this process or in another one."""

    @property
    def stop_reason(self) -> str | None:
        """The reason with which this asker asked the run to stop; None if it did not."""

    def ask(self, request: Request) -> int:
        """Send a request without waiting; return the number that its records have."""


@dataclass(frozen=True, slots=True)
class PendingRequest(Generic[R]):
    """A request as the trainer takes it, with the records of everyone who made the same request."""

    request: R
    records: tuple[RequestMade, ...]


Queue = dict[type[Any], PendingRequest[Any]]
"""One pending request of a kind."""


def tell_nobody(_record: Record) -> None:
    """Nothing is recorded: rank 0 tells what all ranks do, for example."""


class StepAgreement(Protocol):
    """What the trainer of one rank agrees on with those of the others, for the same step of all."""

    def want_turn(self, precision: str, *, now: str) -> None:
        """Ask for the next steps in ``precision``; ``now`` is that of the steps so far."""

    def take_turn(self) -> str:
        """Return the precision of the next steps, once all have agreed; "" if there is none."""

    def want_probes(self, probes: int) -> None:
        """Ask for measurements on all ranks in one step, as bits of a number."""

    def take_probes(self) -> int:
        """Return what all ranks measure in the next step; 0 in nearly all steps."""


class Control:
    """Passes requests to the trainer's thread, and its answers, as records, to ``emit``.

    Asking never waits. The trainer takes requests only between two optimizer steps and answers each once; the
    answer to a stop is the end of the run. If two pending requests contradict each other, for example two for
    a precision, the later one counts and the earlier one is refused at once.
    """

    can_retry = True
    """Whether a step that has failed may be run again."""

    @property
    def ranks(self) -> StepAgreement | None:
        """What this process agrees on with the other ranks; None in a single process."""
        return None

    def __init__(self, emit: Callable[[Record], object] = tell_nobody) -> None:
        self._emit = emit
        self._changed = threading.Condition()
        self._waiting: Queue = {}
        self._unanswered: dict[int, RequestMade] = {}
        self._closed = ""
        """Why requests are no longer taken; empty while they are."""
        self._stop_reason: str | None = None
        self.ends_at_once = False
        """Whether somebody who asked for a stop does not wait for the current step any more."""
        self._step = 0
        self.attention = False
        """Whether there were requests since the trainer last looked; it clears this before it reads them."""

    @property
    def stop_reason(self) -> str | None:
        """Why the run should stop, or None if it should continue; the first reason counts."""
        return self._stop_reason

    @property
    def stopping(self) -> bool:
        """Whether the trainer ends now."""
        return self._stop_reason is not None

    def ask(self, request: Request, number: int | None = None) -> int:
        """See :class:`Asker`; ``number`` is that of a request from another process."""
        record = record_of(request, new_number() if number is None else number)
        self._emit(record)
        if isinstance(request, StopRequest):
            self._stop_reason = self._stop_reason or request.reason
            self.ends_at_once |= request.at_once
        else:
            with self._changed:
                self._unanswered[record.number] = record
            self._put(self._queue(type(request)), PendingRequest(request, (record,)))
        self.wake()
        if self._closed:
            self.close(self._closed)
        return record.number

    def _queue(self, kind: type[Any]) -> Queue:  # noqa: ARG002 - ranks agree on some kinds first
        """Where requests of that kind wait."""
        return self._waiting

    def _put(self, queue: Queue, *pending: PendingRequest[Any]) -> None:
        """Add requests to ``queue``: each takes over an equal one's records, and overrules another one."""
        overruled = []
        with self._changed:
            for newer in pending:
                kind = type(newer.request)
                before = queue.get(kind)
                if before is not None and before.request == newer.request:
                    queue[kind] = PendingRequest(newer.request, (*before.records, *newer.records))
                else:
                    queue[kind] = newer
                    overruled.append(before)
        for older in overruled:
            self.refuse(older, "overruled")

    def wake(self) -> None:
        """Make the trainer look at the next step boundary, or now if it is paused."""
        with self._changed:
            self.attention = True
            self._changed.notify_all()

    # Called by the trainer.

    def look(self, step: int) -> None:
        """Note that the trainer looks after ``step``: later requests trigger its next look."""
        self.attention = False
        self._step = step

    def wait(self) -> None:
        """Block until there is a request, or :meth:`wake` is called; this counts as a look."""
        with self._changed:
            self._changed.wait_for(lambda: self.attention)
            self.attention = False

    def wait_until_resumed(
        self, pause: PendingRequest[PauseRequest] | None, handle: Callable[[], object]
    ) -> PendingRequest[PauseRequest] | None:
        """Stay paused, as ``asked``, until a request resumes the run or it should stop.

        ``handle`` handles the other requests. Returns the one that resumed it, for the caller to answer.
        """
        self.answer(pause)
        handle()  # ranks take what came with the pause together: they wait at different times
        paused = True
        while paused and not self.stopping:
            self.wait()
            handle()
            pause = self.take(PauseRequest)
            paused = pause is None or pause.request.paused
            if paused:
                self.answer(pause)
        self.wake()  # requests that need a step still wait
        return pause

    def at_boundary(self, *, validating: bool = False) -> None:
        """Agree with the other ranks of a run of several; called before each step and validation batch."""

    def finish(self) -> None:
        """Wait for nothing any more, after the last step."""

    def newest(self, kind: type[R]) -> R | None:
        """The pending request of that kind, or None."""
        waiting = self._waiting.get(kind)
        return None if waiting is None else cast("R", waiting.request)

    def take(self, kind: type[R]) -> PendingRequest[R] | None:
        """Take the pending request of that kind, or None; the caller answers it."""
        if kind not in self._waiting:
            return None
        with self._changed:
            return self._waiting.pop(kind, None)

    def answer(self, request: PendingRequest[Any] | None, trouble: str = "") -> None:
        """Answer that a request is done, or that it failed with ``trouble``. From any thread.

        Does nothing for None or for a request that has its answer.
        """
        if trouble:
            self.refuse(request, "failed", trouble)
            return
        for record in self._open(request):
            self._emit(RequestTaken(time=time.time(), step=self._step, request=record))

    def refuse(self, request: PendingRequest[Any] | None, reason: Refusal, detail: str = "") -> None:
        """Answer that a request will not be done; otherwise like :meth:`answer`."""
        for record in self._open(request):
            self._emit(self._refusal(record, reason, detail))

    def close(self, why: str = "the run has ended") -> None:
        """Refuse every request without an answer, taken or not, and all that follow; but not a stop."""
        with self._changed:
            self._closed = why
            self._waiting.clear()
            unanswered, self._unanswered = self._unanswered, {}
        for record in unanswered.values():
            self._emit(self._refusal(record, "unavailable", why))

    def _refusal(self, record: RequestMade, reason: Refusal, detail: str) -> RequestRefused:
        return RequestRefused(time=time.time(), step=self._step, request=record, reason=reason, detail=detail)

    def _open(self, request: PendingRequest[Any] | None) -> list[RequestMade]:
        """Those of ``asked`` without an answer, which they get now."""
        if request is None:
            return []
        with self._changed:
            open_ = [record for record in request.records if record.number in self._unanswered]
            for record in open_:
                del self._unanswered[record.number]
        return open_
