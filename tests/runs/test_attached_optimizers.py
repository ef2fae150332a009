"""A screen that attaches to a run with several optimizers knows all of them, and may look at any."""

import threading
from pathlib import Path

from amptui.records import codec
from amptui.runs.client import Client
from amptui.runs.socket_place import connect
from amptui.telemetry.session import Session
from tests.gan_journal import DISCRIMINATOR, gan_records
from tests.runs.served import ENOUGH_SECONDS, running, until
from tests.telemetry.test_state import same


def test_a_screen_that_attaches_sees_every_optimizer(tmp_path: Path) -> None:
    records = list(gan_records(60))
    session, viewer, ended = Session("runs/gan"), Session(), threading.Event()
    session.fold(records[:100])
    with running(tmp_path) as run:
        client = Client(
            connect(tmp_path), restore=viewer.restore, fold=viewer.fold, asked=lambda _made: None, ended=ended
        )
        client.start()
        until(lambda: viewer.view().optimizers, meanwhile=lambda: run.server.publish(b"", session.state))
        session.fold(records[100:])
        lines = "".join(f"{codec.dumps(record)}\n" for record in records[100:])
        run.server.publish(lines.encode(), session.state)
        until(lambda: viewer.view().outcome is not None)
        for name in ("", DISCRIMINATOR):
            assert same(viewer.view(name), session.view(name))
        client.leave("detached", ENOUGH_SECONDS)
    assert client.error == ""
