"""News reaches a webhook once, in order, and never holds up the run that it is about."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from amptui.base.webhook import parse_webhook
from amptui.process import recording
from amptui.process.recording import Notifier
from amptui.records.run import Note, Record, RunFinished
from amptui.telemetry.session import Session
from tests.builders import make_started
from tests.checkout import ROOT
from tests.living import wait_until
from tests.webhooks import receiver

HOURS = 7200.0


class Run:
    def __init__(self, url: str) -> None:
        self.session = Session("runs/knobs-1")
        self.session.fold([make_started(time=time.time())])
        self.said: list[Note] = []
        self.notifier = Notifier(parse_webhook(url), read_view=self.session.view, say=self.said.append)

    def tell(self, *records: Record) -> None:
        self.session.fold(records)

    def end(self) -> None:
        """End the run, and wait until its notifier lets it."""
        self.tell(RunFinished(time=time.time(), steps=9, seconds=3.0, reason="done"))
        self.notifier.close()


@contextmanager
def running(url: str) -> Iterator[Run]:
    run = Run(url)
    run.notifier.start()
    yield run
    run.notifier.close()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(recording, "RETRY_SECONDS", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def alarm(text: str) -> Note:
    return Note(time=time.time(), severity="error", text=text)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("statuses", "posts", "reason"),
    [((503,), 2, ""), ((500, 429), 2, "HTTP 429"), ((403,), 1, "HTTP 403"), ((302,), 1, "HTTP 302")],
    ids=["sent again", "given up after a second attempt", "a refusal is final", "so is a redirect"],
)
def test_a_message_that_fails_is_sent_once_more_and_given_up_with_one_event(
    statuses: tuple[int, ...], posts: int, reason: str
) -> None:
    with receiver(*statuses) as server, running(server.url) as run:
        run.tell(alarm("disk full"))
        assert len({sent.body for sent in server.wait_for(posts)}) == 1
        if reason:
            wait_until(lambda: run.said, "not given up")
        run.tell(alarm("another"))
        assert "another" in server.wait_for(posts + 1)[-1].text
    place = f"127.0.0.1:{server.server_port}"
    assert [note.text for note in run.said] == ([f"could not notify {place}: {reason}"] if reason else [])
    assert len(server.posts) == posts + 1


@pytest.mark.ci
def test_a_silent_server_holds_up_the_end_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "CLOSING_SECONDS", 0.5)
    monkeypatch.setattr(recording, "TIMEOUT_SECONDS", HOURS)
    with receiver() as server, running(server.url) as run:
        server.gate.clear()
        run.end()
        (note,) = run.said
    assert note.text == f"could not notify 127.0.0.1:{server.server_port}: no answer before the run's end"


@pytest.mark.ci
def test_the_end_cuts_the_pause_before_a_retry_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "RETRY_SECONDS", HOURS)
    monkeypatch.setattr(recording, "CLOSING_SECONDS", HOURS)
    with receiver(500) as server, running(server.url) as run:
        run.tell(alarm("disk full"))
        server.wait_for(1)
        run.end()
    assert ["disk full" in sent.text for sent in server.posts] == [True, True, False]
    assert run.said == []


@pytest.mark.ci
def test_workers_that_are_forked_meanwhile_never_meet_half_an_import() -> None:
    """A module that another thread imports at the time of a fork can never be imported in the child."""
    code = """
import sys
from amptui.base.webhook import DeliveryError, News, parse_webhook, post
from amptui.process.recording import Notifier
from amptui.telemetry.view import SessionView

webhook = parse_webhook("http://localhost:1")
notifier = Notifier(webhook, read_view=SessionView, say=print)
assert "http.client" not in sys.modules, "or this test shows nothing"
notifier.start()
notifier.close()
before = {*sys.modules}
try:
    post(webhook, News("text", "run", "host"), timeout_seconds=5)
except DeliveryError:
    print(*sorted({*sys.modules} - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "\n"
