"""An export: one pass, files that appear whole or not at all, and troubles told in one line."""

import sys
from pathlib import Path

import pytest

from amptui.base.errors import AmptuiError, RunFolderError
from amptui.reports.export import Exported, export
from tests.builders import write_journal
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_samples import steps


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_journal(tmp_path / "small", [started(), *steps(1, 20)])


def test_one_call_writes_all_formats_from_a_journal_or_its_folder(small: Path, tmp_path: Path) -> None:
    places = {"csv": tmp_path / "out" / "a.csv", "html": tmp_path / "out" / "a.html"}
    exported = export(small / "journal.jsonl", **places)
    assert exported == export(small, **places) == Exported(steps=20, passed_over="")
    assert names(tmp_path / "out") == ["a.csv", "a.html"]


def test_damage_is_counted_and_reported(small: Path, tmp_path: Path) -> None:
    with (small / "journal.jsonl").open("a") as file:
        file.write('{"type":"Steps"}\nnonsense\n{"type":"FromTheFuture","time":1.0}\n{"type":"Note","ti')
    exported = export(small, html=tmp_path / "a.html")
    assert exported.steps == 20
    assert exported.passed_over in (tmp_path / "a.html").read_text()
    assert exported.passed_over == "passed over: 3 damaged lines, a last line that was cut off"


def test_a_link_stays_a_link(small: Path, tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    export(small, csv=tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").is_file()


@pytest.mark.parametrize("place", ["small", "small/journal.jsonl/x.csv", "/dev/null"])
def test_an_unwritable_path_is_refused_in_one_line(small: Path, tmp_path: Path, place: str) -> None:
    with pytest.raises(AmptuiError, match=r"cannot write .*; choose another path") as caught:
        export(small, csv=tmp_path / place)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["small"]
    assert names(small) == ["journal.jsonl"]


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
