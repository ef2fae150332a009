"""Where a run sends its news: a URL, which is a secret, and how one message is sent there.

apprise knows a hundred services more, by seven packages of its own; this is one request to a URL.
"""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

NTFY = "ntfy:"
"""Before the URL of a ntfy server, unless its name is ntfy.sh or begins with ``ntfy.``."""

MAX_CHARACTERS = 1500
"""Of one news: Discord takes 2,000 characters in all."""

_PASSING = (408, 425, 429)
"""HTTP statuses of the client's errors after which the same request may succeed."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL of http or https. Only ``place`` may be shown."""

    url: str = field(repr=False)
    place: str
    """The host, with its port if the URL has one."""
    is_ntfy: bool
    """Whether it takes plain text instead of JSON."""
    credentials: str = field(default="", repr=False)
    """``user:password``, if the URL has them."""


@dataclass(frozen=True, slots=True)
class News:
    """What is sent, and all of it."""

    text: str
    """One line: what the bell says."""
    run: str
    """The name of the run's folder."""
    host: str


class DeliveryError(Exception):
    """A message was not sent. The reason holds nothing of the URL."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        """Of HTTP; None if the server answered nothing."""

    @property
    def is_final(self) -> bool:
        """Whether to try again is useless."""
        return self.status is not None and self.status < 500 and self.status not in _PASSING


def parse_webhook(text: str) -> Webhook:
    """The webhook that ``text`` names. Raises ValueError, whose message holds nothing of it."""
    from urllib.parse import unquote, urlsplit

    url = text.removeprefix(NTFY)
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("the URL has characters that must be percent-encoded")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("this is no URL") from None
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("the URL must begin with https:// or http:// and name a host")
    shown = f"[{host}]" if ":" in host else host
    place = shown if port is None else f"{shown}:{port}"
    credentials = unquote(parts.netloc.rpartition("@")[0])
    return Webhook(
        url=parts._replace(netloc=place, fragment="").geturl(),
        place=place,
        is_ntfy=text.startswith(NTFY) or host == "ntfy.sh" or host.startswith("ntfy."),
        credentials=credentials,
    )


def post(webhook: Webhook, news: News, *, timeout_seconds: float) -> None:
    """Send it once. Raises DeliveryError. Follows no redirect: the news is for one host.

    ``timeout_seconds`` is for connecting and for each answer of the server, not for the whole.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirect(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    text = news.text if len(news.text) <= MAX_CHARACTERS else f"{news.text[: MAX_CHARACTERS - 1]}…"
    line = f"{text} ({news.run} on {news.host})"
    if webhook.is_ntfy:
        body = line.encode("utf-8", "replace")
        headers = {"Title": "amptui", "Content-Type": "text/plain; charset=utf-8"}
    else:  # Slack and its kin read "text", Discord reads "content"
        body = json.dumps({"text": line, "content": line}).encode()
        headers = {"Content-Type": "application/json"}
    headers["User-Agent"] = "amptui"  # some services refuse Python's own
    if webhook.credentials:
        headers["Authorization"] = f"Basic {base64.b64encode(webhook.credentials.encode()).decode()}"
    request = Request(webhook.url, body, headers, method="POST")  # noqa: S310 - the scheme was checked
    try:
        build_opener(NoRedirect).open(request, timeout=timeout_seconds).close()
    except HTTPError as error:
        error.close()
        raise DeliveryError(f"HTTP {error.code}", status=error.code) from None
    except URLError as error:
        raise DeliveryError(_reason(error.reason)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise DeliveryError(_reason(error)) from None


def _reason(error: object) -> str:
    """Why, in words that hold no URL: those of the operating system, or the kind of error."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror and isinstance(error.errno, int):
        return error.strerror
    return type(error).__name__
