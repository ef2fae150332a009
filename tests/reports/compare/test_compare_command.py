"""`amptui compare` as it is typed: plain, as JSON, as a page, on a terminal; what it follows and refuses."""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.cli import main
from amptui.records import codec
from amptui.records.run import Record
from amptui.reports.compare import following as module
from amptui.reports.compare.command import MAX_RUNS
from amptui.reports.compare.compare_frame import KEYS
from amptui.reports.compare.compare_page import page
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.following import Following, read_all
from amptui.reports.compare.tables import as_json, plain_lines
from amptui.runs.lock import RunLock
from tests.builders import write_journal as write
from tests.checkout import ROOT
from tests.golden import Goldens
from tests.living import assert_restored, wait_until
from tests.reports.compare.compared_runs import (
    BF16,
    FP32,
    figures,
    finished,
    many_groups,
    started,
    trained,
    validating,
    whole_run,
)
from tests.reports.texts import page_words, without_style
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


# ----------------------------------------------------------------------- journals that are followed
def until(following: Following, holds: Callable[[Compared], bool]) -> Compared:
    """The first comparison of which that is so."""

    def has_come() -> bool:
        newest = following.newest
        return following.failure is not None or (newest is not None and holds(newest))

    wait_until(has_come, "it never came to be")
    assert following.failure is None, following.failure
    assert following.newest is not None
    return following.newest


@contextmanager
def watching(journals: list[Path]) -> Iterator[Following]:
    following = Following(journals, target=None)
    following.start()
    yield following
    following.stop()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def append(journal: Path, *records: Record) -> None:
    with journal.open("a") as file:
        file.writelines(f"{codec.dumps(record)}\n" for record in records)


@pytest.fixture
def journals(tmp_path: Path) -> list[Path]:
    runs = [whole_run()[:-1], whole_run(2.0, precision="bf16")]
    return [write(tmp_path / f"run{i}", records) / "journal.jsonl" for i, records in enumerate(runs)]


def test_a_run_is_followed_to_its_end(journals: list[Path]) -> None:
    with RunLock.take(journals[0].parent), watching(journals) as following:
        result = until(following, lambda result: result.runs[0].view.step == 30)
        assert [run.is_live for run in result.runs] == [True, False]
        append(journals[0], *trained([1.0] * 10, first=31))
        result = until(following, lambda result: result.runs[0].view.step == 40)
        assert result.runs[0].samples == 400
        append(journals[0], finished(40))
        until(following, lambda result: result.runs[0].view.outcome is not None)


def test_an_unreadable_journal_ends_it(journals: list[Path]) -> None:
    with watching([journals[0], journals[1].with_name("none")]) as following:
        following._thread.join(60)
        assert isinstance(following.failure, RunFolderError)


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
        "ten groups": many_groups(),
    }
    goldens.check_digests({name: without_style(page(comparison)) for name, comparison in pages.items()})
