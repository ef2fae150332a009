"""The queue of requests to a run, from which its trainer takes them between two steps."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from amptui.records.answers import Refusal, RequestKind, RequestMade, RequestRefused, RequestTaken
from amptui.records.run import Record

NO_XRAY = "an X-ray needs a training in one process"
"""Why several ranks refuse one."""


class Asker(Protocol):
    """Sends requests to a run, in this process or in another one."""

    @property
    def stop_reason(self) -> str | None:
        """The reason with which this asker asked the run to stop; None if it did not."""

    def ask(self, request: RequestMade) -> int:
        """Send a request without waiting; return the number that its records have."""


Queue = dict[RequestKind, RequestMade]
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
        self._unanswered: dict[int, list[RequestMade]] = {}
        """By the number of the one that the trainer takes, all that ask for the same."""
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

    def ask(self, request: RequestMade) -> int:
        """See :class:`Asker`."""
        self._emit(request)
        if request.kind == "stop":
            self._stop_reason = self._stop_reason or request.reason
            self.ends_at_once |= request.at_once
        else:
            with self._changed:
                self._unanswered.setdefault(request.number, []).append(request)
            self._put(self._queue(request.kind), request)
        self.wake()
        if self._closed:
            self.close(self._closed)
        return request.number

    def _queue(self, kind: RequestKind) -> Queue:  # noqa: ARG002 - ranks agree on some kinds first
        """Where requests of that kind wait."""
        return self._waiting

    def _put(self, queue: Queue, *requests: RequestMade) -> None:
        """Add requests to ``queue``: each joins one that asks for the same, or overrules another."""
        overruled = []
        with self._changed:
            for newer in requests:
                before = queue.get(newer.kind)
                if before is not None and before.asks_the_same(newer):
                    same = self._unanswered.pop(newer.number, [])
                    self._unanswered.setdefault(before.number, []).extend(same)
                else:
                    queue[newer.kind] = newer
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
        self, pause: RequestMade | None, handle: Callable[[], object]
    ) -> RequestMade | None:
        """Stay paused, as ``asked``, until a request resumes the run or it should stop.

        ``handle`` handles the other requests. Returns the one that resumed it, for the caller to answer.
        """
        self.answer(pause)
        handle()  # ranks take what came with the pause together: they wait at different times
        paused = True
        while paused and not self.stopping:
            self.wait()
            handle()
            pause = self.take("pause")
            paused = pause is None or bool(pause.paused)
            if paused:
                self.answer(pause)
        self.wake()  # requests that need a step still wait
        return pause

    def at_boundary(self, *, validating: bool = False) -> None:
        """Agree with the other ranks of a run of several; called before each step and validation batch."""

    def finish(self) -> None:
        """Wait for nothing any more, after the last step."""

    def newest(self, kind: RequestKind) -> RequestMade | None:
        """The pending request of that kind, or None."""
        return self._waiting.get(kind)

    def take(self, kind: RequestKind) -> RequestMade | None:
        """Take the pending request of that kind, or None; the caller answers it."""
        if kind not in self._waiting:
            return None
        with self._changed:
            return self._waiting.pop(kind, None)

    def answer(self, request: RequestMade | None, trouble: str = "") -> None:
        """Answer that a request is done, or that it failed with ``trouble``. From any thread.

        Does nothing for None or for a request that has its answer.
        """
        if trouble:
            self.refuse(request, "failed", trouble)
            return
        for record in self._open(request):
            self._emit(RequestTaken(time=time.time(), step=self._step, request=record))

    def refuse(self, request: RequestMade | None, reason: Refusal, detail: str = "") -> None:
        """Answer that a request will not be done; otherwise like :meth:`answer`."""
        for record in self._open(request):
            self._emit(self._refusal(record, reason, detail))

    def close(self, why: str = "the run has ended") -> None:
        """Refuse every request without an answer, taken or not, and all that follow; but not a stop."""
        with self._changed:
            self._closed = why
            self._waiting.clear()
            unanswered, self._unanswered = self._unanswered, {}
        for requests in unanswered.values():
            for request in requests:
                self._emit(self._refusal(request, "unavailable", why))

    def _refusal(self, record: RequestMade, reason: Refusal, detail: str) -> RequestRefused:
        return RequestRefused(time=time.time(), step=self._step, request=record, reason=reason, detail=detail)

    def _open(self, request: RequestMade | None) -> list[RequestMade]:
        """All that ask for the same and have no answer, which they get now."""
        with self._changed:
            return [] if request is None else self._unanswered.pop(request.number, [])
