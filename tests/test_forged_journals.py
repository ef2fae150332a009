"""Whatever is in a journal: it is a damaged line, or what every export, replay and screen takes."""

import importlib.util
import io
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from amptui.diagnosis.amp_answer import amp_answer, answer_line, evidence_rows
from amptui.diagnosis.summary import summary_lines
from amptui.process.plain_lines import PlainFront
from amptui.records.run import LOW_PRECISIONS, Record
from amptui.reports.export import export
from amptui.reports.run_list import read_row
from amptui.runs.journal import JournalReader
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.layout import RANKED_PANELS
from amptui.tui.overlays.event_browser import EventBrowser
from amptui.tui.overlays.menus import PrecisionMenu
from amptui.tui.overlays.questions import LossScaleQuestion
from amptui.tui.overlays.xray_overlay import XRay
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.replay.player import Player
from amptui.tui.replay.screen import position_words
from amptui.tui.run_list import frame as run_list
from amptui.tui.run_list.entry import RunEntry
from amptui.tui.run_list.frame import ListState
from tests.forging import LINES, REAL, forged_journals

TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


def drawn(view: SessionView) -> None:
    """Draw everything that a screen can show of it."""
    frame, canvas = Frame(), Canvas(120, 40)
    state = ScreenState(now=view.device.time if view.device else 0.0)
    for focus in (None, *RANKED_PANELS):
        frame.draw(canvas, view, replace(state, focus=focus, log_y=focus == "loss", zoom=focus is None))
    for width, height in ((80, 24), (200, 60)):
        frame.draw(Canvas(width, height), view, state)
    for overlay in (EventBrowser(), XRay(), LossScaleQuestion(), PrecisionMenu(view)):
        overlay.draw(canvas, view, state)
        for key in ("o", "down", "enter", "pagedown"):
            overlay.press(key, view)
            overlay.draw(canvas, view, state)
    summary_lines(view)
    for precision in LOW_PRECISIONS:
        answer_line(answer := amp_answer(view, precision))
        evidence_rows(answer)


def folded(records: Iterable[Record]) -> Session:
    """As a replay, a screen and the plain lines take them."""
    session = Session("runs/x")
    front = PlainFront(session.view, io.StringIO())
    for record in records:
        session.fold([record])
        front.update()
    front.finish()
    return session


def used_in_every_way(folder: Path) -> None:
    """All that amptui does with a journal."""
    session = folded(JournalReader(RunDir(folder).journal_path))
    drawn(session.view())
    attached = Session()
    attached.restore(json.loads(session.state()))
    Frame().draw(Canvas(120, 40), attached.view(), ScreenState(now=0.0))
    tensorboard = folder / "board" if TENSORBOARD else None
    export(folder, csv=folder / "steps.csv", html=folder / "page.html", tensorboard=tensorboard)
    look_at(RunDir(folder))
    row = read_row(str(folder))
    entry = RunEntry(run=str(folder), name=folder.name, is_live=False, written=0.0, read=lambda: row)
    listed = Canvas(200, 20)
    run_list.draw(listed, ListState(entries=[entry], rows={entry.run: row}), ScreenState(now=0.0))
    assert row.state in listed.lines()[2]
    play(folder)


def play(folder: Path) -> None:
    """A replay that is at its end after a few ticks of the clock."""
    player = Player(RunDir(folder).journal_path, speed=4096.0)
    player.seek(player.position.total_seconds)
    now = 0.0
    while player.position.state != "ended":
        player.advance(now)
        now += 1.0
        drawn_words = position_words(player.position)
        assert len(drawn_words) < 80
        player.look()
    player.stop()


def written(folder: Path, journal: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    RunDir(folder).journal_path.write_bytes(journal)
    return folder


def test_a_run_of_every_kind_is_used_in_every_way(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", "".join(f"{line}\n" for line in LINES).encode())
    reader = JournalReader(RunDir(folder).journal_path)
    assert len(list(reader)) == len(REAL)
    assert (reader.damaged_lines, reader.torn) == (0, False)
    used_in_every_way(folder)


@pytest.mark.ci
@settings(max_examples=max(8, settings().max_examples // 4))  # each takes a tenth of a second
@given(journal=forged_journals())
def test_no_forged_journal_breaks_what_reads_it(
    tmp_path_factory: pytest.TempPathFactory, journal: bytes
) -> None:
    used_in_every_way(written(tmp_path_factory.mktemp("forged"), journal))
