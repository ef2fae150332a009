"""Sends a run's news to a webhook, from a thread of its own: nobody waits for the server."""

import socket
import threading
import time
from collections.abc import Callable

from amptui.base.notify_url import VARIABLE
from amptui.base.prompt import complain
from amptui.base.webhook import DeliveryError, News, Webhook, parse_webhook, post
from amptui.diagnosis.alerts import Alerts
from amptui.records.run import Note
from amptui.telemetry.view import SessionView

POLL_SECONDS = 1.0
"""How often there may be news."""

RETRY_SECONDS = 10.0
"""The pause before a message is sent a second and last time; the end of the run cuts it short."""

TIMEOUT_SECONDS = 5.0
"""How long the server may take to answer."""

CLOSING_SECONDS = 5.0
"""How long the end of a run waits at most for its last messages."""

_LAST_RECORD_SECONDS = 1.0
"""How long the last record may take to arrive: the recorder writes ten times a second."""

_CLOSING_POLL_SECONDS = 0.05


def webhook_of(url: str) -> Webhook | None:
    """The webhook of a run; a wrong URL, which only a script may have, stops no training."""
    try:
        return parse_webhook(url) if url else None
    except ValueError as error:
        complain(f"{VARIABLE}: {error}")
        return None


class Notifier:
    """Follows a run by ``read_view`` and sends to ``webhook`` what deserves a bell, until :meth:`close`.

    ``say`` takes the event of a message that could not be sent, one until another is sent.
    """

    def __init__(
        self,
        webhook: Webhook,
        *,
        read_view: Callable[[], SessionView],
        say: Callable[[Note], object],
    ) -> None:
        self._webhook = webhook
        self._read_view = read_view
        self._say = say
        self._alerts = Alerts(time.time())
        self._closing = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._follow, name="amptui-notifier", daemon=True)

    def start(self) -> None:
        """Start the thread.

        What it imports is imported before: workers that are forked in the middle of that could never do so.
        """
        import encodings.idna  # noqa: F401
        import http.client  # noqa: F401
        import urllib.request  # noqa: F401

        self._thread.start()

    def close(self) -> None:
        """Send the last news; return after ``CLOSING_SECONDS`` at the latest."""
        if self._thread.ident is None:
            return
        self._closing.set()
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():  # it may hang in a request until the process ends
            self._fail("no answer before the run's end")

    def _follow(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self._send_news()
        limit = time.monotonic() + _LAST_RECORD_SECONDS
        while not self._send_news() and time.monotonic() < limit:
            time.sleep(_CLOSING_POLL_SECONDS)

    def _send_news(self) -> bool:
        """Send what has happened since the last call; return whether the run is over."""
        view = self._read_view()
        if text := self._alerts.news(view):
            self._send(News(text, view.folder_name, socket.gethostname()), last_attempt=False)
        return view.outcome is not None

    def _send(self, news: News, *, last_attempt: bool) -> None:
        try:
            post(self._webhook, news, timeout_seconds=TIMEOUT_SECONDS)
            self._is_failing = False
        except DeliveryError as error:
            if error.is_final or last_attempt:
                self._fail(str(error))
            else:
                self._closing.wait(RETRY_SECONDS)
                self._send(news, last_attempt=True)

    def _fail(self, reason: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            text = f"could not notify {self._webhook.place}: {reason}"
            self._say(Note(time=time.time(), severity="warning", text=text))
