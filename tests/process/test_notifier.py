"""News reaches a webhook once, in order, and never holds up the run that it is about."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import pytest

from amptui.base.webhook import parse_webhook
from amptui.process import notifier
from amptui.process.notifier import Notifier
from amptui.records.run import Note, PauseChanged, Record, RunFailed, RunFinished
from amptui.telemetry.session import Session
from tests.builders import make_started
from tests.checkout import ROOT
from tests.living import wait_until
from tests.webhooks import SECRET, receiver

HOURS = 7200.0


class Run:
    """A session and what its notifier says of its own trouble."""

    def __init__(self, url: str, retry_seconds: Sequence[float] = (0.01, 0.02, 0.04)) -> None:
        self.session = Session("runs/knobs-1")
        self.session.fold([make_started(time=time.time())])
        self.said: list[Note] = []
        self.notifier = Notifier(
            parse_webhook(url), look=self.session.status, say=self.said.append, retry_seconds=retry_seconds
        )

    def tell(self, *records: Record) -> None:
        self.session.fold(records)

    def end(self) -> threading.Thread:
        """End the run meanwhile."""
        self.tell(RunFinished(time=time.time(), steps=9, seconds=3.0, reason="done"))
        thread = threading.Thread(target=self.notifier.close, daemon=True)
        thread.start()
        return thread

    def fail_to_send(self) -> None:
        """Start, with a message that was tried once in vain."""
        self.notifier.start()
        self.tell(alarm("disk full"))
        wait_until(lambda: any(it.attempts == 1 for it in [*self.notifier._waiting]), "no attempt")


@contextmanager
def running(url: str) -> Iterator[Run]:
    run = Run(url)
    run.notifier.start()
    yield run
    run.notifier.close(awaits_end=False)


def ended(thread: threading.Thread) -> bool:
    thread.join(60.0)
    return not thread.is_alive()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "LOOK_INTERVAL_SECONDS", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def alarm(text: str) -> Note:
    return Note(time=time.time(), severity="error", text=text)


@contextmanager
def nobody_listening() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@pytest.mark.ci
def test_every_kind_is_sent_once() -> None:
    with receiver() as server, running(server.url) as run:
        paused = PauseChanged(
            time=time.time(), step=9, paused=True, cause="weights", reason="the loss is nan"
        )
        failed = RunFailed(time=time.time(), step=9, error="wrong; do this", traceback="Traceback")
        records: tuple[Record, ...] = (alarm("disk full"), paused, failed)
        for count, record in enumerate(records, 1):
            run.tell(record)
            server.wait_for(count)
        run.notifier.close()
        texts = [sent.text.partition(" (knobs-1 on ")[0] for sent in server.posts]
    assert texts == [
        "mnist-deep: disk full",
        "mnist-deep needs an answer: the loss is nan",
        "mnist-deep: failed: wrong; do this",
    ]
    assert run.said == []


@pytest.mark.ci
def test_a_message_that_fails_is_sent_again_with_growing_pauses() -> None:
    with receiver(500, 503, 429) as server, running(server.url) as run:
        run.tell(alarm("disk full"))
        posts = server.wait_for(4)
        assert len({sent.body for sent in posts}) == 1
        pauses = [after.seconds - before.seconds for before, after in pairwise(posts)]
        assert all(pause >= least for pause, least in zip(pauses, (0.01, 0.02, 0.04), strict=True))
    assert run.said == []


@pytest.mark.ci
def test_a_message_is_given_up_with_one_quiet_event() -> None:
    with receiver(*[500] * 8) as server, running(server.url) as run:
        run.tell(alarm("disk full"))
        wait_until(lambda: run.said, "not given up")
        assert len(server.posts) == 4
        run.tell(alarm("another"))
        assert len({sent.body for sent in server.wait_for(8)}) == 2
        run.tell(alarm("a third"))
        server.wait_for(9)
    (note,) = run.said
    assert note.severity == "warning"
    assert note.text == f"could not notify 127.0.0.1:{server.server_port}: HTTP 500"
    assert len(server.posts) == 9  # nothing of the first two came again


@pytest.mark.ci
def test_a_refusal_is_final() -> None:
    with receiver(403) as server, running(server.url) as run:
        run.tell(alarm("disk full"))
        wait_until(lambda: run.said, "not given up")
    assert len(server.posts) == 1
    assert run.said[0].text.endswith(": HTTP 403")


# ------------------------------------------------------------------ the end, and a server that is not there


@pytest.mark.ci
@pytest.mark.parametrize("has_failed", [True, False], ids=["never answered", "is silent at the end"])
def test_a_silent_server_holds_up_the_end_for_one_attempt(
    *, has_failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(notifier, "LAST_ATTEMPT_SECONDS", 0.5)
    monkeypatch.setattr(notifier, "CLOSING_SECONDS", HOURS if has_failed else 1.0)
    with receiver() as server:
        server.gate.clear()
        run = Run(server.url, retry_seconds=(HOURS,))
        if has_failed:
            run.fail_to_send()
        else:
            run.notifier.start()
        assert ended(run.end())
    (note,) = run.said
    assert note.text == f"could not notify 127.0.0.1:{server.server_port}: no answer in time"
    assert SECRET not in note.text


@pytest.mark.ci
@pytest.mark.parametrize("during", ["the run", "its end"])
def test_a_server_that_is_there_again_gets_everything(during: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "CLOSING_SECONDS", HOURS)
    monkeypatch.setattr(notifier, "LAST_ATTEMPT_SECONDS", 60.0)
    retries = (HOURS,) if during == "its end" else (0.01,) * 100_000
    with nobody_listening() as port:
        run = Run(f"http://127.0.0.1:{port}/{SECRET}", retry_seconds=retries)
        run.notifier.start()
        run.tell(alarm("disk full"))
        wait_until(lambda: any(it.attempts for it in [*run.notifier._waiting]), "no attempt")
    with receiver(port=port) as server:
        if during == "the run":
            server.wait_for(1)
        assert ended(run.end())
    assert ["disk full" in sent.text for sent in server.posts] == [True, False]
    assert run.said == []


@pytest.mark.ci
def test_workers_that_are_forked_meanwhile_never_meet_half_an_import() -> None:
    """A module that another thread imports at the time of a fork can never be imported in the child."""
    code = """
import sys
from amptui.base.webhook import DeliveryError, News, parse_webhook, post
from amptui.process.notifier import Notifier
from amptui.telemetry.view import RunStatus

webhook = parse_webhook("http://localhost:1")
notifier = Notifier(webhook, look=RunStatus, say=print)
assert "http.client" not in sys.modules, "or this test shows nothing"
notifier.start()
notifier.close(awaits_end=False)
before = {*sys.modules}
try:
    post(webhook, News("text", "run", "host"), timeout_seconds=5)
except DeliveryError:
    print(*sorted({*sys.modules} - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "\n"
