"""What can be asked of a run: the requests, and the place where its trainer finds them between two steps."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from amptui.answers import Refusal, RequestKind, RequestMade, RequestRefused, RequestTaken
from amptui.records import PRECISIONS, Record

MAX_REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    """The steps to come shall run in ``precision``. Raises ValueError for one that does not exist."""

    precision: str

    def __post_init__(self) -> None:
        _check_precision(self.precision)


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """The trainer shall stand still after the current step, or go on."""

    paused: bool


@dataclass(frozen=True, slots=True)
class XRayRequest:
    """The next step's batch shall be looked at in FP32 and in AMP, layer by layer."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """The next steps shall run with hooks on every module."""


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """These precisions shall run in turns until their speeds are known; none of them ends a comparison.

    The first is what the others are compared with. Raises ValueError for one alone, or one twice.
    """

    precisions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for precision in self.precisions:
            _check_precision(precision)
        if not len(set(self.precisions)) == len(self.precisions) != 1:
            raise ValueError("a comparison needs two or more different precisions")


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A checkpoint shall be written after the current step."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The run shall come to a clean end after the current step. Raises ValueError for a long reason."""

    reason: str

    def __post_init__(self) -> None:
        if len(self.reason) > MAX_REASON_CHARACTERS:
            raise ValueError("the reason is too long")


Request = (
    PrecisionRequest
    | PauseRequest
    | XRayRequest
    | TraceRequest
    | ComparisonRequest
    | CheckpointRequest
    | StopRequest
)
"""What somebody can ask of a run."""

REQUESTS: Mapping[RequestKind, type[Request]] = {
    "precision": PrecisionRequest,
    "pause": PauseRequest,
    "x-ray": XRayRequest,
    "trace": TraceRequest,
    "comparison": ComparisonRequest,
    "checkpoint": CheckpointRequest,
    "stop": StopRequest,
}
"""Each by the name that it has in records and on its way to a run."""

KINDS: Mapping[type[Request], RequestKind] = {request: kind for kind, request in REQUESTS.items()}

R = TypeVar("R", bound=Request)


def new_number() -> int:
    """A number that no other request has. Python's own random numbers belong to the training."""
    return int.from_bytes(os.urandom(6), "big")


def record_of(request: Request, number: int) -> RequestMade:
    """The record that somebody asks for this now."""
    facts: dict[str, Any] = asdict(request)
    return RequestMade(time=time.time(), number=number, kind=KINDS[type(request)], **facts)


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError("no such precision")


class Asker(Protocol):
    """Asks a run, in this process or in another one."""

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to end, by way of this; None while it was not."""

    def ask(self, request: Request) -> int:
        """Ask without waiting; the number that the request's records have."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[R]):
    """A request as the trainer takes it: what is asked for, and the records of all who ask for just that."""

    request: R
    made: tuple[RequestMade, ...]


def _tell_nobody(_record: Record) -> None:
    """Nothing is recorded."""


class Control:
    """Requests that cross to the trainer's thread, and its answers, which ``emit`` gets as records.

    Asking never waits. The trainer takes requests only between two optimizer steps, so that none cuts a step
    in half, and answers each once; a stop is answered by the end. Of two that wait and differ, both for a
    precision say, the later one counts, and the earlier one is refused at once.
    """

    def __init__(self, emit: Callable[[Record], object] = _tell_nobody) -> None:
        self._emit = emit
        self._changed = threading.Condition()
        self._waiting: dict[type[Any], Asked[Any]] = {}
        self._unanswered: set[int] = set()
        self._stop_reason: str | None = None
        self._step = 0
        self.attention = False
        """Whether anything was asked for since the trainer last looked; it clears this before it reads."""
        self.is_copy = False
        """Whether this process was forked off the one that trains: it must not train on."""

    def become_copy(self) -> None:
        """In a forked process: what is asked for is asked of the other one."""
        self._changed = threading.Condition()  # somebody may have held it, who is not here
        self.is_copy = self.attention = True

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end, or None while it should go on; the first reason is kept."""
        return self._stop_reason

    def ask(self, request: Request, number: int | None = None) -> int:
        """See :class:`Asker`; ``number`` is that of a request from another process."""
        made = record_of(request, new_number() if number is None else number)
        self._emit(made)
        overruled: Asked[Any] | None = None
        with self._changed:
            if isinstance(request, StopRequest):
                self._stop_reason = self._stop_reason or request.reason
            else:
                overruled = self._put(request, made)
            self.wake()
        self.refuse(overruled, "overruled")
        return made.number

    def _put(self, request: Request, made: RequestMade) -> Asked[Any] | None:
        """Let ``request`` wait; what it overrules."""
        self._unanswered.add(made.number)
        before = self._waiting.get(type(request))
        same = before is not None and before.request == request
        others = before.made if before is not None and same else ()
        self._waiting[type(request)] = Asked(request, (*others, made))
        return None if same else before

    def wake(self) -> None:
        """Have the trainer look at the next step boundary, or now where it stands still."""
        with self._changed:
            self.attention = True
            self._changed.notify_all()

    # What the trainer's side calls.

    def look(self, step: int) -> None:
        """The trainer looks after ``step``: what is asked for from now on brings its next look."""
        self.attention = False
        self._step = step

    def wait(self) -> None:
        """Block until something is asked for, or :meth:`wake` is called, and count that as a look."""
        with self._changed:
            self._changed.wait_for(lambda: self.attention)
            self.attention = False

    def newest(self, kind: type[R]) -> R | None:
        """The request of that kind that waits to be taken; None without one."""
        asked = self._waiting.get(kind)
        return None if asked is None else cast("R", asked.request)

    def take(self, kind: type[R]) -> Asked[R] | None:
        """The request of that kind that waits; whoever takes it answers it."""
        if kind not in self._waiting:
            return None
        with self._changed:
            return self._waiting.pop(kind, None)

    def answer(self, asked: Asked[Any] | None, trouble: str = "") -> None:
        """It is done, or was tried and came to ``trouble``; from any thread.

        Does nothing for None, or for what has its answer.
        """
        if trouble:
            self.refuse(asked, "failed", trouble)
            return
        for made in self._open(asked):
            self._emit(RequestTaken(time=time.time(), step=self._step, request=made))

    def refuse(self, asked: Asked[Any] | None, reason: Refusal, detail: str = "") -> None:
        """It will not be done; otherwise as :meth:`answer`."""
        for made in self._open(asked):
            self._emit(
                RequestRefused(time=time.time(), step=self._step, request=made, reason=reason, detail=detail)
            )

    def _open(self, asked: Asked[Any] | None) -> list[RequestMade]:
        """Those of ``asked`` without an answer, which they get now."""
        if asked is None:
            return []
        with self._changed:
            open_ = [made for made in asked.made if made.number in self._unanswered]
            self._unanswered.difference_update(made.number for made in open_)
        return open_
