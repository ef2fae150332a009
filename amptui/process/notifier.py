"""Sends a run's news to a webhook, from a thread of its own: nobody waits for the server."""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amptui.base.webhook import DeliveryError, News, Webhook, post
from amptui.diagnosis.alerts import Alerts
from amptui.records.run import Note
from amptui.telemetry.view import RunStatus

LOOK_INTERVAL_SECONDS = 1.0
"""How often there is a look for news."""

RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""The pauses before a message is sent again: seven attempts in about a minute, then it is given up."""

TIMEOUT_SECONDS = 5.0
"""How long the server may take to answer."""

CLOSING_SECONDS = 8.0
"""How long the end of a run waits at most for its last messages."""

LAST_ATTEMPT_SECONDS = 2.0
"""How long it waits if the server has answered nothing so far: a single attempt. TCP repeats a lost first
packet after one second (RFC 6298), so a server that is there again answers within two."""

_LAST_RECORD_SECONDS = 1.0
"""How long the last record may take to arrive: the recorder writes ten times a second."""

_CLOSING_LOOK_SECONDS = 0.05

_MAX_WAITING = 20
"""Older messages are dropped while a server answers none."""


@dataclass(slots=True)
class _Message:
    news: News
    due: float
    """On the monotonic clock."""
    attempts: int = 0


class Notifier:
    """Follows a run by ``look`` and sends to ``webhook`` what deserves a bell, until :meth:`close`.

    ``say`` takes the event of a message that could not be sent, one until another is sent. ``fate`` returns
    what became of a run that ended without its last record.
    """

    def __init__(
        self,
        webhook: Webhook,
        *,
        look: Callable[[], RunStatus],
        say: Callable[[Note], object],
        fate: Callable[[], str] = str,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self._webhook = webhook
        self._look = look
        self._say = say
        self._fate = fate
        self._retry_seconds = retry_seconds
        self._alerts = Alerts(time.time())
        self._waiting: deque[_Message] = deque(maxlen=_MAX_WAITING)
        self._closing = threading.Event()
        self._is_given_up = False
        self._has_answered: bool | None = None
        """Whether the server has ever answered; None before the first attempt."""
        self._was_silent = False
        """Whether it had not when the run ended, and was tried."""
        self._is_failing = False
        self._failing = threading.Lock()  # guards the one above
        self._reason = ""
        """Why the newest attempt failed."""
        self._awaits_end = self._is_over = False
        self._thread = threading.Thread(target=self._follow, name="amptui-notifier", daemon=True)

    def start(self) -> None:
        """Start the thread.

        What it imports is imported before: workers that are forked in the middle of that could never do so.
        """
        import encodings.idna  # noqa: F401
        import http.client  # noqa: F401
        import urllib.request  # noqa: F401

        self._thread.start()

    def close(self, *, awaits_end: bool = True) -> None:
        """Send the last news; return after ``CLOSING_SECONDS`` at the latest.

        A server that has answered nothing so far gets one more attempt, of ``LAST_ATTEMPT_SECONDS`` at most.
        ``awaits_end``: the run's last record is about to be shown.
        """
        if self._thread.ident is None:
            return
        self._awaits_end = awaits_end
        self._was_silent = self._has_answered is False
        self._closing.set()
        self._thread.join(LAST_ATTEMPT_SECONDS)
        if not self._has_one_attempt:
            self._thread.join(CLOSING_SECONDS - LAST_ATTEMPT_SECONDS)
        if self._thread.is_alive():
            self._is_given_up = True  # it may hang in a request until the process ends
            self._fail(self._reason or "no answer before the run's end")

    def _follow(self) -> None:
        while not self._closing.wait(LOOK_INTERVAL_SECONDS):
            self._look_for_news()
            self._send_due()
        limit = time.monotonic() + _LAST_RECORD_SECONDS
        pause = threading.Event()  # never set: it only waits
        for message in self._waiting:
            message.due = time.monotonic()
        while not self._is_given_up:
            self._look_for_news()
            self._send_due()
            may_leave = self._is_over or not self._awaits_end or time.monotonic() > limit
            if may_leave and not self._waiting:
                return
            pause.wait(_CLOSING_LOOK_SECONDS)

    def _look_for_news(self) -> None:
        status = self._look()
        fate = self._fate()
        self._is_over = status.outcome is not None or bool(fate)
        if text := self._alerts.news(status, fate=fate):
            news = News(text, status.folder_name, socket.gethostname())
            self._waiting.append(_Message(news, due=time.monotonic()))

    def _send_due(self) -> None:
        """Send what is due, in order; a message that fails is tried again later, or given up."""
        while self._waiting and self._waiting[0].due <= time.monotonic() and not self._is_given_up:
            message = self._waiting[0]
            timeout_seconds = LAST_ATTEMPT_SECONDS if self._has_one_attempt else TIMEOUT_SECONDS
            try:
                post(self._webhook, message.news, timeout_seconds=timeout_seconds)
            except DeliveryError as error:
                self._reason = str(error)
                self._has_answered = self._has_answered or error.status is not None
                if self._has_one_attempt:
                    self._waiting.clear()
                    self._fail(self._reason)
                    return
                if not error.is_final and message.attempts < len(self._retry_seconds):
                    message.due = time.monotonic() + self._retry_seconds[message.attempts]
                    message.attempts += 1
                    return
                self._fail(self._reason)
            else:
                self._has_answered, self._is_failing, self._reason = True, False, ""
            self._waiting.popleft()

    @property
    def _has_one_attempt(self) -> bool:
        return self._was_silent and not self._has_answered

    def _fail(self, reason: str) -> None:
        with self._failing:
            was_failing, self._is_failing = self._is_failing, True
        if not was_failing:
            text = f"could not notify {self._webhook.place}: {reason}"
            self._say(Note(time=time.time(), severity="warning", text=text))
