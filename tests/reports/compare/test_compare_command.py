"""`amptui compare` as it is typed: tables, JSON, a page, a terminal; what it reads and refuses."""

import json
import math
import re
from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError
from amptui.cli import main
from amptui.reports.compare.command import MAX_RUNS, read_all
from amptui.reports.compare.compare_page import page
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.tables import plain_lines
from amptui.runs.lock import RunLock
from tests.builders import write_journal as write
from tests.checkout import ROOT
from tests.golden import Goldens
from tests.reports.compare.compared_runs import (
    BF16,
    FP32,
    figures,
    started,
    trained,
    validating,
    whole_run,
)
from tests.reports.texts import json_text, page_words, without_style
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource

RUNS = [str(path) for path in (*FP32, *BF16)]


def test_without_a_terminal_it_writes_tables(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *RUNS]) == 0
    goldens.check("reports/compare recorded runs", capsys.readouterr().out)


def test_one_json_object(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *RUNS, "--json", "--target-loss", "1.0"]) == 0
    content = json.loads(capsys.readouterr().out)
    for group in content["groups"]:
        for run in group["runs"]:
            run["folder"] = ""
        group["runs"] = group["runs"][:1]
    goldens.check("reports/compare recorded runs, json", json_text(content))


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "page.html"
    assert main(["compare", *RUNS[:2], "--html", str(place)]) == 0
    assert str(place) in capsys.readouterr().out
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
        ([RUNS[0], "nobody-has-this-run"], 2, "no run"),
        ([RUNS[0], *["x"] * MAX_RUNS], 2, str(MAX_RUNS)),
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
def test_on_a_terminal_its_tables_fit(warm: WarmSource) -> None:
    with Terminal(amptui_command("compare", *RUNS), warm=warm, size=(80, 60)) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[?1049h" not in terminal.written
        (head,) = [line for line in terminal.text.splitlines() if line.startswith("run ")]
        assert "final training loss" in head
        assert "training time" not in head


# ------------------------------------------------------------------------------------- the guide


PAGE = (ROOT / "demo" / "guide" / "compare.md").read_text()


def test_the_verdict_that_it_quotes_is_what_the_recorded_runs_give() -> None:
    (quoted,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert set(quoted.splitlines()) <= set(plain_lines(read_all([*FP32, *BF16], target=None)))


@pytest.fixture
def journals(tmp_path: Path) -> list[Path]:
    runs = [whole_run()[:-1], whole_run(2.0, precision="bf16")]
    return [write(tmp_path / f"run{i}", records) / "journal.jsonl" for i, records in enumerate(runs)]


def test_a_run_that_still_trains_is_compared_as_far_as_it_is(journals: list[Path]) -> None:
    with RunLock.take(journals[0].parent):
        result = read_all(journals, target=None)
    assert [(run.is_live, run.view.step) for run in result.runs] == [(True, 30), (False, 30)]
    assert result.contrasts[0].finding.state == "running"


def test_what_could_not_be_read_is_told(tmp_path: Path, journals: list[Path]) -> None:
    with journals[1].open("a") as file:
        file.write("{broken\n")
    comparison = read_all(journals, target=None)
    assert comparison.runs[0].passed_over == ""
    assert "1 damaged line" in comparison.runs[1].passed_over
    empty = tmp_path / "notes.txt"
    empty.write_text("hello\nthere\n")
    with pytest.raises(RunFolderError, match=r"notes.txt holds no records; .*: 2 damaged"):
        read_all([journals[0], empty], target=None)


# ----------------------------------------------------------------------------------------- the page
def of_every_state() -> Compared:
    """One run with validations, one that ended at NaN, one that has no steps, one without a record."""
    broken = figures(whole_run([1.0] * 20 + [math.nan] * 20, precision="bf16"))
    return compared([validating(), broken, figures([started()]), figures([])])


def test_a_page_says_and_draws_what_was_compared(goldens: Goldens) -> None:
    recorded = read_all([*FP32, *BF16], target=None)
    goldens.check("reports/compare page", page_words(page(recorded)))
    pages = {
        "recorded": recorded,
        "every state": of_every_state(),
        "validations": compared([validating(), figures(trained([1.0] * 30, precision="bf16"))]),
    }
    goldens.check_digests({name: without_style(page(comparison)) for name, comparison in pages.items()})
