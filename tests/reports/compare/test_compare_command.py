"""`amptui compare` as it is typed: plain, as JSON, as a page, on a terminal, and what it refuses."""

import json
import re
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.cli import main
from amptui.reports.compare.command import MAX_RUNS
from amptui.reports.compare.compare_frame import KEYS, Choice, CompareFrame
from amptui.reports.compare.compare_page import page
from amptui.reports.compare.following import read_all
from amptui.reports.compare.tables import as_json, plain_lines
from amptui.tui.canvas import Canvas
from amptui.tui.panels.screen_state import ScreenState
from tests.checkout import ROOT
from tests.forging import forged_journals
from tests.living import assert_restored
from tests.reports.compare.compared_runs import BF16, FP32
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource

RUNS = [str(path) for path in (*FP32, *BF16)]


def test_without_a_terminal_it_writes_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *RUNS]) == 0
    expected = plain_lines(read_all([*FP32, *BF16], target=None))
    assert capsys.readouterr().out.splitlines() == expected


def test_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *RUNS, "--json", "--target-loss", "1.0"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads(strictjson.line(as_json(read_all([*FP32, *BF16], target=1.0))))
    assert (content["target_loss"], content["contrasts"][0]["outcome"]) == (1.0, "not shown")


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "page.html"
    assert main(["compare", *RUNS[:2], "--html", str(place)]) == 0
    assert str(place) in capsys.readouterr().out
    assert place.read_text().startswith("<!DOCTYPE html>")
    assert main(["compare", *RUNS[:2], "--html", str(place), "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert main(["compare", *RUNS[:2], "--html", str(tmp_path)]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert main(["compare", *RUNS[:2], "--html", str(tmp_path / "new" / "page.html")]) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (RUNS[:1], 2, "two runs"),
        ([RUNS[0], RUNS[0]], 2, "the same run"),
        ([RUNS[0], "nobody-has-this-run"], 2, "no run"),
        ([RUNS[0], *["x"] * MAX_RUNS], 2, str(MAX_RUNS)),
        ([*RUNS[:2], "--json", "--plain"], 2, "not allowed with"),
        ([*RUNS[:2], "--target-loss", "inf"], 2, "finite"),
        ([RUNS[0], str(Path(__file__))], 1, "holds no records"),
        ([RUNS[0], str(Path(__file__).parent)], 1, "has no journal.jsonl"),
    ],
)
def test_what_it_refuses_is_told_in_one_line(
    words: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == status
    report = capsys.readouterr()
    assert report.out == ""
    assert told in report.err
    assert report.err.count("\n") == 1


@pytest.mark.ci
def test_on_a_terminal_it_is_a_screen_or_a_table_that_fits(warm: WarmSource) -> None:
    with Terminal(amptui_command("compare", *RUNS), warm=warm, size=(80, 24)) as terminal:
        terminal.wait_for("B AMP bf16 against F FP32")
        terminal.press("\x1b[C")
        terminal.wait_for("training loss by samples")
        terminal.press("q")
        assert terminal.wait() == 0
        assert_restored(terminal)
        assert b"\x1b[?1049h" in terminal.written, "what stood on the terminal comes back"
    with Terminal(amptui_command("compare", *RUNS, "--plain"), warm=warm, size=(80, 60)) as terminal:
        assert terminal.wait() == 0
        (head,) = [line for line in terminal.text.splitlines() if line.startswith("run ")]
        assert "final training loss" in head
        assert "training time" not in head


@pytest.mark.ci
def test_an_unreadable_run_gives_the_terminal_back(warm: WarmSource, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("nothing\n")
    with Terminal(amptui_command("compare", RUNS[0], str(empty)), warm=warm) as terminal:
        assert terminal.wait() == 1
        assert "holds no records" in terminal.text
        assert terminal.modes == terminal.modes_before


# --------------------------------------------------------------------------------- forged journals


@pytest.mark.nightly
@given(first=forged_journals(), second=forged_journals())
@settings(max_examples=30, deadline=None)
def test_no_journal_makes_a_comparison_fail(first: bytes, second: bytes) -> None:
    with TemporaryDirectory() as folder:
        journals = [Path(folder) / name for name in ("first.jsonl", "second.jsonl")]
        for journal, content in zip(journals, (first, second), strict=True):
            journal.write_bytes(content)
        try:
            comparison = read_all([*journals, FP32[0]], target=None)
        except RunFolderError:
            return  # nothing of it could be read
    frame = CompareFrame()
    for axis, validation in product(("steps", "samples", "seconds"), (False, True)):
        canvas = Canvas(80, 24)
        frame.draw(canvas, comparison, Choice(axis=axis, validation=validation), ScreenState())
        assert "".join(canvas.lines()).isprintable()
    assert strictjson.line(as_json(comparison))
    assert plain_lines(comparison)
    assert "\x1b" not in page(comparison)


# ------------------------------------------------------------------------------------- the guide


PAGE = (ROOT / "demo" / "guide" / "compare.md").read_text()


def test_every_key_that_it_names_is_one() -> None:
    (table,) = re.findall(r"\| key \|.*?\n\n", PAGE, re.DOTALL)
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    labelled = {label for cell in cells for label in re.findall(r"`([^`]+)`", cell)}
    assert labelled == {part for key in KEYS for part in key.label.split()}


def test_the_verdict_that_it_quotes_is_what_the_recorded_runs_give() -> None:
    (quoted,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert set(quoted.splitlines()) <= set(plain_lines(read_all([*FP32, *BF16], target=None)))
