"""What is sent to a webhook, and that nothing but the host of its URL is ever shown."""

import json

import pytest

from amptui.base.notify_url import VARIABLE, take_url
from amptui.base.webhook import DeliveryError, News, parse_webhook, post
from tests.webhooks import SECRET, receiver

NEWS = News("knobs: done after 30 steps, 漢字", "20260101-knobs", "gpu-7")
LINE = "knobs: done after 30 steps, 漢字 (20260101-knobs on gpu-7)"


@pytest.mark.ci
def test_a_webhook_gets_one_line_of_json_and_a_server_of_ntfy_plain_text() -> None:
    with receiver() as server:
        for prefix in ("", "ntfy:"):
            post(parse_webhook(f"{prefix}{server.url}"), NEWS, timeout_seconds=5)
        sent, plain = server.posts
    assert sent.path == f"/{SECRET}?key={SECRET}"
    assert json.loads(sent.body) == {"text": LINE, "content": LINE}
    assert sent.headers["Content-Type"] == "application/json"
    assert sent.headers["Authorization"].startswith("Basic ")
    assert sent.headers["User-Agent"] == "amptui"
    assert (plain.body.decode(), plain.headers["Title"]) == (LINE, "amptui")


@pytest.mark.parametrize(
    ("url", "place", "is_ntfy"),
    [
        ("https://ntfy.sh/topic", "ntfy.sh", True),
        ("https://ntfy.example.org/topic", "ntfy.example.org", True),
        ("ntfy:http://push.example.org:8080/topic", "push.example.org:8080", True),
        ("https://hooks.slack.com/services/T/B/X", "hooks.slack.com", False),
        ("https://me:pw@example.org/x", "example.org", False),
        ("http://[::1]:99/x", "[::1]:99", False),
    ],
)
def test_urls(url: str, place: str, *, is_ntfy: bool) -> None:
    webhook = parse_webhook(url)
    assert (webhook.place, webhook.is_ntfy) == (place, is_ntfy)
    assert "pw" not in webhook.url
    assert repr(webhook) == f"Webhook(place={place!r}, is_ntfy={is_ntfy})"


@pytest.mark.parametrize(
    "url",
    [
        *("", SECRET, f"ftp://host/{SECRET}", f"file:///{SECRET}", f"https:///{SECRET}", "ntfy:", "http://"),
        *(
            f"https://host:{SECRET}/x",
            f"https://[{SECRET}/x",
            f"https://host/{SECRET} x",
            f"https://é/{SECRET}",
        ),
        *(f"https://host/{SECRET}\r\nX: y", f"https://host:99999/{SECRET}"),
    ],
)
def test_what_is_no_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="URL") as caught:
        parse_webhook(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)


@pytest.mark.ci
def test_no_redirect_is_followed() -> None:
    with receiver() as other:
        for status in (301, 307):
            with receiver(status, location=other.url) as server:
                with pytest.raises(DeliveryError, match=f"^HTTP {status}$"):
                    post(parse_webhook(server.url), NEWS, timeout_seconds=5)
                assert len(server.posts) == 1
        assert other.posts == []


def test_the_variable_is_taken_away() -> None:
    environment = {VARIABLE: "https://host/x", "HOME": "/"}
    assert take_url(environment) == "https://host/x"
    assert environment == {"HOME": "/"}
    assert take_url(environment) == ""
