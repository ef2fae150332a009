"""Nothing hostile gets through to a terminal or a pipe, and a model that goes wrong costs no record."""

import csv
import importlib.util
import io
import json
import re
import shlex
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.diagnosis.amp_answer import amp_answer, answer_line, evidence_rows
from amptui.diagnosis.summary import summary_lines
from amptui.process.plain_lines import JsonLines, PlainFront
from amptui.records.run import LOW_PRECISIONS, Note, Record, RunFinished
from amptui.reports.compare.command import read_all
from amptui.reports.compare.compare_page import page
from amptui.reports.compare.tables import as_json, plain_lines
from amptui.reports.export.exporting import export
from amptui.runs.find import RunEntry
from amptui.runs.journal import JournalReader
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.frame import Frame
from amptui.tui.layout import RANKED_PANELS, TITLES
from amptui.tui.overlays.questions import LossScaleQuestion, PrecisionMenu
from amptui.tui.overlays.text_browser import EventBrowser
from amptui.tui.overlays.xray_overlay import XRay
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.replay import Player, position_words
from amptui.tui.run_list import frame as run_list
from amptui.tui.run_list.frame import ListState
from tests import poison
from tests.builders import write_journal
from tests.forging import LINES, REAL, forged_journals
from tests.living import (
    ended_afterwards,
    last_step,
    outcome,
    records_of,
    wait_for_end,
    wait_until,
)
from tests.reports.compare.compared_runs import FP32
from tests.terminal import KNOBS, Terminal, amptui_command
from tests.warm import WarmSource

SIZE = (100, 30)

