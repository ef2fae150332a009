"""A replay as a program, in a real terminal and without torch, and the recorded run that ships with it."""

import re
import sys
from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError, UsageError
from amptui.process.viewer import replay
from amptui.records.findings import ModulesTraced, XRayTaken
from amptui.records.run import PrecisionChanged
from amptui.runs.journal import JournalReader
from amptui.telemetry.health import judge_xray
from tests.builders import StepRow, one_by_one, view_of
from tests.builders import write_journal as write
from tests.checkout import ROOT
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step
from tests.terminal import Terminal
from tests.warm import WarmSource

JOURNAL = ROOT / "demo" / "mnist-deep.jsonl"

PROGRAM = """
import sys
from pathlib import Path
from amptui.process.viewer import replay
status = replay(Path(sys.argv[1]), speed=float(sys.argv[2]))
print("loaded", [name for name in ("torch", "psutil", "pynvml") if name in sys.modules])
sys.exit(status)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write(tmp_path / "run", [started(), *(step(n, time=100.0 + n) for n in range(1, 101))])
    with (folder / "journal.jsonl").open("a") as file:
        file.write("{half")
    return folder


def playing(run: Path, speed: float, warm: WarmSource | None = None, *, patch: str = "") -> Terminal:
    return Terminal([sys.executable, "-c", patch + PROGRAM, str(run), str(speed)], warm=warm)


@pytest.mark.ci
def test_a_run_is_played_moved_and_left(run: Path) -> None:
    with playing(run, 1000) as terminal:
        terminal.wait_for("replay ended 1:40 of 1:40")
        terminal.wait_for(r"step\s+100/")
        # At that speed its next end would come before anybody sees it play.
        terminal.press(",,,,,,,,,\x1b[H")
        terminal.wait_for(r"replay ×1\.95312 [01]:\d\d of 1:40")
        terminal.press("\x1b[F")
        terminal.wait_for("replay ended 1:40 of 1:40")
        terminal.press("q")
        assert terminal.wait() == 0
        assert re.search(r"amptui: passed over: .*cut off", terminal.text)
        assert "loaded []" in terminal.text
        assert terminal.modes == terminal.modes_before


@pytest.mark.ci
def test_what_was_passed_over_is_said_before_why_the_journal_cannot_be_read_on(run: Path) -> None:
    with playing(run, 1000) as terminal:
        terminal.wait_for("replay ended 1:40 of 1:40")
        (run / "journal.jsonl").unlink()
        terminal.press("\x1b[H")
        assert terminal.wait() == 1
        assert re.search(rb"amptui: passed over: .*cut off(?s:.)*cannot read the journal", terminal.written)
        assert terminal.modes == terminal.modes_before


@pytest.mark.ci
def test_a_fault_of_the_screen_is_a_failure(run: Path) -> None:
    broken = "from amptui.tui.frame import Frame\nFrame.draw = None\n"
    # A traceback's frames hold much more where torch is loaded, and are all written out.
    with playing(run, 1, patch=broken) as terminal:
        assert terminal.wait() == 1
        assert terminal.modes == terminal.modes_before


def test_without_a_terminal_it_says_what_else_there_is(run: Path) -> None:
    with pytest.raises(UsageError, match="a replay needs a terminal; `amptui export` writes a run to a file"):
        replay(run, speed=1.0)


def test_a_folder_without_a_run_is_told_before_the_screen_comes(tmp_path: Path) -> None:
    with pytest.raises((RunFolderError, UsageError)):
        replay(tmp_path, speed=1.0)


def test_the_demo_is_whole_and_small_and_ends_with_an_answer() -> None:
    reader = JournalReader(JOURNAL)
    records = list(one_by_one(reader))
    assert (reader.damaged_lines, reader.torn) == (0, False)
    assert JOURNAL.stat().st_size < 1_000_000
    assert sum(isinstance(record, StepRow) for record in records) == 190
    record_steps = {
        type(r): r.step for r in records if isinstance(r, PrecisionChanged | XRayTaken | ModulesTraced)
    }
    assert record_steps == {PrecisionChanged: 52, XRayTaken: 116, ModulesTraced: 166}
    view = view_of(*records)
    assert view.state == "finished"
    assert (view.comparison.speedup or 0) > 1
    assert view.numerics.xray is not None
    assert judge_xray(view.numerics.xray).state == "agree"
