"""Exports: files that appear whole or not at all; tables with every field, and nothing not measured."""

import csv
import sys
from pathlib import Path

import pytest

from amptui.base.errors import AmptuiError, RunFolderError
from amptui.records.run import Record
from amptui.reports.export.exporting import export
from tests.builders import write_journal
from tests.gan_journal import gan_records
from tests.golden import Goldens
from tests.telemetry import record_samples
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import step, steps


def table(folder: Path, *records: Record) -> list[dict[str, str]]:
    export(write_journal(folder / "run", records), csv=folder / "steps.csv")
    with (folder / "steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_header_and_some_rows(goldens: Goldens, tmp_path: Path) -> None:
    records = [
        step(1, precision="fp32", losses={"a": 0.25}),
        step(2, precision="fp16", loss_scale=65536.0, growth_tracker=1, skipped=True, losses={"b": 2.0}),
        step(3, lr=0.1, group_lrs=(0.1, 0.01), grad_norm=None, grad_max=0.5, step_seconds=None),
    ]
    text = ""
    for name, run in {"run": records, "two": gan_records(2)}.items():
        table(tmp_path / name, *run)
        text += (tmp_path / name / "steps.csv").read_text()
    goldens.check("reports/csv", text)


def test_a_late_column_stands_in_every_row(tmp_path: Path) -> None:
    """A part of the loss, and the optimizer where there are several."""
    late: list[Record] = [*steps(1, 600, losses={"a": 1.0}), *steps(601, 900, losses={"b,\n": 2.0})]
    found = table(tmp_path, record_samples.run(), *late, *steps(1, 10, optimizer="second"))
    assert [row["losses.a"] for row in found] == ["1.0"] * 600 + [""] * 310
    assert [row["losses.b,?"] for row in found] == [""] * 600 + ["2.0"] * 300 + [""] * 10
    assert [row["optimizer"] for row in found] == ["first"] * 900 + ["second"] * 10
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["run", "steps.csv"]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1", "'=1+1"),
        ('"=1', "'\"=1"),
        ("＝1", "'＝1"),
        ("a;=1", "a;'=1"),
        ("a, -b", "a, '-b"),
        ("a-b=c", "a-b=c"),
        ("\x1b[31m\u202e", "?[31m?"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_no_text_is_a_formula(name: str, cell: str, tmp_path: Path) -> None:
    (row,) = table(tmp_path, step(1, precision=name, losses={f"p;{name}": -0.5}))
    assert row["precision"] == cell
    assert list(row)[-1][len("losses.p;") :] == cell[: 1000 - len("losses.p;")]
    assert list(row.values())[-1] == "-0.5"


# ----------------------------------------------------------------------------------- a whole export
def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_journal(tmp_path / "small", [started(), *steps(1, 20)])


def test_one_call_writes_all_formats_from_a_journal_or_its_folder(small: Path, tmp_path: Path) -> None:
    places = {"csv": tmp_path / "out" / "a.csv", "html": tmp_path / "out" / "a.html"}
    for run in (small / "journal.jsonl", small):
        exported = export(run, **places)
        assert (exported.steps, exported.passed_over) == (20, "")
    assert names(tmp_path / "out") == ["a.csv", "a.html"]


def test_damage_is_counted_and_reported(small: Path, tmp_path: Path) -> None:
    with (small / "journal.jsonl").open("a") as file:
        file.write('{"type":"Steps"}\nnonsense\n{"type":"FromTheFuture","time":1.0}\n{"type":"Note","ti')
    exported = export(small, html=tmp_path / "a.html")
    assert exported.steps == 20
    assert exported.passed_over in (tmp_path / "a.html").read_text()
    assert exported.passed_over == "passed over: 3 damaged lines, a last line that was cut off"


@pytest.mark.parametrize("place", ["small", "small/journal.jsonl/x.csv", "/dev/null", "/dev/stdout"])
def test_an_unwritable_path_is_refused_in_one_line(small: Path, tmp_path: Path, place: str) -> None:
    with pytest.raises(AmptuiError, match=r"cannot write .*; choose another path") as caught:
        export(small, csv=tmp_path / place)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["small"]
    assert names(small) == ["journal.jsonl", "run.json"]


@pytest.mark.parametrize("content", ["", "nonsense\n"])
def test_a_journal_without_a_record_is_refused_and_nothing_is_written(tmp_path: Path, content: str) -> None:
    (tmp_path / "journal.jsonl").write_text(content)
    with pytest.raises(RunFolderError, match=r"journal\.jsonl holds no records"):
        export(tmp_path, html=tmp_path / "a.html")
    assert names(tmp_path) == ["journal.jsonl"]


def test_without_tensorboard_there_is_a_hint_and_no_file(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "amptui.reports.export.tensorboard", raising=False)
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(AmptuiError, match=r"; pip install 'amptui\[tensorboard\]'$"):
        export(small, csv=tmp_path / "a.csv", tensorboard=tmp_path / "tb")
    with pytest.raises(AmptuiError):
        export(small, tensorboard=tmp_path / "tb")
    assert names(tmp_path) == ["small"]
