"""`amptui` alone in a real pseudo-terminal: from the list into runs and back, and out of it in every way."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amptui.tui.run_list.removal import READING_SECONDS
from tests.checkout import ROOT
from tests.living import (
    CURSOR_ON,
    Lives,
    assert_restored,
    headless_run,
    outcome,
    run_pid,
    stop,
    wait_for_more,
)
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource

LIST = r"1 live +1 ended[\s\S]*▸"
QUESTION = "remove this run"


@pytest.fixture
def ended(runs: Path) -> Path:
    """A run that has ended, among the saved ones."""
    folder = runs / "mnist-deep-20261125-101500"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "demo" / "mnist-deep.jsonl", folder / "journal.jsonl")
    return folder


@pytest.fixture
def live(lives: Lives, runs: Path) -> Iterator[Path]:
    """A run that is being trained."""
    with headless_run(lives, runs / "live") as folder:
        yield folder


@pytest.mark.ci
def test_from_the_list_into_runs_and_back(live: Path, ended: Path, warm: WarmSource) -> None:
    with Terminal(amptui_command(), warm=warm) as terminal:
        terminal.wait_for(rf"{LIST}.*live +running[\s\S]*mnist-deep-\S+ +finished")
        terminal.press("\r", until=r"╭ loss[\s\S]*d detach")
        terminal.press("d", until=LIST)
        terminal.press("j\r", until="replay (×1|ended)")
        terminal.press("q", until=r"1 live +1 ended[\s\S]*▸ mnist-deep-20261125-101500")
        terminal.press(" k c", until="amptui compare[\\s\\S]*training loss by step")
        terminal.press("q", until=r"2 selected")
        terminal.press("G", until="▸◆mnist-deep")
        terminal.press("x", until=rf"{QUESTION}[\s\S]*1 journal")
        terminal.press("n", until_gone=QUESTION)
        assert ended.exists()
        terminal.press("x", until=QUESTION)
        time.sleep(READING_SECONDS)  # a yes that comes sooner is no answer
        terminal.press("y", until="removed .*mnist-deep-20261125-101500")
        assert not ended.exists()
        terminal.press("gx", until="this run is live")
        assert terminal.leave("q") == 0
        assert_restored(terminal)
        assert b"to watch it again: amptui attach" in terminal.written
    wait_for_more(live)
    stop(live)
    assert outcome(live) is not None


@pytest.mark.ci
def test_a_terminal_that_is_closed_ends_the_screen_of_a_run_and_the_list(
    live: Path, warm: WarmSource
) -> None:
    with Terminal(amptui_command(), warm=warm) as terminal:
        terminal.wait_for(r"1 live +0 ended[\s\S]*running")
        terminal.press("\r", until=r"╭ loss[\s\S]*d detach")
        terminal.press("\x03")
        terminal.wait_for(r"1 live +0 ended[\s\S]*▸")  # it detaches a screen that attached
        terminal.press("\r", until=r"╭ loss[\s\S]*d detach")
        terminal.hang_up()
        assert terminal.wait() == 129
    assert run_pid(live) is not None, "the run goes on"
    stop(live)


@pytest.mark.ci
def test_what_went_wrong_stands_below_the_list(ended: Path, warm: WarmSource) -> None:
    with Terminal(amptui_command(), warm=warm) as terminal:
        terminal.wait_for("0 live +1 ended[\\s\\S]*▸ mnist-deep")
        (ended / "journal.jsonl").write_text("nothing\n")
        terminal.press("\r", until=r"holds no\s+records")
        terminal.wait_for("0 live +1 ended")
        assert terminal.leave("q") == 0
        assert_restored(terminal)


@pytest.mark.ci
def test_a_terminal_that_can_show_no_screen_gets_the_help() -> None:
    with Terminal(amptui_command(), env={"TERM": "dumb"}) as terminal:
        assert terminal.wait() == 0
        assert CURSOR_ON not in terminal.written
        assert "Exit status" in terminal.text