EVIL_NAME = "m\x1b[5;41m\x1b]0;t\x07\u202e\x9b\n\U000e0041漢.py"
"""A file's name holds all but a slash and a NUL."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / EVIL_NAME
    shutil.copy(Path(__file__).parent / "recipes" / "poisoned.py", path)
    (tmp_path / "poison.json").write_text(json.dumps(list(islice(poison.words(), 50))))
    return path


@pytest.mark.ci
def test_a_hostile_model_in_a_pipe(model: Path, warm: WarmSource, tmp_path: Path) -> None:
    command = ["train", str(model), "--device", "cpu", "--run-dir", str(tmp_path / "run")]
    # What a model prints without a screen is its own affair, as in any program; all the rest is ours.
    done = warm.run(*command, "--headless", "--set", "at=30")
    assert done.returncode == 1
    assert not poison.strange_in_lines(done.stdout)
    assert not poison.strange_in_lines(done.stderr)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(b"amptui: ")
    assert b"in step 30" in last


@pytest.fixture
def forged(tmp_path: Path) -> Path:
    long = Note(time=100.9, severity="error", text="long " * 20_000)
    return write_journal(tmp_path / EVIL_NAME, [*poison.poisoned_records(), long])


@pytest.mark.ci
def test_a_forged_journal_on_the_screen(forged: Path, warm: WarmSource) -> None:
    command = amptui_command("replay", str(forged), "--speed", "1000")
    with Terminal(command, size=SIZE, warm=warm) as terminal:
        terminal.wait_for("replay ended")
        for panel in (TITLES[name] for name in RANKED_PANELS):
            terminal.press("\t", until=rf"(?s)\A[^╭]*╭ {panel} [^╭]*\Z")
            assert_framed(terminal)
        walk = (
            ("\x1b", "╭ throughput"),
            ("x", r"╭─ X-ray of step \d+"),
            ("\x1b", "╭ throughput"),
            ("?", "replay keys"),
            ("?", "loss scale  GradScaler"),
            ("?", "╭ throughput"),
            ("e", r"(?s)╭─ events.* other pages [^\n]*╯"),  # to its last line
            ("\x1b[H", r"(?s)╭─ events.* 1–\d+ of .* lines [^\n]*╯"),
        )
        for key, shown in walk:
            terminal.press(key, until=shown)
            assert_framed(terminal)
        terminal.press("q", until="╭ throughput")
        assert terminal.leave("q") == 0
        assert not poison.strange_on_terminal(bytes(terminal.written), SIZE)


def assert_framed(terminal: Terminal) -> None:
    """Boxes that begin in the first column end in the last one: no text moved what stands right of it."""
    columns, lines = SIZE
    rows = [terminal.screen.buffer[y] for y in range(lines)]
    ends = {row[columns - 1].data for row in rows if row[0].data in "│╭╰"}
    assert ends <= {"│", "╮", "╯"}, terminal.text


@pytest.mark.parametrize(("encoding", "keep"), [("utf-8", poison.PRECISION_FIELDS), ("ascii", ())])
def test_a_forged_journal_in_plain_lines(encoding: str, keep: Collection[str]) -> None:
    session, out = Session("runs/x"), io.TextIOWrapper(io.BytesIO(), encoding)
    front, records = PlainFront(session.view, out), poison.poisoned_records(keep=keep)
    for first in range(0, len(records), 10):
        session.fold(records[first : first + 10])
        front.update()
    front.finish()
    written = out.buffer.getvalue()
    assert b"5;41mblink" in written
    assert b"journal: runs/x/journal.jsonl" in written
    assert not poison.strange_in_lines(written.decode(encoding).encode())


def test_forged_records_are_lines_of_ascii_as_json() -> None:
    out = io.StringIO()
    JsonLines(out)(poison.poisoned_records())
    assert out.getvalue().isascii()
    assert not poison.strange_in_lines(out.getvalue().encode())
    assert len(out.getvalue().splitlines()) == len(poison.poisoned_records())
    assert {type(record) for record in poison.poisoned_records()} == set(get_args(Record))


def test_a_forged_journal_exported(forged: Path, tmp_path: Path) -> None:
    export(forged, csv=tmp_path / "steps.csv", html=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_bytes()
    assert set(poison.strange_in_lines(page)) <= {"forged"}  # a line break is a blank there
    assert b"&lt;script&gt;window.owned=1&lt;/script&gt;" in page
    assert page.count(b"<script") == 1
    assert b"<img" not in page
    table = tmp_path / "steps.csv"
    assert not poison.strange_in_lines(table.read_bytes())
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {len(rows[0])}
    # As spreadsheets split it, which have commas, semicolons or tabs between cells.
    cells = [cell for row in rows for cell in re.split(r"[,;\t]", ",".join(row)) if not is_number(cell)]
    assert not [cell for cell in cells if cell.lstrip(' "').startswith(("=", "+", "-", "@"))]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


EVIL_WORD = next(poison.words()).translate({0: None, ord(":"): ".", 0xD83D: "\udc9b5;41m\udcff"})
"""What can be an argument: no NUL, half surrogates are bytes that are no UTF-8, and no class is named."""

WRONG = [
    [EVIL_WORD],
    ["train", EVIL_WORD],
    ["train", f"{EVIL_NAME}x.py"],
    ["train", f"{'long' * 100}/{EVIL_NAME}"],
    ["train", f"package.{EVIL_WORD}:Class", EVIL_WORD],
    ["train", "mnist-deep", f"--{EVIL_WORD}"],
    ["bench", EVIL_WORD],
    ["bench", "mnist-deep", "--precisions", EVIL_WORD],
    ["replay", EVIL_WORD],
    ["export", EVIL_WORD, "--csv", "x"],
    ["export", "--csv", EVIL_WORD],
    ["doctor", EVIL_WORD],
    *(
        ["train", "mnist-deep", option, EVIL_WORD]
        for option in ("--set", "--precision", "--device", "--steps", "--lr", "--data", "--amp-dtype")
    ),
]
"""Command lines that ask for what is not there."""


EVIL_PAGE = "evil \x1b]0;t\x07.html"


@pytest.mark.ci
def test_hostile_command_lines_and_kept_runs(
    warm: WarmSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / EVIL_NAME / "amptui" / "runs" / f"kept {EVIL_NAME}"
    write_journal(kept, poison.poisoned_records(keep=()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / EVIL_NAME))
    monkeypatch.chdir(tmp_path)
    plainly, as_json, exported = (
        warm.run(*right) for right in (["runs"], ["runs", "--json"], ["export", "--html", EVIL_PAGE])
    )
    assert (plainly.returncode, as_json.returncode, exported.returncode) == (0, 0, 0)
    assert b"kept m?[5;41m" in plainly.stdout.splitlines()[1]
    assert json.loads(as_json.stdout)["name"] == kept.name
    assert b"evil ?]0;t?.html" in exported.stdout
    said = b"".join(done.stdout + done.stderr for done in (plainly, as_json, exported))
    for arguments in WRONG:
        done = warm.run(*arguments)
        assert done.returncode in (1, 2)  # 1 where the trouble is a file that cannot be written
        assert done.stderr.startswith(b"amptui: ")
        assert done.stderr.count(b"\n") == 1
        said += done.stdout + done.stderr
    assert not poison.strange_in_lines(said)


@pytest.mark.ci
def test_a_run_that_became_nan_says_how_to_go_back(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    knobs = ["--set", "trouble=nan", "--set", "at=130", "--set", "step_ms=0", "--checkpoint-every", "50"]
    done = warm.run("train", KNOBS, "--device", "cpu", "--headless", "--run-dir", str(run), *knobs)
    assert done.returncode == 1
    (said,) = done.stderr.decode().splitlines()
    found = re.search(r"; go back to checkpoint step-(\d+)\.pt: (.+)", said)
    assert found
    assert int(found[1]) < 130
    command = shlex.split(found[2])
    assert command[:2] == ["amptui", "train"]
    # What it says to type goes on from there: a busy disk puts off the checkpoint of step 100.
    again = warm.run(*command[1:], "--steps", "129")
    assert again.returncode == 0, again.stderr
    assert isinstance(records_of(run)[-1], RunFinished)
    assert last_step(run) == 129


RECIPES = Path(__file__).parent / "recipes"


def session_of(leader: int) -> set[int]:
    """The living processes of the session that ``leader`` led, its own among them."""
    members = set()
    for path in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _parent, _group, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                members.add(int(path.name))
    return members


@pytest.mark.ci
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_every_kind_know_what_the_model_file_defines_and_leave_with_the_run(
    method: str, warm: WarmSource, tmp_path: Path
) -> None:
    run, told = tmp_path / "run", tmp_path / "pid"
    options = [f"start_method={method}", f"pid_file={told}"]
    with ended_afterwards(run):
        command = ["train", str(RECIPES / "worked.py"), "--device", "cpu", "--detach", "--run-dir", str(run)]
        assert warm.run(*command, *(each for option in options for each in ("--set", option))).returncode == 0
        wait_for_end(run)
        assert outcome(run) is RunFinished
        assert last_step(run) == 8
        # It leads a session of its own, which all that it starts belongs to.
        wait_until(lambda: not session_of(int(told.read_text())), "a process of the run is left")


TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


def drawn(view: SessionView) -> None:
    frame, canvas = Frame(), Canvas(120, 40)
    state = ScreenState(now=view.device.time if view.device else 0.0)
    for focus in (None, *RANKED_PANELS):
        frame.draw(canvas, view, replace(state, focus=focus, log_y=focus == "loss", zoom=focus is None))
    for width, height in ((80, 24), (200, 60)):
        frame.draw(Canvas(width, height), view, state)
    for overlay in (EventBrowser(), XRay(), LossScaleQuestion(), PrecisionMenu()):
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
    session = folded(JournalReader(RunDir(folder).journal_path))
    drawn(session.view())
    attached = Session()
    attached.restore(json.loads(session.state()))
    Frame().draw(Canvas(120, 40), attached.view(), ScreenState(now=0.0))
    tensorboard = folder / "board" if TENSORBOARD else None
    export(folder, csv=folder / "steps.csv", html=folder / "page.html", tensorboard=tensorboard)
    compare(folder)
    row = look_at(RunDir(folder))
    entry = RunEntry(run=str(folder), name=folder.name, is_live=False, written=0.0, read=lambda: row)
    listed = Canvas(200, 20)
    run_list.draw(listed, ListState(entries=[entry], rows={entry.run: row}), ScreenState(now=0.0))
    assert row.state in listed.lines()[2]
    play(folder)


def compare(folder: Path) -> None:
    try:
        comparison = read_all([RunDir(folder).journal_path, FP32[0]], target=None)
    except RunFolderError:
        return  # nothing of it could be read
    assert strictjson.line(as_json(comparison))
    assert plain_lines(comparison)
    assert "\x1b" not in page(comparison)


def play(folder: Path) -> None:
    """A replay that is at its end after a few ticks of the clock."""
    player = Player(RunDir(folder).journal_path, speed=4096.0)
    player.seek(player.total_seconds)
    now = 0.0
    while player.state != "ended":
        player.advance(now)
        now += 1.0
        drawn_words = position_words(player)
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
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # a journal may have 40 kB
@settings(max_examples=max(8, settings().max_examples // 4))  # each takes a tenth of a second
@given(journal=forged_journals())
def test_no_forged_journal_breaks_what_reads_it(
    tmp_path_factory: pytest.TempPathFactory, journal: bytes
) -> None:
    used_in_every_way(written(tmp_path_factory.mktemp("forged"), journal))
